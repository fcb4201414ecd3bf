// SANITIZE: address thread
// ALONE
// User-owned tensors, exchanged without Trainer: buckets, packing, the order of exchange, unused tensors, and
// no allocation in a step.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "comm_said.hpp"
#include "comm_tensors.hpp"
#include <convoy/comm/tensors/broadcast.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/core/philox.hpp>

using namespace convoy;
using comm::FusionOptions;
using comm::GradientBuckets;
using comm::NamedSpan;
using comm_said::Said;
using comm_tensors::named;
using comm_tensors::on_threads;
using comm_tensors::options;
using comm_tensors::Ring;
using transport::Threads;

namespace {

// The gradient of element i of tensor t on a rank in a step: small integers whose sums and means over 1, 2
// and 4 ranks are exact in every type.
int value(int rank, int step, int tensor, std::int64_t i) {
  return static_cast<int>((static_cast<std::int64_t>(rank + 1) * (tensor + 3) + step + i) % 12);
}

template <class E>
void fill(std::vector<E>& tensor, int rank, int step, int number) {
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    const int v = value(rank, step, number, static_cast<std::int64_t>(i));
    if constexpr (std::is_same_v<E, i32>)
      tensor[i] = v;
    else
      tensor[i] = static_cast<E>(static_cast<float>(v));
  }
}

