// SANITIZE: address thread
// User-owned tensors that cannot be exchanged: gradients that are refused, ranks that registered others,
// steps that end without a gradient, and dead ranks.
#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "comm_said.hpp"
#include "comm_tensors.hpp"
#include <convoy/comm/tensors/broadcast.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>

using namespace convoy;
using comm::FusionOptions;
using comm::GradientBuckets;
using comm::NamedSpan;
using comm_said::contains;
using comm_said::Said;
using comm_tensors::named;
using comm_tensors::on_threads;
using comm_tensors::options;
using comm_tensors::Ring;
using transport::Threads;

namespace {

const comm::Options impatient{.deadline = Seconds(1)};

}  // namespace

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
  CHECK_THROWS_WITH_AS(static_cast<void>(gradients.gradient(9)), "there is no gradient 9; 1 is registered",
                       Error);
  CHECK_THROWS_WITH_AS(static_cast<void>(gradients.packed(-1)),
                       "there is no bucket -1; the gradients are in 1 buckets", Error);
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
  CHECK(refused({{"a", a}, {"b", std::span(a).first(0)}, {"a", std::span(a).first(0)}}) ==
        "two gradients are called a");
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
  CHECK_THROWS_WITH_AS(gradients.ready(1), "there is no gradient 1; 1 is registered", Error);
  gradients.wait();
  gradients.ready(0);
  gradients.wait();
}

TEST_CASE("a rank that ends its step without a tensor names it, and the others name that rank") {
  for (const int marked : {1, 2, 3}) {
    Said said(3);
    on_threads(3, [&](const Threads& endpoint) {
      Ring exchange(endpoint, options);
      std::vector<std::vector<float>> tensors(4, std::vector<float>(50));
      GradientBuckets gradients(exchange, named(tensors), {.bucket_bytes = 0});
      said.listen(exchange.rank(), [&] {
        for (int t = 0; t < 4; ++t)
          if (exchange.rank() != 1 || t < marked) gradients.ready(t);
        gradients.wait();
      });
    });
    const char* const others[] = {"", " (nor 2 others)", " (nor 1 other)", ""};
    const std::string sentence =
        concat("gradient tensor ", marked, ": the step ended before rank 1 marked it as ready or unused",
               others[marked], "; set find_unused if a step may leave gradients unused");
    CHECK(said.what[1] == concat("rank 1: ", sentence));
    for (std::size_t r : {std::size_t{0}, std::size_t{2}}) {
      CHECK(said.culprit[r] == 1);
      CHECK(contains(said.what[r], concat("rank ", r, ": gradient tensor ")));
      CHECK(contains(said.what[r], sentence.substr(0, sentence.find(" as ready"))));
    }
    CHECK(said.culprit[1] == 1);
  }
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

TEST_CASE("a broadcast whose root is gone ends with an error on the others") {
  for (const std::size_t count : {std::size_t{1}, std::size_t{6}}) {
    Said said(3);
    on_threads(3, [&](const Threads& endpoint) {
      Ring exchange(endpoint, impatient);
      std::vector<std::vector<float>> tensors(count, std::vector<float>(50));
      const std::vector<NamedSpan> all = named(tensors);
      // The root agrees as the others do, and sends nothing.
      if (exchange.rank() == 1)
        exchange.agree_on(comm::detail::registered("tensor", all).add("root", 1));
      else
        said.listen(exchange.rank(), [&] { comm::broadcast(exchange, all, 1); });
    });
    for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
      INFO(said.what[r]);
      CHECK(said.culprit[r] == 1);
    }
  }
}
