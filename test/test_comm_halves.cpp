// SANITIZE: address thread
// Direct, Sharded and Reproducible over threads: proofs at run time, their bits, training with several
// buckets in flight, and reduce-scatter and all-gather on a user's own spans.
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include "sanitized.hpp"
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/schedule/all_to_all.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/verify.hpp>
#include <convoy/comm/schedule/verify_shared.hpp>
#include <convoy/comm/transport/group.hpp>

using namespace convoy;
using transport::Threads;

namespace {

const comm::Options small{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};

template <class T>
std::vector<T> in_order(int size, std::int64_t count, std::uint64_t seed, comm::Op op) {
  std::vector<T> result(static_cast<std::size_t>(count));
  std::vector<std::vector<T>> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(oracle::input<T>(r, count, seed));
  using W = std::conditional_t<sizeof(T) == 2, float, T>;
  for (std::size_t i = 0; i < result.size(); ++i) {
    W value = static_cast<W>(inputs[0][i]);
    for (std::size_t r = 1; r < inputs.size(); ++r)
      value = oracle::combine<W>(value, static_cast<W>(inputs[r][i]), op,
                                 r + 1 == inputs.size() ? 1.0 / static_cast<double>(size) : 1);
    result[i] = static_cast<T>(value);
  }
  return result;
}

// parameters -= sum in rank order.
std::vector<float> trained_in_order(int size, std::int64_t count, int steps) {
  std::vector<float> parameters(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
  for (int step = 0; step < steps; ++step) {
    const auto sums = in_order<float>(size, count, static_cast<std::uint64_t>(step), comm::Op::sum);
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] -= sums[i];
  }
  return parameters;
}

// Wrong schedules over shared memory.
struct Twice : schedule::Direct {
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    for (int p = 0; p < size; ++p) emit(schedule::Access{schedule::Access::load, p, rank});
    emit(schedule::Access{schedule::Access::load, 0, rank});
    for (int p = 0; p < size; ++p) emit(schedule::Access{schedule::Access::store, p, rank});
  }
};
struct Forgets : schedule::Direct {
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    for (int p = 1; p < size; ++p) emit(schedule::Access{schedule::Access::load, p, rank});
    for (int p = 0; p < size; ++p) emit(schedule::Access{schedule::Access::store, p, rank});
  }
};
struct Races : schedule::Direct {  // every rank combines everything into its own buffer, while others read it
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    for (int c = 0; c < size; ++c) {
      for (int p = 0; p < size; ++p) emit(schedule::Access{schedule::Access::load, p, c});
      emit(schedule::Access{schedule::Access::store, rank, c});
    }
  }
};
struct Meddles : schedule::Eager {  // stores to a buffer whose owner may already be done
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    for (int p = 0; p < size; ++p) emit(schedule::Access{schedule::Access::load, p, 0});
    emit(schedule::Access{schedule::Access::store, (rank + 1) % size, 0});
  }
};
struct Misses : schedule::Direct {
  template <class Emit>
  constexpr void accesses(int rank, int size, Emit&& emit) const {
    for (int p = 0; p < size; ++p) emit(schedule::Access{schedule::Access::load, p, rank});
    for (int p = 1; p < size; ++p) emit(schedule::Access{schedule::Access::store, p, rank});
  }
};

template <class Comm>
void check_training(int ranks, std::int64_t count, const std::vector<float>& expected,
                    const comm::Options& options) {
  std::atomic<int> right{0};
  Threads::World(ranks).run([&](Threads endpoint) {
    Comm exchange(endpoint, options);
    constexpr bool shards = Comm::policy().starts_with("sharded");
    Buffer<float> gradients(static_cast<std::size_t>(count), exchange.memory());
    Buffer<float> parameters(static_cast<std::size_t>(count), exchange.memory());
    const auto cuts = oracle::buckets(count);
    exchange.open(comm::Fingerprint().add("model", "none"), {gradients, parameters, cuts});
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
    std::int64_t updated = 0;
    for (int step = 0; step < 3; ++step) {
      const auto mine = oracle::input<float>(exchange.rank(), count, static_cast<std::uint64_t>(step));
      for (std::size_t b = 0; b < cuts.size(); ++b) {
        std::copy(mine.begin() + cuts[b].begin, mine.begin() + cuts[b].end,
                  gradients.begin() + cuts[b].begin);
        if (b != 2) exchange.begin(static_cast<int>(b));
        for (int k = 0; k < 7; ++k) exchange.poll();
      }
      exchange.finish([&](Range range, float scale) {
        updated += range.size();
        for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i)
          parameters[i] -= scale * gradients[i];
      });
    }
    std::int64_t own = 0;
    for (const Range& r : exchange.updates(cuts)) own += r.size();
    right += oracle::same_bits(std::vector<float>(parameters.begin(), parameters.end()), expected) &&
             updated == 3 * own && (own == count) == (!shards || ranks == 1);
  });
  CAPTURE(Comm::policy());
  CAPTURE(ranks);
  CHECK(right == ranks);
}

}  // namespace