// Whether a tensor holds the sums of the ranks for which `has(rank)` is true, divided by `divisor`.
template <class E, class Has>
bool holds_sum(const std::vector<E>& tensor, int ranks, int divisor, int step, int number, Has has) {
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    int total = 0;
    for (int r = 0; r < ranks; ++r)
      if (has(r)) total += value(r, step, number, static_cast<std::int64_t>(i));
    const double expected = static_cast<double>(total) / divisor;
    double got = 0;
    if constexpr (sizeof(E) == 2)
      got = static_cast<double>(static_cast<float>(tensor[i]));
    else
      got = static_cast<double>(tensor[i]);
    if (std::abs(got - expected) > 1e-6 * expected) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("tensors and values are vectors, arrays and spans of any extent; operations are types or values") {
  std::atomic<int> right{0};
  on_threads(2, [&](const Threads& endpoint) {
    const auto mine = static_cast<float>(endpoint.rank() + 1);
    Ring exchange(endpoint, options);
    std::array<float, 4> a;
    a.fill(mine);
    float b[2] = {mine, mine};
    std::vector<float> c(3, mine);
    const std::span<float, 3> d(c);
    {
      GradientBuckets gradients(exchange, {{"a", a}, {"b", b}, {"d", d}}, {.op = comm::sum});
      for (int i = 0; i < 3; ++i) gradients.ready(i);
      gradients.wait();
    }
    right += a[3] == 3 && b[1] == 3 && c[2] == 3;
    exchange.all_reduce(a, comm::mean);
    exchange.all_reduce(b, comm::Op::sum);
    exchange.all_reduce(d, comm::Op::max);
    exchange.all_reduce(std::span(c).first<1>(), comm::Op::mean);
    right += a[0] == 3 && b[0] == 6 && c[0] == 3;
    c.assign(3, mine);
    exchange.broadcast_async(c, 1).wait();
    right += c[2] == 2;
    exchange.all_reduce_async(a, comm::Op::min).wait();
    exchange.broadcast(a, 0);
    exchange.all_gather(c);
    std::vector<i32> counts(3);
    CHECK_THROWS_WITH_AS(exchange.all_reduce(counts, comm::Op::mean),
                         "the mean of i32 is not defined; use sum, min or max, or reduce f32 or f64",
                         ConfigError);
  });
  CHECK(right == 6);
}

TEST_CASE("the first bucket is small, the others near the size that was asked for, or a quarter of all") {
  std::vector<float> memory(64);
  const auto of = [&](std::vector<std::int64_t> counts) {
    std::vector<NamedSpan> all(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      all[i] = NamedSpan("t", memory);
      all[i].count = counts[i];
    }
    return all;
  };
  const auto tensors_of = [](const std::vector<comm::FusedBucket>& buckets) {
    std::vector<std::vector<int>> all;
    for (const auto& b : buckets) all.push_back(b.tensors);
    return all;
  };
  using Tensors = std::vector<std::vector<int>>;
  const std::int64_t mi = 1 << 18;  // floats in a MiB
  CHECK(tensors_of(comm::fuse(of({mi / 2, mi / 2, 10 * mi, 10 * mi, 10 * mi, 80 * mi}), {})) ==
        Tensors{{0, 1}, {2, 3}, {4}, {5}});
  // Buckets of a quarter of the 8 MiB.
  CHECK(tensors_of(comm::fuse(of(std::vector<std::int64_t>(8, mi)), {})) ==
        Tensors{{0}, {1, 2}, {3, 4}, {5, 6}, {7}});
  CHECK(tensors_of(comm::fuse(of({5, 5, 5}), {})) == Tensors{{0, 1, 2}});
  CHECK(tensors_of(comm::fuse(of({5, 5, 5}), {.bucket_bytes = 0})) == Tensors{{0}, {1}, {2}});
  CHECK(tensors_of(comm::fuse(of({5, 5, 50}), {.first_bytes = 40})) == Tensors{{0, 1}, {2}});
  // 40 bytes are nearer to the end of tensor 1 than to that of tensor 2.
  CHECK(tensors_of(comm::fuse(of({5, 3, 50}), {.first_bytes = 40})) == Tensors{{0, 1}, {2}});
  CHECK(comm::fuse({}, {}).empty());
}

TEST_CASE("a bucket has one type, and buckets are in the order of their last tensors") {
  std::vector<float> a(10), c(10), e(10);
  std::vector<double> b(10), d(10);
  const std::vector<NamedSpan> all{{"a", a}, {"b", b}, {"c", c}, {"d", d}, {"e", e}};
  const auto buckets = comm::fuse(all, {.first_bytes = 80, .bucket_bytes = 80});
  REQUIRE(buckets.size() == 4);
  CHECK(buckets[0] == comm::FusedBucket{DType::f64, 10, {1}});
  CHECK(buckets[1] == comm::FusedBucket{DType::f32, 20, {0, 2}});
  CHECK(buckets[2] == comm::FusedBucket{DType::f64, 10, {3}});
  CHECK(buckets[3] == comm::FusedBucket{DType::f32, 10, {4}});
  // "a" ends its bucket only when a large "z" comes, after "b".
  std::vector<float> z(250);
  const auto late = comm::fuse(std::vector<NamedSpan>{{"a", a}, {"b", b}, {"z", z}},
                               {.first_bytes = 80, .bucket_bytes = 80});
  REQUIRE(late.size() == 3);
  CHECK(late[0] == comm::FusedBucket{DType::f32, 10, {0}});
  CHECK(late[1] == comm::FusedBucket{DType::f64, 10, {1}});
  CHECK(late[2] == comm::FusedBucket{DType::f32, 250, {2}});
}

TEST_CASE("random tensors, marked by each rank in an order of its own, end as mean or sum") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 4);
    Philox sizes(seed, 99);
    const int count = 1 + static_cast<int>(sizes.below(20));
    std::vector<std::int64_t> counts;
    for (int t = 0; t < count; ++t)
      counts.push_back(static_cast<std::int64_t>(sizes.below(t % 5 == 0 ? 3000 : 60)));
    const FusionOptions fusion{.op = seed % 3 == 0 ? comm::Op::sum : comm::Op::mean,
                               .first_bytes = 64u << sizes.below(6),
                               .bucket_bytes = 256u << sizes.below(8)};
    std::atomic<int> right{0};
    on_threads(ranks, [&](const Threads& endpoint) {
      Ring exchange(endpoint, options);
      const int rank = exchange.rank();
      std::vector<std::vector<float>> tensors;
      for (const auto n : counts) tensors.emplace_back(static_cast<std::size_t>(n));
      GradientBuckets gradients(exchange, named(tensors), fusion);
      Philox order(seed, static_cast<std::uint64_t>(rank));
      bool good = true;
      for (int step = 0; step < 3; ++step) {
        std::vector<int> left(tensors.size());
        std::iota(left.begin(), left.end(), 0);
        while (!left.empty()) {
          const auto next = left.begin() +
                            static_cast<std::ptrdiff_t>(order.below(static_cast<std::uint32_t>(left.size())));
          fill(tensors[static_cast<std::size_t>(*next)], rank, step, *next);
          gradients.ready(*next);
          left.erase(next);
          if (order.below(2) == 0) gradients.poll();
        }
        gradients.wait();
        for (int t = 0; t < count; ++t)
          good = good && holds_sum(tensors[static_cast<std::size_t>(t)], ranks,
                                   fusion.op == comm::Op::sum ? 1 : ranks, step, t, [](int) { return true; });
      }
      right += good;
    });
    CAPTURE(seed);
    CHECK(right == ranks);
  }
}

