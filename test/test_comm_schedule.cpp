// Proofs of the schedules at run time, and detection of wrong ones. Compile-time proofs are in
// test_comm_schedule_proofs.cpp.
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "comm_schedules.hpp"
#include "near.hpp"
#include "sanitized.hpp"
#include <convoy/comm/schedule/all_to_all.hpp>
#include <convoy/comm/schedule/auto.hpp>
#include <convoy/comm/schedule/broadcast.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/parts.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/price_shared.hpp>
#include <convoy/comm/schedule/verify.hpp>
#include <convoy/comm/schedule/verify_shared.hpp>

using namespace convoy::schedule;

namespace {

using schedules::Pairs, schedules::Uneven, schedules::Nested, schedules::Forest, schedules::Rooted,
    schedules::Deep;

// Every all-reduce that may be the inner level of a hierarchy; any all-reduce may be the outer one.
static_assert(TwoHalves<Ring> && TwoHalves<HalvingDoubling> && TwoHalves<Tree> && TwoHalves<Deep>);
static_assert(!TwoHalves<Hierarchical<Ring, Auto<Ring, Tree>, Every<2>>>);

// Schedules are values.
static_assert(Ring{} == Ring{1} && Ring{1} != Ring{2});
static_assert(RingReduceScatter{2} == RingReduceScatter{2} && RingAllGather{1} != RingAllGather{2});
static_assert(Tree{1} == Tree{} && Tree{1} != Tree{2} && HalvingDoubling{} == HalvingDoubling{});
static_assert(Broadcast{1, 0} == Broadcast{} && Broadcast{1, 0} != Broadcast{1, 1});
static_assert(Direct{} == Direct{} && DirectAllGather{1} != DirectAllGather{2});
static_assert(InParts<RingReduceScatter>{2} != InParts<RingReduceScatter>{3});
static_assert(AllToAll{} == AllToAll{} && Pairs{1} == Pairs{1} && Pairs{1} != Pairs{2});
static_assert(Auto<Ring, Tree>{1, 1, 0} != Auto<Ring, Tree>{1, 1, 1});

// Cannot be compared, so it is no schedule.
struct Incomparable {
  [[maybe_unused]] static constexpr std::string_view name = "incomparable";
  [[maybe_unused]] static constexpr Goal goal = Goal::all_reduce;
  int segments = 1;
  constexpr int blocks(int size) const { return Ring{}.blocks(size); }
  constexpr int owner(int block, int size) const { return Ring{}.owner(block, size); }
  constexpr void steps(int rank, int size, auto&& emit) const { Ring{segments}.steps(rank, size, emit); }
};
static_assert(!Schedule<Incomparable>);

// All steps of one rank.
template <Schedule S>
std::vector<Step> steps_of(const S& s, int rank, int size) {
  std::vector<Step> steps;
  s.steps(rank, size, [&](Step step) { steps.push_back(step); });
  return steps;
}

// A schedule made wrong by changing what a right one emits.
template <class Right>
struct Edited {
  static constexpr std::string_view name = "edited";
  static constexpr Goal goal = Goal::all_reduce;
  int segments = 1;
  std::function<void(int, int, std::vector<Step>&)> edit;
  friend bool operator==(const Edited& a, const Edited& b) {
    return a.segments == b.segments && a.edit.target_type() == b.edit.target_type();
  }

  int blocks(int size) const { return Right{}.blocks(size); }
  int owner(int block, int size) const { return Right{}.owner(block, size); }
  template <class Emit>
  void steps(int rank, int size, Emit&& emit) const {
    auto all = steps_of(Right{segments}, rank, size);
    edit(rank, size, all);
    for (const Step& step : all) emit(step);
  }
};

template <class Right = Ring>
Diagnosis diagnosis_of(int size, std::function<void(int, int, std::vector<Step>&)> edit) {
  return verify(Edited<Right>{1, std::move(edit)}, size);
}

}  // namespace

