// SANITIZE: address thread
// User-owned tensors over every policy that leaves each sum on each rank, selected by name; the other
// policies are refused.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/weighted.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>

using namespace convoy;
using comm::GradientBuckets;
using comm::NamedSpan;
using transport::Threads;

namespace {

// Small integers, whose means over 1, 2 and 4 ranks are exact.
float value(int rank, int step, int tensor, std::size_t i) {
  return static_cast<float>(((rank + 1) * (tensor + 3) + step + static_cast<int>(i)) % 12);
}

// Whether tensors in one arena, or scattered ones, end with the right mean or sum.
bool trains(comm::Any& exchange, bool scattered, const comm::FusionOptions& fusion, double tolerance) {
  const int rank = exchange.rank(), ranks = exchange.size();
  constexpr std::size_t counts[] = {100, 1, 0, 700, 33, 250};
  constexpr std::size_t all = std::accumulate(std::begin(counts), std::end(counts), std::size_t{0});
  Buffer<float> arena(2 * all, exchange.memory());
  std::vector<std::span<float>> tensors;
  std::vector<NamedSpan> named;
  std::size_t at = 0;
  for (const std::size_t count : counts) {
    tensors.push_back(std::span<float>(arena).subspan(at, count));
    at += scattered ? 2 * count : count;
    named.emplace_back(concat("tensor ", named.size()), tensors.back());
  }
  GradientBuckets gradients(exchange, named, fusion);
  bool good = gradients.packed(0) == scattered;
  for (int step = 0; step < 4; ++step) {
    for (int k = 0; k < 6; ++k) {
      const int t = (k + rank + step) % 6;
      const std::span<float> tensor = tensors[static_cast<std::size_t>(t)];
      for (std::size_t i = 0; i < tensor.size(); ++i) tensor[i] = value(rank, step, t, i);
      // Only rank 0 has tensor 3, and in the last step no rank has it.
      if (t != 3 || (rank == 0 && step < 3))
        gradients.ready(t);
      else if (!fusion.find_unused)
        gradients.unused(t);
      gradients.poll();
    }
    gradients.wait();
    for (int t = 0; t < 6; ++t) {
      if (fusion.find_unused) good = good && gradients.used(t) == (t != 3 || step < 3);
      const std::span<float> tensor = tensors[static_cast<std::size_t>(t)];
      for (std::size_t i = 0; i < tensor.size(); ++i) {
        double expected = 0;
        for (int r = 0; r < ranks; ++r)
          if (t != 3 || (r == 0 && step < 3)) expected += static_cast<double>(value(r, step, t, i));
        if (fusion.op == comm::Op::mean) expected /= ranks;
        good = good && std::abs(static_cast<double>(tensor[i]) - expected) <= tolerance * expected;
      }
    }
  }
  return good;
}

}  // namespace

TEST_CASE("every policy that leaves all sums on all ranks carries a user's tensors") {
  struct Row {
    const char* name;
    comm::Choice choice = {};
    double tolerance = 1e-6;
  };
  const Seconds deadline(20);
  const Row rows[] = {{"none"},
                      {"ring"},
                      {"tree"},
                      {"direct"},
                      {"reproducible"},
                      {"ring", {.background = true}},
                      {"ring", {.codec = "bf16"}, 0.02}};
  for (const Row& row : rows)
    for (const int ranks : row.name == std::string_view("none") ? std::vector{1} : std::vector{1, 2, 3, 4})
      for (const bool scattered : {false, true}) {
        std::atomic<int> right{0};
        Threads::World(ranks).run([&](const Threads& endpoint) {
          comm::Any exchange = comm::make(row.name, endpoint, {.deadline = deadline}, row.choice);
          const bool mean = ranks % 2 == 0;
          right += trains(exchange, scattered,
                          {.op = mean ? comm::Op::mean : comm::Op::sum,
                           .first_bytes = 400,
                           .bucket_bytes = 1500,
                           .find_unused = ranks == 4},
                          row.tolerance);
        });
        CAPTURE(row.name);
        CAPTURE(ranks);
        CAPTURE(scattered);
        CHECK(right == ranks);
      }
}