TEST_CASE("the schedules of direct exchanges are right for 1 to 40 ranks") {
  for (int n = 1; n <= 40; ++n) {
    CAPTURE(n);
    CHECK(verify(schedule::Direct{}, n));
    CHECK(verify(schedule::Eager{}, n));
    CHECK(verify(schedule::DirectReduceScatter{}, n));
    CHECK(verify(schedule::DirectAllGather{}, n));
    CHECK(verify(schedule::DirectReduceScatter{16}, n));
    CHECK(verify(schedule::DirectAllGather{16}, n));
    CHECK(verify(schedule::AllToAll{}, n, 16));
  }
}

TEST_CASE("wrong schedules over shared memory are refused for what is wrong with them") {
  using schedule::Fault;
  CHECK(schedule::verify(Twice{}, 4).fault == Fault::double_count);
  CHECK(schedule::verify(Forgets{}, 4).fault == Fault::incomplete);
  CHECK(schedule::verify(Races{}, 4).fault == Fault::overwritten);
  CHECK(schedule::verify(Meddles{}, 4).fault == Fault::overwritten);
  CHECK(schedule::verify(Misses{}, 4).fault == Fault::incomplete);
  CHECK(schedule::verify(schedule::Direct{}, sanitized ? 100 : 1024));
  CHECK(schedule::verify(schedule::DirectReduceScatter{}, sanitized ? 70 : 300));
  CHECK(schedule::verify(schedule::Eager{}, sanitized ? 40 : 200));
  CHECK(schedule::verify(schedule::AllToAll{4}, 60, 16));
}