TEST_CASE("schedules are correct for large and odd numbers of ranks") {
  for (int n = 1; n <= (sanitized ? 12 : 40); ++n)
    for (int segments : {1, 2, 9}) {
      CAPTURE(n);
      CAPTURE(segments);
      CHECK_MESSAGE(verify(Ring{segments}, n, 8), explain(verify(Ring{segments}, n, 8)));
      CHECK(verify(RingReduceScatter{segments}, n, 8));
      CHECK(verify(RingAllGather{segments}, n, 8));
      CHECK(verify(Broadcast{segments, n / 2}, n, 8));
      CHECK_MESSAGE(verify(HalvingDoubling{segments}, n, 8),
                    explain(verify(HalvingDoubling{segments}, n, 8)));
      CHECK(verify(HalvingDoublingReduceScatter{segments}, n, 8));
      CHECK(verify(HalvingDoublingAllGather{segments}, n, 8));
      CHECK_MESSAGE(verify(Tree{segments}, n, 8), explain(verify(Tree{segments}, n, 8)));
      CHECK(verify(Tree{segments, 1}, n, 2));
      CHECK(verify(TreeReduceScatter{segments}, n, 8));
      CHECK(verify(TreeAllGather{segments}, n, 8));
      CHECK_MESSAGE(verify(Pairs{segments}, n, 8), explain(verify(Pairs{segments}, n, 8)));
      CHECK_MESSAGE(verify(Uneven{segments}, n, 8), explain(verify(Uneven{segments}, n, 8)));
      CHECK_MESSAGE(verify(Nested{segments}, n, 8), explain(verify(Nested{segments}, n, 8)));
      CHECK_MESSAGE(verify(Forest{segments}, n, 8), explain(verify(Forest{segments}, n, 8)));
      CHECK_MESSAGE(verify(Rooted{segments}, n, 8), explain(verify(Rooted{segments}, n, 8)));
      CHECK_MESSAGE(verify(Deep{segments}, n, 8), explain(verify(Deep{segments}, n, 8)));
      CHECK(verify(Deep::ReduceScatter{segments}, n, 8));
      CHECK(verify(Deep::AllGather{segments}, n, 8));
    }
  for (int n : {64, 127, 256}) CHECK(verify(Ring{1}, n, 8));
  CHECK(verify(Broadcast{1, 5}, 1024, 8));
  for (int n : {127, 128, 513, 1000, 1023, 1024}) {
    if (sanitized && n > 127) break;
    CAPTURE(n);
    CHECK(verify(HalvingDoubling{1}, n, 8));
    CHECK(verify(Tree{3}, n, 8));
    CHECK(verify(TreeReduceScatter{3}, n, 8));
    CHECK(verify(TreeAllGather{3}, n, 8));
    CHECK(verify(Uneven{1}, n, 8));
    CHECK(verify(Forest{1}, n, 8));
    CHECK(verify(Rooted{1}, n, 8));
    CHECK(verify(Deep{1}, n, 8));
    CHECK(verify(Deep::ReduceScatter{1}, n, 8));
    CHECK(verify(Deep::AllGather{1}, n, 8));
    CHECK(verify(Hierarchical<Ring, Tree, Every<16>>{1}, n, 8));
    CHECK(verify(Hierarchical<HalvingDoubling, Ring, Every<100>>{1}, n, 8));
  }
}

TEST_CASE("the ring is correct for 1,024 ranks") { CHECK(verify(Ring{1}, sanitized ? 128 : 1024, 8)); }