TEST_CASE_TEMPLATE("all types that can be reduced are exchanged", E, f32, f64, bf16, f16, i32) {
  for (int ranks : {1, 2, 4})
    for (comm::Op op : {comm::Op::sum, comm::Op::mean}) {
      if (op == comm::Op::mean && std::is_same_v<E, i32>) continue;
      std::atomic<int> right{0};
      on_threads(ranks, [&](const Threads& endpoint) {
        Ring exchange(endpoint, options);
        std::vector<E> a(37), b(1), c(500);
        std::vector<f32> other(20);
        GradientBuckets gradients(exchange, {{"a", a}, {"other", other}, {"b", b}, {"c", c}},
                                  {.op = op, .first_bytes = 100, .bucket_bytes = 600});
        bool good = true;
        for (int step = 0; step < 2; ++step) {
          fill(a, exchange.rank(), step, 0);
          fill(other, exchange.rank(), step, 1);
          fill(b, exchange.rank(), step, 2);
          fill(c, exchange.rank(), step, 3);
          for (int t : {3, 0, 1, 2}) gradients.ready(t);
          gradients.wait();
          const int divisor = op == comm::Op::sum ? 1 : ranks;
          const auto all = [](int) { return true; };
          good = good && holds_sum(a, ranks, divisor, step, 0, all) &&
                 holds_sum(other, ranks, divisor, step, 1, all) &&
                 holds_sum(b, ranks, divisor, step, 2, all) && holds_sum(c, ranks, divisor, step, 3, all);
        }
        right += good;
      });
      CAPTURE(ranks);
      CHECK(right == ranks);
    }
}

TEST_CASE("tensors that follow one another in memory are exchanged where they lie") {
  std::atomic<int> right{0};
  on_threads(2, [&](const Threads& endpoint) {
    comm::Nonblocking<comm::Direct<Threads>> exchange(endpoint, options);
    Buffer<float> arena(100, exchange.memory());
    std::vector<float> apart(10);
    const std::span<float> all(arena);
    GradientBuckets gradients(
        exchange,
        {{"a", all.subspan(0, 20)}, {"b", all.subspan(20, 30)}, {"c", all.subspan(50, 50)}, {"d", apart}},
        {.op = comm::Op::sum, .first_bytes = 200, .bucket_bytes = 200});
    bool good = gradients.buckets().size() == 3 && !gradients.packed(0) && !gradients.packed(1) &&
                !gradients.packed(2);
    GradientBuckets mixed(exchange, {{"a", all.subspan(0, 20)}, {"d", apart}});
    good = good && mixed.buckets().size() == 1 && mixed.packed(0);
    std::fill(arena.begin(), arena.end(), static_cast<float>(exchange.rank() + 1));
    std::fill(apart.begin(), apart.end(), 4.0f);
    for (int t = 0; t < 4; ++t) gradients.ready(t);
    gradients.wait();
    good = good && std::all_of(arena.begin(), arena.end(), [](float v) { return v == 3; });
    good = good && std::all_of(apart.begin(), apart.end(), [](float v) { return v == 8; });
    right += good;
  });
  CHECK(right == 2);
}

TEST_CASE("a step allocates nothing once the first is over") {
  for (bool find_unused : {false, true}) {
    std::atomic<int> settled{0};
    std::atomic<long> before{0}, after{0};
    on_threads(3, [&](const Threads& endpoint) {
      Ring exchange(endpoint, options);
      std::vector<std::vector<float>> tensors;
      for (std::size_t t = 0; t < 12; ++t) tensors.emplace_back(100 + 37 * t);
      GradientBuckets gradients(exchange, named(tensors),
                                {.first_bytes = 1000, .bucket_bytes = 3000, .find_unused = find_unused});
      const auto step = [&] {
        for (int t = 0; t < 12; ++t) gradients.ready(t);
        gradients.poll();
        gradients.wait();
      };
      for (int s = 0; s < 4; ++s) step();
      exchange.barrier();
      if (exchange.rank() == 0) before = allocations.load();
      exchange.barrier();
      for (int s = 0; s < 20; ++s) step();
      exchange.barrier();
      if (exchange.rank() == 0) after = allocations.load();
      exchange.barrier();
      ++settled;
    });
    CHECK(settled == 3);
    CHECK(after - before == 0);
  }
}