TEST_CASE_TEMPLATE("sums come in the order of ranks, whatever the algorithm", A, comm::Direct<Threads>,
                   comm::Reproducible<comm::Ring<Threads>>, comm::Reproducible<comm::Tree<Threads>>,
                   comm::Reproducible<comm::Direct<Threads>>) {
  for (int ranks = 1; ranks <= (sanitized ? 4 : 7); ++ranks)
    for (const comm::Options& options : {small, comm::Options{.deadline = Seconds(20)}})
      for (std::int64_t count : {0, 1, 17, 1000, 20'011}) {
        std::atomic<int> right{0};
        Threads::World(ranks).run([&](Threads endpoint) {
          A exchange(endpoint, options);
          const auto one = [&](auto value, auto op, comm::Op which) {
            using T = decltype(value);
            auto values = oracle::input<T>(exchange.rank(), count, 3);
            exchange.all_reduce(std::span<T>(values), op);
            right += oracle::same_bits(values, in_order<T>(ranks, count, 3, which));
          };
          one(f32{}, comm::sum, comm::Op::sum);
          one(f32{}, comm::mean, comm::Op::mean);
          one(f64{}, comm::mean, comm::Op::mean);
          one(bf16{}, comm::mean, comm::Op::mean);
          one(f16{}, comm::sum, comm::Op::sum);
          one(i32{}, comm::max, comm::Op::max);
          one(f32{}, comm::min, comm::Op::min);
        });
        CAPTURE(ranks);
        CAPTURE(count);
        CHECK(right == 7 * ranks);
      }
}

namespace {

// `transport_of` makes the transport of a rank from its endpoint.
void check_few_values(auto transport_of) {
  const std::int64_t most = Threads::copy_bytes / sizeof(float);
  for (int ranks : {2, 3, 4}) {
    std::atomic<int> right{0};
    const std::int64_t few = most / (ranks - 1);
    Threads::World(ranks).run([&](Threads endpoint) {
      const auto transport = transport_of(endpoint);
      comm::Direct<std::decay_t<decltype(transport)>> exchange(transport, {.deadline = Seconds(20)});
      const int rank = exchange.rank();
      std::vector<float> values;
      bool same = true;
      for (int k = 0; k < 300; ++k) {
        values.assign(static_cast<std::size_t>(few - k % 3), static_cast<float>(rank + k));
        if (k % 50 == rank) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const auto before = exchange.traffic().messages;
        exchange.all_reduce(std::span<float>(values), comm::sum);
        same = same && exchange.traffic().messages - before == ranks - 1;
        const auto sum = static_cast<float>(ranks * k + ranks * (ranks - 1) / 2);
        for (float v : values) same = same && v == sum;
      }
      values.assign(static_cast<std::size_t>(few + 1), 1);
      exchange.all_reduce(std::span<float>(values), comm::sum);
      for (float v : values) same = same && v == static_cast<float>(ranks);
      right += same;
    });
    CAPTURE(ranks);
    CHECK(right == ranks);
  }
}

}  // namespace

TEST_CASE("sums of a few values are right again and again, whoever is late") {
  check_few_values([](const Threads& endpoint) { return endpoint; });
}

TEST_CASE("a group sends copies of a few values, as its world does") {
  check_few_values([](const Threads& endpoint) {
    std::vector<int> members(static_cast<std::size_t>(endpoint.size()));
    std::iota(members.rbegin(), members.rend(), 0);
    return transport::Group<Threads>(endpoint, members);
  });
}

TEST_CASE("training gives the same bits sharded or not, and the reproducible ones for every algorithm") {
  for (int ranks : {1, 2, 3, 4, 6}) {
    const std::int64_t count = 9'001;
    const auto ring = oracle::trained(ranks, count, 3), ordered = trained_in_order(ranks, count, 3);
    check_training<comm::Ring<Threads>>(ranks, count, ring, small);
    check_training<comm::Sharded<comm::Ring<Threads>>>(ranks, count, ring, small);
    // A tree leaves most ranks without a part of their own, so Sharded uses the ring's halves.
    check_training<comm::Sharded<comm::Tree<Threads>>>(ranks, count, ring, small);
    for (const comm::Options& options : {small, comm::Options{.deadline = Seconds(20)}}) {
      check_training<comm::Direct<Threads>>(ranks, count, ordered, options);
      check_training<comm::Sharded<comm::Direct<Threads>>>(ranks, count, ordered, options);
      check_training<comm::Reproducible<comm::Ring<Threads>>>(ranks, count, ordered, options);
      check_training<comm::Reproducible<comm::HalvingDoubling<Threads>>>(ranks, count, ordered, options);
      check_training<comm::Sharded<comm::Reproducible<comm::Ring<Threads>>>>(ranks, count, ordered, options);
    }
  }
}

TEST_CASE("an update that throws is not made behind the caller's back, and the step can be ended") {
  comm::Sharded<comm::Ring<Threads>> sharded;
  std::vector<float> arena(10);
  const std::vector<Range> cuts{{0, 5}, {5, 10}};
  sharded.open({}, {arena, arena, cuts});
  int refused = 0;
  CHECK_THROWS_WITH(sharded.finish([&](Range, float) {
    ++refused;
    fail("not now");
  }),
                    "not now");
  sharded.poll();
  CHECK(refused == 1);
  std::int64_t updated = 0;
  sharded.finish([&](Range range, float) { updated += range.size(); });
  CHECK(updated == 10);
}

TEST_CASE("a reduce-scatter leaves each rank its own block, an all-gather gives all of them to all") {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (std::int64_t count : {1, 100, 5'000}) {
      std::atomic<int> right{0};
      Threads::World(ranks).run([&](Threads endpoint) {
        const auto check = [&](auto&& exchange, const std::vector<float>& expected) {
          auto values = oracle::input<float>(exchange.rank(), count, 8);
          const Range mine = exchange.reduce_scatter(std::span<float>(values), comm::sum);
          bool same = mine.size() == exchange.own(count, DType::f32).size();
          for (auto i = static_cast<std::size_t>(mine.begin); i < static_cast<std::size_t>(mine.end); ++i)
            same = same && values[i] == expected[i];
          for (std::int64_t i = 0; i < count; ++i)
            if (i < mine.begin || i >= mine.end) values[static_cast<std::size_t>(i)] = -1;
          exchange.all_gather(std::span<float>(values));
          right += same && oracle::same_bits(values, expected);
        };
        check(comm::Ring<Threads>(endpoint, small), oracle::ring<float>(ranks, count, 8, comm::Op::sum));
        check(comm::Direct<Threads>(endpoint, small), in_order<float>(ranks, count, 8, comm::Op::sum));
        check(comm::Reproducible<comm::Ring<Threads>>(endpoint, small),
              in_order<float>(ranks, count, 8, comm::Op::sum));
      });
      CHECK(right == 3 * ranks);
    }
}

TEST_CASE_TEMPLATE("all-gather moves elements of any size whole", T, u8, bf16, f64) {
  for (int ranks : {2, 3})
    for (std::int64_t count : {1, 63, 1000}) {
      CAPTURE(ranks);
      CAPTURE(count);
      std::atomic<int> right{0};
      Threads::World(ranks).run([&](Threads endpoint) {
        const auto check = [&](auto exchange) {
          // An element's value tells its position; elements that are not this rank's own are zero.
          std::vector<T> values(static_cast<std::size_t>(count)), all(values.size());
          const Range mine = exchange.own(count, dtype_of<T>);
          for (std::int64_t i = 0; i < count; ++i) {
            all[static_cast<std::size_t>(i)] = static_cast<T>(static_cast<float>(1 + i % 200));
            if (i >= mine.begin && i < mine.end)
              values[static_cast<std::size_t>(i)] = all[static_cast<std::size_t>(i)];
          }
          exchange.all_gather(std::span<T>(values));
          right += values == all;
        };
        check(comm::Ring<Threads>(endpoint, small));
        check(comm::Direct<Threads>(endpoint, small));
      });
      CHECK(right == 2 * ranks);
    }
}

TEST_CASE_TEMPLATE("an exchange that is open may be replaced by another", A,
                   comm::Sharded<comm::Ring<Threads>>, comm::Reproducible<comm::Ring<Threads>>) {
  Threads::World(2).run([](const Threads& endpoint) {
    A exchange(endpoint, small);
    const std::vector<float> first = oracle::train(exchange, 3'000, 2);
    float sum[] = {1};
    exchange.all_reduce(std::span<float>(sum), comm::sum);
    exchange = A(endpoint, small);
    if (oracle::train(exchange, 3'000, 2) != first) throw std::logic_error("other parameters");
  });
}