TEST_CASE("an exchange that was chosen by name takes vectors and arrays, and operations as values") {
  std::atomic<int> right{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Any exchange = comm::make("ring", endpoint, {.deadline = Seconds(20)});
    std::vector<float> a(3, static_cast<float>(endpoint.rank() + 1));
    double b[2] = {static_cast<double>(endpoint.rank()), 5};
    exchange.all_reduce(a, comm::Op::mean);
    exchange.broadcast(b, 1);
    std::vector<std::int64_t> large{endpoint.rank() + (std::int64_t{1} << 40)};  // of a type without a DType
    exchange.broadcast(large, 1);
    right += a[2] == 1.5f && b[0] == 1 && large[0] == (std::int64_t{1} << 40) + 1;
  });
  CHECK(right == 2);
}

TEST_CASE("the mean over ranks of unequal weights is weighted, and needs the weights") {
  std::atomic<int> right{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Any exchange = comm::make("ring", endpoint, {.deadline = Seconds(20)}, {.weights = {1, 3}});
    std::vector<float> a(10, endpoint.rank() == 0 ? 4.0f : 8.0f);
    GradientBuckets gradients(exchange, {{"a", a}});
    gradients.ready(0);
    gradients.wait();
    std::vector<float> b(10, endpoint.rank() == 0 ? 4.0f : 8.0f);
    comm::Any measured = comm::make("ring", endpoint, {.deadline = Seconds(20)}, {.weighted = true});
    std::string said;
    try {
      GradientBuckets(measured, {{"b", b}});
    } catch (const ConfigError& e) {
      said = e.what();
    }
    right += a == std::vector<float>(10, 7.0f) &&
             said == "weighted: without Trainer no speed is measured, so a mean of gradients needs weights";
  });
  CHECK(right == 2);
}

TEST_CASE("what a rank of weight zero computed, such as the mean of no rows, does not count") {
  std::atomic<int> right{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Any exchange = comm::make("ring", endpoint, {.deadline = Seconds(20)}, {.weights = {0, 3}});
    const float none = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> a(10, endpoint.rank() == 0 ? none : 8.0f);
    GradientBuckets gradients(exchange, {{"a", a}});
    gradients.ready(0);
    gradients.wait();
    right += a == std::vector<float>(10, 8.0f);
  });
  CHECK(right == 2);
}

TEST_CASE("one exchange carries the buckets of one set of gradients at a time") {
  std::atomic<int> right{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Ring<Threads> exchange(endpoint, {.deadline = Seconds(20)});
    std::vector<float> a(4), b(5);
    std::string refusal;
    {
      GradientBuckets first(exchange, {{"a", a}});
      try {
        const GradientBuckets second(exchange, {{"b", b}});
      } catch (const ConfigError& error) {
        refusal = error.what();
      }
      a.assign(a.size(), static_cast<float>(endpoint.rank()));
      first.ready(0);
      first.wait();
    }
    GradientBuckets next(exchange, {{"b", b}});  // the first has freed the exchange
    b.assign(b.size(), static_cast<float>(2 * endpoint.rank()));
    next.ready(0);
    next.wait();
    right +=
        refusal ==
            "this exchange already carries the buckets of another GradientBuckets; make a second exchange" &&
        a == std::vector<float>(4, 0.5f) && b == std::vector<float>(5, 1.0f);
  });
  CHECK(right == 2);
}

TEST_CASE("one exchange carries many tensors, then few, of which the first may be empty") {
  constexpr std::size_t counts[] = {6000, 3};
  for (const int ranks : {1, 2}) {
    std::atomic<int> right{0};
    Threads::World(ranks).run([&](const Threads& endpoint) {
      comm::Any exchange = comm::make("ring", endpoint, {.deadline = Seconds(20)});
      for (const std::size_t count : counts) {
        Buffer<float> arena(2 * (count - 1), exchange.memory());
        std::fill(arena.begin(), arena.end(), 1.0f);
        std::vector<NamedSpan> named{{"empty", std::span<float>()}};
        while (named.size() < count)
          named.emplace_back(concat("tensor ", named.size()),
                             std::span<float>(arena).subspan(2 * (named.size() - 1), 2));
        GradientBuckets gradients(exchange, named, {.first_bytes = 1, .bucket_bytes = 400});
        for (int t = 0; t < static_cast<int>(count); ++t) gradients.ready(t);
        gradients.wait();
        right += std::all_of(arena.begin(), arena.end(), [](float v) { return v == 1; });
      }
    });
    CAPTURE(ranks);
    CHECK(right == 2 * ranks);
  }
}