TEST_CASE("each kind of wrong schedule is found out") {
  const auto none = diagnosis_of(4, [](int, int, std::vector<Step>&) {});
  CHECK(none.fault == Fault::none);

  SUBCASE("a lost chunk: the last round is missing on both sides of one link") {
    const auto v = diagnosis_of(4, [](int rank, int size, std::vector<Step>& s) {
      if (rank == 3)  // its last message to rank 0 ...
        for (std::size_t i = s.size(); i-- > 0;)
          if (s[i].action == Action::send) {
            s.erase(s.begin() + static_cast<std::ptrdiff_t>(i));
            break;
          }
      if (rank == 0) s.pop_back();  // ... and its receipt
      (void)size;
    });
    CHECK(v.fault == Fault::incomplete);
    CHECK(v.rank == 0);
  }
  SUBCASE("a double count: the all-gather adds instead of copying") {
    const auto v = diagnosis_of(4, [](int, int, std::vector<Step>& s) {
      for (Step& step : s)
        if (step.action == Action::receive) step.action = Action::receive_reduce;
    });
    CHECK(v.fault == Fault::double_count);
  }
  SUBCASE("overwritten in flight: two ranks swap one chunk in place") {
    const auto v = diagnosis_of(2, [](int rank, int, std::vector<Step>& s) {
      s = {{Action::send, false, 1 - rank, 0},
           {Action::receive_reduce, true, 1 - rank, 0},
           {Action::send, false, 1 - rank, 1},
           {Action::receive_reduce, true, 1 - rank, 1}};
    });
    CHECK(v.fault == Fault::overwritten);
  }
  SUBCASE("a deadlock: everyone receives first") {
    const auto v = diagnosis_of(3, [](int, int, std::vector<Step>& s) { std::swap(s[0], s[1]); });
    CHECK(v.fault == Fault::deadlock);
  }
  SUBCASE("a deadlock that only a short channel shows") {
    CHECK(verify(Ring{8, 8}, 4, 0));
    CHECK(verify(Ring{8, 8}, 4, 2).fault == Fault::deadlock);
    CHECK(verify(Ring{8, 2}, 4, 4));
  }
  SUBCASE("a mismatched peer: one rank's last message goes the wrong way round") {
    const auto v = diagnosis_of(4, [](int rank, int size, std::vector<Step>& s) {
      if (rank == 1) s[s.size() - 2].peer = (rank + size - 1) % size;
    });
    CHECK(v.fault == Fault::mismatched_peer);
  }
  SUBCASE("a mismatched chunk") {
    const auto v = diagnosis_of(4, [](int rank, int, std::vector<Step>& s) {
      if (rank == 2) s[0].chunk = (s[0].chunk + 1) % 4;
    });
    CHECK(v.fault == Fault::mismatched_chunk);
  }
  SUBCASE("a step to a rank that does not exist") {
    const auto v = diagnosis_of(4, [](int rank, int, std::vector<Step>& s) {
      if (rank == 2) s[0].peer = 4;
    });
    CHECK(v.fault == Fault::bad_step);
    CHECK(explain(v).find("rank 2") != std::string::npos);
  }
  SUBCASE("a wrong mark of completion") {
    const auto v = diagnosis_of(4, [](int, int, std::vector<Step>& s) {
      for (Step& step : s) step.completes = false;
    });
    CHECK(v.fault == Fault::wrong_mark);
  }
}

TEST_CASE("the price of the ring is the textbook's") {
  const CostModel model{10e-6, 1e-9, 0.25e-9};
  for (int n : {2, 3, 4, 8, 16}) {
    const std::int64_t count = 1 << 16;
    if (count % (16 * n) != 0) continue;
    const double bytes = 4.0 * static_cast<double>(count);
    const Price p = price(Ring{1}, n, count, 4, model);
    const double expected = 2 * (n - 1) * model.alpha + 2.0 * (n - 1) / n * bytes * model.beta +
                            1.0 * (n - 1) / n * bytes * model.gamma;
    CHECK(p.seconds == convoy::test::near(expected, 1e-9));
    CHECK(p.messages == n * 2 * (n - 1));
    CHECK(p.most_bytes == 2 * (n - 1) * count * 4 / n);
  }
  CHECK(price(Ring{1}, 1, 100, 4, model).seconds == 0);
  // Segments hide the reduction behind the transfer.
  CHECK(price(Ring{8}, 4, 1 << 20, 4, {0, 1e-9, 0.5e-9}).seconds <
        price(Ring{1}, 4, 1 << 20, 4, {0, 1e-9, 0.5e-9}).seconds);
}

