// SANITIZE: address thread
// ALONE
// User-owned tensors, exchanged without Trainer: buckets, packing, the order of exchange, unused tensors,
// ranks that registered other tensors, dead ranks, and no allocation in a step.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "comm_said.hpp"
#include <convoy/comm/tensors/broadcast.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/core/philox.hpp>

using namespace convoy;
using comm::FusionOptions;
using comm::GradientBuckets;
using comm::NamedSpan;
using comm_said::contains;
using comm_said::Said;
using transport::Threads;

namespace {

using Ring = comm::Nonblocking<comm::Ring<Threads>>;

const comm::Options options{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};
const comm::Options impatient{.deadline = Seconds(1)};

template <class Body>
void on_threads(int ranks, Body&& body) {
  Threads::World(ranks).run([&](const Threads& endpoint) { body(endpoint); });
}

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

std::vector<NamedSpan> named(std::vector<std::vector<float>>& tensors) {
  std::vector<NamedSpan> all;
  for (std::size_t t = 0; t < tensors.size(); ++t) all.emplace_back(concat("tensor ", t), tensors[t]);
  return all;
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

TEST_CASE("gradients that share memory are refused") {
  Ring exchange(Threads{}, options);
  std::vector<float> memory(10), other(5);
  const std::span<float> all(memory);
  const auto refusal = [&](std::span<float> a, std::span<float> b) -> std::string {
    try {
      GradientBuckets(exchange, {{"a", a}, {"other", other}, {"b", b}});
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  const std::string sentence = "gradient 2 (b) shares memory with gradient 0 (a); register that memory once";
  CHECK(refusal(all, all) == sentence);
  CHECK(refusal(all.first(6), all.last(5)) == sentence);
  CHECK(refusal(all.last(5), all.first(6)) == sentence);
  CHECK(refusal(all.last(5), all.first(5)) == "");
  CHECK(refusal(all, all.subspan(3, 0)) == "");
}

TEST_CASE("gradients made too late, and ones that there are not, are refused in a sentence") {
  Ring exchange(Threads{}, options);
  std::vector<float> a(10), b(5);
  {
    comm::Handle handle = exchange.all_reduce_async(b, comm::sum);
    CHECK_THROWS_WITH_AS(
        GradientBuckets(exchange, {{"a", a}}),
        "GradientBuckets must be made before an operation of its exchange is in flight; 1 is in flight",
        ConfigError);
  }
  const GradientBuckets gradients(exchange, {{"a", a}});
  CHECK(gradients.gradient(0).name == "a");
  CHECK_FALSE(gradients.packed(0));
  CHECK_THROWS_WITH_AS(static_cast<void>(gradients.gradient(9)), "there is no gradient 9; 1 are registered",
                       Error);
  CHECK_THROWS_WITH_AS(static_cast<void>(gradients.packed(-1)),
                       "there is no bucket -1; the gradients are in 1 buckets", Error);
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

TEST_CASE("ranks that registered something else are told in what, all in the same words") {
  struct Case {
    std::string sentence;
    std::function<void(Ring&, std::vector<NamedSpan>&, FusionOptions&)> change;
  };
  std::vector<float> a(784), b(10), c(3);
  std::vector<double> wide(784);
  const Case cases[] = {
      {"rank 1 differs from rank 0 in gradient 1: 10 f32 of fc1.offset instead of 10 f32 of fc1.bias",
       [](Ring&, auto& all, auto&) { all[1].name = "fc1.offset"; }},
      {"rank 1 differs from rank 0 in gradient 0: 783 f32 of fc1.weight instead of 784 f32 of fc1.weight",
       [](Ring&, auto& all, auto&) { all[0].count = 783; }},
      {"rank 1 differs from rank 0 in gradient 0: 784 f64 of fc1.weight instead of 784 f32 of fc1.weight",
       [&](Ring&, auto& all, auto&) { all[0] = NamedSpan("fc1.weight", wide); }},
      {"rank 1 differs from rank 0: it has no field \"gradient 1\" (rank 0: 10 f32 of fc1.bias)",
       [](Ring&, auto& all, auto&) { all.pop_back(); }},
      {"rank 1 differs from rank 0 in fusion.bucket_bytes: 1000 instead of 26214400",
       [](Ring&, auto&, FusionOptions& fusion) { fusion.bucket_bytes = 1000; }},
      {"rank 1 differs from rank 0 in fusion.op: sum instead of mean",
       [](Ring&, auto&, FusionOptions& fusion) { fusion.op = comm::Op::sum; }},
  };
  for (const Case& one : cases) {
    Said said(3);
    on_threads(3, [&](const Threads& endpoint) {
      Ring exchange(endpoint, options);
      std::vector<NamedSpan> all{{"fc1.weight", a}, {"fc1.bias", b}};
      FusionOptions fusion;
      if (exchange.rank() == 1) one.change(exchange, all, fusion);
      said.listen(exchange.rank(), [&] { GradientBuckets gradients(exchange, all, fusion); });
    });
    for (const std::string& s : said.what) CHECK(s == one.sentence);
  }
}

TEST_CASE("what cannot be registered is refused") {
  Ring alone;
  std::vector<float> a(3);
  std::vector<i32> whole(3);
  const auto refused = [&](std::vector<NamedSpan> all, const FusionOptions& fusion = {}) {
    std::string said = "nothing";
    try {
      GradientBuckets gradients(alone, std::move(all), fusion);
    } catch (const ConfigError& e) {
      said = e.what();
    }
    return said;
  };
  CHECK(refused({{"a", a}, {"a", a}}) == "two gradients are called a");
  CHECK(refused({{"", a}}) == "gradient 0 of 1 has no name");
  CHECK(refused({{"a", std::span<float>(static_cast<float*>(nullptr), 3)}}) ==
        "gradient 0 (a) has 3 elements and no memory");
  CHECK(refused({{"a", whole}}) ==
        "the mean of i32 is not defined, and gradient a is i32; register f32 or f64, or use sum");
  CHECK(refused({{"a", a}}, {.op = comm::Op::max}) == "gradients are combined by sum or mean, not by max");
  CHECK(refused({}) == "there is no gradient to exchange");
  CHECK(refused({{"a", a}}) == "nothing");

  GradientBuckets gradients(alone, {{"a", a}});
  gradients.ready(0);
  CHECK_THROWS_WITH_AS(gradients.ready(0), "gradient a was marked twice in one step", Error);
  CHECK_THROWS_WITH_AS(gradients.ready(1), "there is no gradient 1; 1 are registered", Error);
  gradients.wait();
  gradients.ready(0);
  gradients.wait();
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
        // Tensor 1 is used by rank 2 only, tensor 3 by no rank in odd steps.
        const auto uses = [&](int r, int t) { return t == 1 ? r == 2 : t == 3 ? step % 2 == 0 : true; };
        for (int t = 0; t < 4; ++t) {
          fill(tensors[static_cast<std::size_t>(t)], rank, step, t);
          if (uses(rank, t))
            gradients.ready(t);
          else if (!find)
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

TEST_CASE("a rank that ends its step without a tensor names it, and the others name that rank") {
  Said said(3);
  on_threads(3, [&](const Threads& endpoint) {
    Ring exchange(endpoint, options);
    std::vector<std::vector<float>> tensors(4, std::vector<float>(50));
    GradientBuckets gradients(exchange, named(tensors), {.bucket_bytes = 0});
    said.listen(exchange.rank(), [&] {
      for (int t = 0; t < 4; ++t)
        if (exchange.rank() != 1 || t < 2) gradients.ready(t);
      gradients.wait();
    });
  });
  CHECK(said.what[1] ==
        "rank 1: gradient tensor 2: the step ended before rank 1 marked it as ready or unused (nor 1 "
        "others); set find_unused if a step may leave gradients unused");
  for (std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    CHECK(said.culprit[r] == 1);
    CHECK(contains(said.what[r], concat("rank ", r, ": gradient tensor ")));
    CHECK(contains(said.what[r], "gradient tensor 2: the step ended before rank 1 marked it"));
  }
  CHECK(said.culprit[1] == 1);
}

TEST_CASE("after a step that failed, each call says why, and no wait succeeds") {
  on_threads(2, [&](const Threads& endpoint) {
    Ring exchange(endpoint, options);
    std::vector<std::vector<float>> tensors(2, std::vector<float>(50));
    GradientBuckets gradients(exchange, named(tensors), {.bucket_bytes = 0});
    const auto expect_failed = [&](auto&& call) {
      std::string said = "nothing";
      try {
        call();
      } catch (const CommError& error) {
        said = error.what();
      }
      CHECK(contains(said, "gradient tensor 1: the step ended before rank 0 marked it"));
    };
    expect_failed([&] {
      gradients.ready(0);
      if (exchange.rank() == 1) gradients.ready(1);
      gradients.wait();
    });
    expect_failed([&] { gradients.ready(0); });
    expect_failed([&] { gradients.ready(1); });
    expect_failed([&] { gradients.wait(); });
  });
}

TEST_CASE("a rank that never marks a tensor is named when the deadline ends, and so are the tensors") {
  Said said(2);
  std::atomic<bool> over{false};
  on_threads(2, [&](const Threads& endpoint) {
    Ring exchange(endpoint, impatient);
    std::vector<std::vector<float>> tensors(8, std::vector<float>(50));
    GradientBuckets gradients(exchange, named(tensors), {.first_bytes = 200, .bucket_bytes = 400});
    gradients.ready(0);
    if (exchange.rank() == 1) {
      said.listen(1, [&] {
        while (!over) gradients.poll();
      });
      return;
    }
    for (int t = 1; t < 8; ++t) gradients.ready(t);
    said.listen(0, [&] { gradients.wait(); });
    over = true;
  });
  CHECK(said.culprit[0] == 1);
  INFO(said.what[0]);
  CHECK(contains(
      said.what[0],
      "rank 0: gradients tensor 1 to tensor 2: ring of bucket 1: no answer within the deadline of 1 s"));
}

TEST_CASE("tensors that go before a bucket is whole are given up, and the other ranks hear of it") {
  Said said(2);
  std::atomic<bool> gone{false}, over{false};
  on_threads(2, [&](const Threads& endpoint) {
    Ring exchange(endpoint, impatient);
    std::vector<std::vector<float>> tensors(2, std::vector<float>(50));
    {
      GradientBuckets gradients(exchange, named(tensors));
      gradients.ready(0);
      if (exchange.rank() == 0) {
        gradients.ready(1);
        while (!gone) std::this_thread::yield();
        said.listen(0, [&] { gradients.wait(); });
        over = true;
        return;
      }
    }
    gone = true;
    while (!over) std::this_thread::yield();
  });
  CHECK(said.culprit[0] == 1);
  INFO(said.what[0]);
  CHECK(contains(said.what[0], "they were given up in the middle of a step"));
}

TEST_CASE("a rank that dies between two buckets is named by every other") {
  for (int ranks : {2, 3, 4}) {
    Said said(ranks);
    std::string cause;
    try {
      on_threads(ranks, [&](const Threads& endpoint) {
        Ring exchange(endpoint, options);
        std::vector<std::vector<float>> tensors(6, std::vector<float>(300));
        GradientBuckets gradients(exchange, named(tensors), {.bucket_bytes = 0});
        for (int step = 0;; ++step)
          for (int t = 0; t < 6; ++t) {
            if (exchange.rank() == ranks - 1 && step == 2 && t == 3) fail("this rank has lost its data");
            if (exchange.rank() == ranks - 1) {
              gradients.ready(t);
              if (t == 5) gradients.wait();
            } else {
              bool failed = true;
              said.listen(exchange.rank(), [&] {
                gradients.ready(t);
                if (t == 5) gradients.wait();
                failed = false;
              });
              if (failed) return;
            }
          }
      });
    } catch (const Error& e) {
      cause = e.what();
    }
    CHECK(cause == "this rank has lost its data");
    for (int r = 0; r < ranks - 1; ++r) {
      INFO(said.what[static_cast<std::size_t>(r)]);
      CHECK(said.culprit[static_cast<std::size_t>(r)] == ranks - 1);
    }
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