TEST_CASE("tensors that go in the middle of a step are given up, and the other ranks hear of it") {
  std::atomic<bool> gone{false}, over{false};
  std::string heard;
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Any exchange = comm::make("ring", endpoint, {.deadline = Seconds(1000)});
    auto tensor = std::make_unique<std::vector<float>>(100'000);
    {
      GradientBuckets gradients(exchange, std::vector{NamedSpan("weight", *tensor)});
      CHECK_FALSE(gradients.packed(0));
      if (endpoint.rank() == 1) {
        while (!gone) std::this_thread::yield();
        try {
          gradients.ready(0);
          gradients.wait();
        } catch (const CommError& error) {
          heard = error.what();
        }
        over = true;
        return;
      }
      gradients.ready(0);
    }
    tensor.reset();
    gone = true;
    while (!over) std::this_thread::yield();
  });
  CHECK(heard.find("it was ended with buckets in flight") != std::string::npos);
}

TEST_CASE("servers are refused on every rank alike, with or without weights") {
  using Served = comm::ParameterServer<Threads, comm::Sync, 1, comm::Placement::beside>;
  for (const std::vector<double>& weights : {std::vector<double>{}, std::vector<double>{1, 3}}) {
    std::vector<std::string> said(3);
    Threads::World(3).run([&](const Threads& endpoint) {
      comm::Weighted<Served> exchange({weights}, endpoint, comm::Options{.deadline = Seconds(20)});
      std::vector<float> a(10);
      try {
        GradientBuckets(exchange, {{"a", a}});
      } catch (const ConfigError& error) {
        said[static_cast<std::size_t>(endpoint.rank())] = error.what();
      }
    });
    for (const std::string& sentence : said)
      CHECK(sentence ==
            "this exchange does not end with every sum on every rank, which exchanges without Trainer need; "
            "use an all-reduce, such as comm::Ring or comm::Hierarchical");
  }
}

TEST_CASE("what cannot carry them says so") {
  const auto said_by = [](const char* name, auto&& what) {
    std::string said = "nothing";
    Threads::World(2).run([&](const Threads& endpoint) {
      comm::Any exchange = comm::make(name, endpoint, {.deadline = Seconds(20)});
      std::string mine = "nothing";
      try {
        what(exchange);
      } catch (const ConfigError& e) {
        mine = e.what();
      }
      if (exchange.rank() == 1) said = mine;
    });
    return said;
  };
  std::vector<float> a(10);
  std::vector<double> wide(10);
  for (const char* name : {"sharded", "ps"})
    CHECK(said_by(name,
                  [&](comm::Any& exchange) {
                    GradientBuckets gradients(exchange, {{"a", a}});
                  }) ==
          "this exchange does not end with every sum on every rank, which exchanges without Trainer need; "
          "use an all-reduce, such as comm::Ring or comm::Hierarchical");
  CHECK(said_by("ring",
                [&](comm::Any& exchange) {
                  GradientBuckets gradients(exchange, {{"wide", wide}});
                }) ==
        "gradient wide is f64, and the buckets of this exchange are f32; use comm::Nonblocking for other "
        "types");
  CHECK(said_by("ring", [&](comm::Any& exchange) {
          std::vector<float> mine(exchange.rank() == 0 ? 10u : 11u);
          GradientBuckets gradients(exchange, {{"a", mine}});
        }) == "rank 1 differs from rank 0 in gradient 0: 11 f32 of a instead of 10 f32 of a");
}