TEST_CASE("halving and doubling cost the ring's bytes in 2 lg n messages") {
  const CostModel model{10e-6, 1e-9, 0.25e-9};
  for (int k = 1; k <= 6; ++k) {
    const int n = 1 << k;
    const std::int64_t count = 1 << 16;
    const double bytes = 4.0 * static_cast<double>(count);
    const Price p = price(HalvingDoubling{1}, n, count, 4, model);
    const double expected = 2 * k * model.alpha + 2.0 * (n - 1) / n * bytes * model.beta +
                            1.0 * (n - 1) / n * bytes * model.gamma;
    CHECK(p.seconds == convoy::test::near(expected, 1e-9));
    CHECK(p.messages == n * 2 * k);
    CHECK(p.most_messages == 2 * k);
    CHECK(p.most_bytes == 2 * (n - 1) * count * 4 / n);
  }
  // An extra rank's pair swaps two halves and gathers them, and the whole result is sent back.
  const Price odd = price(HalvingDoubling{1}, 5, 1 << 16, 4, model);
  CHECK(odd.messages == 4 * 4 + 4);
  CHECK(odd.most_bytes == (1 << 18) * 3 / 2 + (1 << 18) * 3 / 2);
}

TEST_CASE("the double tree sends about two buffers per rank, and pipelines over its height") {
  const CostModel model{10e-6, 1e-9, 0};
  const std::int64_t count = 1 << 24;
  const double bytes = 4.0 * static_cast<double>(count);
  for (int n : {2, 3, 8, 13, 16, 100}) {
    CAPTURE(n);
    const Price p = price(Tree{256}, n, count, 4, model);
    CHECK(p.most_bytes <= 2 * count * 4);
    CHECK(p.bytes == 2 * (n - 1) * count * 4);
    CHECK(p.messages == 2 * (n - 1) * 2 * 256);
    CHECK(p.seconds < 1.1 * 2 * bytes * model.beta);
    // The price of each half is half of that, and each half pipelines by itself.
    for (const Price& half :
         {price(TreeReduceScatter{256}, n, count, 4, model), price(TreeAllGather{256}, n, count, 4, model)}) {
      CHECK(half.bytes == p.bytes / 2);
      CHECK(half.messages == p.messages / 2);
      CHECK(half.most_bytes <= count * 4);
      CHECK(half.seconds < 1.1 * bytes * model.beta);
    }
    // Short buffers: far fewer latencies than the ring.
    if (n >= 16)
      CHECK(price(Tree{1}, n, 1024, 4, model).seconds < price(Ring{1}, n, 1024, 4, model).seconds / 2);
  }
}