TEST_CASE("gradients that are gone leave their room in the exchange to the next ones") {
  Ring alone;
  std::vector<float> values(5);
  for (int k = 0; k < 3; ++k) {
    GradientBuckets gradients(alone, {{"values", values}});
    gradients.ready(0);
    gradients.wait();
  }
  std::vector<comm::Handle> handles;
  const auto fill = [&] {
    while (handles.size() < 100) handles.push_back(alone.all_reduce_async(values, comm::sum));
  };
  CHECK_THROWS_WITH_AS(fill(),
                       "18 operations are in flight, and there is room for no more; wait for one, or call "
                       "reserve before the first",
                       ConfigError);
}

TEST_CASE("a tensor that a rank does not use counts as zeros there") {
  for (bool find : {false, true}) {
    std::atomic<int> right{0};
    on_threads(3, [&](const Threads& endpoint) {
      Ring exchange(endpoint, options);
      const int rank = exchange.rank();
      std::vector<std::vector<float>> tensors(4, std::vector<float>(50));
      GradientBuckets gradients(
          exchange, named(tensors),
          {.op = comm::Op::sum, .first_bytes = 300, .bucket_bytes = 300, .find_unused = find});
      bool good = true;
      for (int step = 0; step < 4; ++step) {
        // Tensor 1 is used by rank 2 only, tensor 3 by no rank in odd steps. Later steps say so.
        const auto uses = [&](int r, int t) { return t == 1 ? r == 2 : t == 3 ? step % 2 == 0 : true; };
        for (int t = 0; t < 4; ++t) {
          fill(tensors[static_cast<std::size_t>(t)], rank, step, t);
          if (uses(rank, t))
            gradients.ready(t);
          else if (!find || step > 1)
            gradients.unused(t);
        }
        gradients.wait();
        for (int t = 0; t < 4; ++t) {
          good = good && holds_sum(tensors[static_cast<std::size_t>(t)], 3, 1, step, t,
                                   [&](int r) { return uses(r, t); });
          if (find) good = good && gradients.used(t) == (t != 3 || step % 2 == 0);
        }
      }
      right += good;
    });
    CHECK(right == 3);
  }
}

TEST_CASE("rank 0's parameters go to all, and every rank's metric to every rank") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::atomic<int> right{0};
    on_threads(ranks, [&](const Threads& endpoint) {
      Ring exchange(endpoint, options);
      std::vector<float> a(1000);
      std::vector<double> b(3);
      std::vector<i32> empty, c(7);
      fill(a, exchange.rank(), 0, 0);
      fill(b, exchange.rank(), 0, 1);
      fill(c, exchange.rank(), 0, 2);
      const std::vector<NamedSpan> parameters{{"a", a}, {"b", b}, {"empty", empty}, {"c", c}};
      comm::broadcast(exchange, parameters);
      std::vector<float> late{static_cast<float>(exchange.rank())};
      comm::broadcast(exchange, {{"late", late}}, ranks - 1);  // listed in the call
      const auto root = [](int r) { return r == 0; };
      bool good = holds_sum(a, ranks, 1, 0, 0, root) && holds_sum(b, ranks, 1, 0, 1, root) &&
                  holds_sum(c, ranks, 1, 0, 2, root);
      const auto losses = comm::all_gather(exchange, 0.5 + exchange.rank());
      good = good && static_cast<int>(losses.size()) == ranks && late[0] == static_cast<float>(ranks - 1);
      for (int r = 0; r < ranks; ++r) good = good && losses[static_cast<std::size_t>(r)] == 0.5 + r;
      right += good;
    });
    CHECK(right == ranks);
  }
  Said said(2);
  on_threads(2, [&](const Threads& endpoint) {
    Ring exchange(endpoint, options);
    std::vector<float> a(exchange.rank() == 0 ? 4u : 5u);
    const std::vector<NamedSpan> parameters{{"a", a}};
    said.listen(exchange.rank(), [&] { comm::broadcast(exchange, parameters); });
  });
  for (const auto& s : said.what)
    CHECK(s == "rank 1 differs from rank 0 in tensor 0: 5 f32 of a instead of 4 f32 of a");
  Said roots(2), none(2);
  on_threads(2, [&](const Threads& endpoint) {
    Ring exchange(endpoint, options);
    std::vector<float> a(4);
    roots.listen(exchange.rank(), [&] { comm::broadcast(exchange, {{"a", a}}, exchange.rank()); });
    none.listen(exchange.rank(), [&] { comm::broadcast(exchange, {{"a", a}}, 2); });
  });
  for (const auto& s : roots.what) CHECK(s == "rank 1 differs from rank 0 in root: 1 instead of 0");
  for (const auto& s : none.what) CHECK(s == "broadcast from rank 2 in a world of 2");
}
