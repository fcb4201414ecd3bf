// SANITIZE: none
// Compile-time proofs of the schedules: for the first numbers of ranks, and for 16, which compilers' default
// limits allow.
#include <doctest/doctest.h>

#include "comm_schedules.hpp"
#include <convoy/comm/schedule/all_to_all.hpp>
#include <convoy/comm/schedule/broadcast.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/verify.hpp>
#include <convoy/comm/schedule/verify_shared.hpp>

using namespace convoy::schedule;

namespace {

using schedules::Pairs, schedules::Uneven, schedules::Nested, schedules::Forest, schedules::Rooted,
    schedules::Deep;

// One constant evaluation for each size, so that each has the compiler's whole step limit.
template <auto schedule, int size>
inline constexpr bool proved = static_cast<bool>(verify(schedule, size, 8));

template <auto schedule, int... n>
inline constexpr bool proved_for = (... && proved<schedule, n>);

template <auto schedule>
inline constexpr bool correct = proved_for<schedule, 1, 2, 3, 4, 5, 6, 7, 16>;

static_assert(correct<Ring{1}>);
static_assert(correct<Ring{4}>);
static_assert(correct<Ring{3, 2}>);
static_assert(correct<RingReduceScatter{2}>);
static_assert(correct<RingAllGather{2}>);
static_assert(correct<Broadcast{2, 0}>);
static_assert(correct<HalvingDoubling{1}>);
static_assert(correct<HalvingDoubling{3, 2}>);
static_assert(correct<HalvingDoublingReduceScatter{2}>);
static_assert(correct<HalvingDoublingAllGather{2}>);
static_assert(correct<Tree{1}>);
static_assert(correct<Tree{5, 2}>);
static_assert(correct<TreeReduceScatter{5, 2}>);
static_assert(correct<TreeAllGather{5, 2}>);
static_assert(correct<Pairs{1}>);
static_assert(correct<Pairs{2, 2}>);
static_assert(correct<Uneven{1}>);
static_assert(correct<Uneven{2, 2}>);
static_assert(correct<Nested{1}>);
static_assert(correct<Forest{2, 2}>);
static_assert(correct<Rooted{1}>);
static_assert(correct<Deep{1}>);
static_assert(correct<AllToAll{}>);

// Of shared memory, where no rank waits for room.
template <auto schedule, int... n>
inline constexpr bool correct_in_memory = (... && static_cast<bool>(verify(schedule, n)));
static_assert(correct_in_memory<Direct{}, 1, 2, 3, 4, 5, 6, 16>);
static_assert(correct_in_memory<DirectReduceScatter{}, 1, 2, 3, 4, 5, 6, 16>);
static_assert(correct_in_memory<DirectAllGather{}, 1, 2, 3, 4, 5, 6, 16>);
static_assert(correct_in_memory<DirectReduceScatter{16}, 1, 2, 3, 4, 5, 6, 16>);
static_assert(correct_in_memory<DirectAllGather{16}, 1, 2, 3, 4, 5, 6, 16>);
static_assert(correct_in_memory<Eager{}, 1, 2, 3, 4, 5, 6, 16>);

}  // namespace

TEST_CASE("what is proved while compiling holds at run time") {
  CHECK(verify(Ring{4}, 16, 8));
  CHECK(verify(Deep{1}, 16, 8));
  CHECK(verify(Uneven{2, 2}, 16, 8));
}