TEST_CASE(
    "between groups the hierarchy moves each shard as the outer schedule does, inside as the inner one") {
  const CostModel model{10e-6, 1e-9, 0.25e-9};
  constexpr int g = 4;
  for (int groups : {1, 2, 4, 8}) {
    CAPTURE(groups);
    const int n = g * groups;
    const std::int64_t count = 1 << 16;
    const double bytes = 4.0 * static_cast<double>(count);
    const double moved = 1.0 * (g - 1) / g + 1.0 * (groups - 1) / groups / g;
    using H = Hierarchical<Ring, Ring, Every<g>>;
    const Price p = price(H{}, n, count, 4, model);
    CHECK(p.seconds == convoy::test::near((2 * (g - 1) + 2 * (groups - 1)) * model.alpha +
                                              moved * bytes * (2 * model.beta + model.gamma),
                                          1e-9));
    CHECK(p.messages == n * (2 * (g - 1) + 2 * (groups - 1)));
    std::int64_t between = 0;
    for (int r = 0; r < n; ++r)
      for (const Step& step : steps_of(H{}, r, n))
        if (step.action == Action::send && step.peer / g != r / g)
          between += range_of(step.chunk, step.count, count, H{}.blocks(n), 1, 16).size() * 4;
    CHECK(between == 2 * (groups - 1) * count * 4);
  }
  // Inside a group of trees only the two roots hold a shard; the others send nothing across.
  for (int r = 0; r < 8; ++r)
    for (const Step& step : steps_of(Rooted{}, r, 8))
      if (step.peer / 4 != r / 4) CHECK((r % 4 == 0 || r % 4 == 3));
  // A group of one rank beside one of four holds all four shards.
  using Lopsided = Hierarchical<Ring, Ring, Sizes<4, 1>>;
  CHECK(Lopsided{}.blocks(5) == 8);
  for (int block = 0; block < 8; ++block)
    CHECK(Lopsided{}.owner(block, 5) == (block % 2 == 0 ? block / 2 : 4));
  CHECK(Sizes<3, 1>{}.count(10) == 5);
  CHECK(Sizes<3, 1>{}.begin(4, 10) == 8);
  CHECK(Every<4>{}.count(10) == 3);
}

TEST_CASE("the cheapest schedule for a size is the one with the lowest price") {
  using Any = Auto<Ring, HalvingDoubling, Tree>;
  const CostModel model{10e-6, 1e-9, 0.25e-9};
  const auto one = [](int) { return 1; };
  for (int n : {2, 3, 6, 8, 13, 16})
    for (std::int64_t count : {16, 4096, 1 << 20}) {
      CAPTURE(n);
      CAPTURE(count);
      const double prices[] = {price(Ring{1}, n, count, 4, model).seconds,
                               price(HalvingDoubling{1}, n, count, 4, model).seconds,
                               price(Tree{1}, n, count, 4, model).seconds};
      const int best = cheapest<Any>(n, count, 4, model, 4, one);
      for (double p : prices) CHECK(prices[best] <= p);
      for (int c = 0; c < 3; ++c) {
        CHECK(verify(Any{2, 2, c}, n, 8));
        CHECK(price(Any{1, 4, c}, n, count, 4, model).seconds == prices[c]);
      }
    }
  CHECK(cheapest<Any>(16, 1 << 20, 4, model, 4, one) == 1);
  CHECK(cheapest<Any>(13, 16, 4, model, 4, one) == 2);
  CHECK(cheapest<Any>(13, 1 << 20, 4, model, 4, one) == 0);
}

TEST_CASE("a message of several chunks is held against each of them") {
  CHECK(diagnosis_of<HalvingDoubling>(4, [](int, int, std::vector<Step>&) {}));
  CHECK(diagnosis_of<HalvingDoubling>(4, [](int rank, int, std::vector<Step>& s) {
          if (rank == 1) s[0].count = 1;
        }).fault == Fault::mismatched_chunk);
  CHECK(diagnosis_of<HalvingDoubling>(4, [](int rank, int, std::vector<Step>& s) {
          if (rank == 1) s[0].count = 5;
        }).fault == Fault::bad_step);
  const Diagnosis both = diagnosis_of<HalvingDoubling>(4, [](int, int, std::vector<Step>& s) {
    s[0].chunk = 0, s[0].count = 4;
    s[1].chunk = 0, s[1].count = 4;
  });
  CHECK(both.fault == Fault::overwritten);
}

TEST_CASE("chunks cover a buffer once, in order, whatever its size") {
  for (std::int64_t count : {0, 1, 2, 15, 16, 17, 1000, 4097})
    for (int blocks : {1, 2, 3, 7})
      for (int segments : {1, 2, 5}) {
        std::int64_t at = 0;
        for (int c = 0; c < blocks * segments; ++c) {
          const auto r = range_of(c, count, blocks, segments, 16);
          CHECK(r.begin == at);
          CHECK(r.end >= r.begin);
          at = r.end;
        }
        CHECK(at == count);
      }
}
