// SANITIZE: address thread
// Operations with handles: several at once, waited for in any order, dropped, with a dead peer.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "comm_oracle.hpp"
#include "comm_said.hpp"
#include <convoy/comm/tensors/nonblocking.hpp>

using namespace convoy;
using comm::Handle;
using comm_said::contains;
using comm_said::Said;
using transport::Threads;

namespace {

const comm::Options options{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};

}  // namespace

TEST_CASE("handles of several operations are waited for in any order, while others are not") {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::atomic<int> right{0};
    Threads::World(ranks).run([&](const Threads& endpoint) {
      comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, options);
      bool good = true;
      for (int round = 0; round < 3; ++round) {
        std::vector<std::vector<float>> spans;
        std::vector<Handle> handles;
        for (int k = 0; k < 12; ++k)
          spans.push_back(oracle::input<f32>(exchange.rank(), 100 * k + 3, static_cast<std::uint64_t>(k)));
        for (int k = 0; k < 12; ++k)
          handles.push_back(
              exchange.all_reduce_async(std::span<float>(spans[static_cast<std::size_t>(k)]), comm::sum, k));
        std::vector<double> metric{1.5};
        exchange.all_reduce(std::span<double>(metric), comm::sum);  // at the same time
        good = good && metric[0] == 1.5 * ranks;
        for (int k = 11; k >= 0; --k) {
          auto& handle = handles[static_cast<std::size_t>(k)];
          if (k % 2 == 0)
            while (!handle.done()) {
            }
          else
            handle.wait();
          handle.wait();  // on a finished operation
          good =
              good && handle.done() &&
              oracle::same_bits(spans[static_cast<std::size_t>(k)],
                                ranks == 1 ? oracle::input<f32>(0, 100 * k + 3, static_cast<std::uint64_t>(k))
                                           : oracle::ring<f32>(ranks, 100 * k + 3,
                                                               static_cast<std::uint64_t>(k), comm::Op::sum));
        }
      }
      right += good;
    });
    CAPTURE(ranks);
    CHECK(right == ranks);
  }
}

TEST_CASE_TEMPLATE("the other collectives have handles, too", A, comm::Ring<Threads>, comm::Tree<Threads>,
                   comm::Direct<Threads>, comm::AllReduce<comm::Algorithm<comm::AutoSchedule, Threads>>,
                   comm::Hierarchical<comm::Ring<Threads>, comm::Tree<Threads>, schedule::Every<2>>) {
  for (int ranks : {1, 2, 3, 4}) {
    std::atomic<int> right{0};
    Threads::World(ranks).run([&](const Threads& endpoint) {
      comm::Nonblocking<A> exchange(endpoint, {.deadline = Seconds(20), .cost = {1e-6, 1e-10, 1e-10}});
      const int rank = exchange.rank();
      constexpr std::size_t n = 1000;
      std::vector<double> reduced(n, rank + 1.0), scattered(n), gathered(n, -1), low(n, 7.0 - rank);
      std::vector<i32> sent(n, rank);
      for (std::size_t i = 0; i < n; ++i) scattered[i] = static_cast<double>(i) * (rank + 1);
      const Range own = exchange.own(static_cast<std::int64_t>(n), DType::f64);
      for (auto i = own.begin; i < own.end; ++i) gathered[static_cast<std::size_t>(i)] = rank;
      Handle mean = exchange.all_reduce_async(std::span<double>(reduced), comm::mean);
      Handle scatter = exchange.reduce_scatter_async(std::span<double>(scattered), comm::sum);
      Handle gather = exchange.all_gather_async(std::span<double>(gathered));
      Handle broadcast = exchange.broadcast_async(std::span<i32>(sent), ranks - 1);
      Handle least = exchange.all_reduce_async(std::span<double>(low), comm::min);
      gather.wait();
      mean.wait();
      least.wait();
      broadcast.wait();
      scatter.wait();
      bool good = true;
      const double sum = ranks * (ranks + 1) / 2.0;
      for (std::size_t i = 0; i < n; ++i)
        good = good && std::abs(reduced[i] - sum / ranks) < 1e-12 && sent[i] == ranks - 1 &&
               low[i] == 8.0 - ranks;
      for (auto i = own.begin; i < own.end; ++i)
        good = good && scattered[static_cast<std::size_t>(i)] == static_cast<double>(i) * sum;
      for (int r = 0; r < ranks; ++r) {
        const Range its = share(static_cast<std::int64_t>(n), r, ranks, schedule::grain_of(8));
        for (auto i = its.begin; i < its.end; ++i) good = good && gathered[static_cast<std::size_t>(i)] == r;
      }
      right += good;
    });
    CAPTURE(ranks);
    CHECK(right == ranks);
  }
}

TEST_CASE("operations that meet under different tags are told from one another") {
  // Rank 1 begins the operations of tags 7 and 8 in the other order.
  const auto meet = [](auto&& begin) {
    Said said(2);
    Threads::World(2).run([&](const Threads& endpoint) {
      comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, options);
      std::vector<float> a(100), b(100);
      const bool turned = exchange.rank() == 1;
      said.listen(exchange.rank(), [&] {
        Handle first = begin(exchange, std::span<float>(turned ? b : a), turned ? 8 : 7);
        Handle second = begin(exchange, std::span<float>(turned ? a : b), turned ? 7 : 8);
        second.wait();
        first.wait();
      });
    });
    return said;
  };
  const Said reduced = meet([](auto& exchange, std::span<float> values, int tag) {
    return exchange.all_reduce_async(values, comm::sum, tag);
  });
  int told = 0;
  for (const std::string& s : reduced.what) {
    INFO(s);
    CHECK(s != "nothing");
    told += contains(s,
                     "rank 1 is in all_reduce sum of f32 of bucket 8 where rank 0 is in all_reduce sum of "
                     "f32 of bucket 7") ||
            contains(s,
                     "rank 0 is in all_reduce sum of f32 of bucket 7 where rank 1 is in all_reduce sum of "
                     "f32 of bucket 8");
  }
  CHECK(told > 0);

  const Said sent = meet([](auto& exchange, std::span<float> values, int tag) {
    return exchange.broadcast_async(values, 0, tag);
  });
  INFO(sent.what[1]);
  CHECK(contains(sent.what[1], "rank 0 is in broadcast"));
  CHECK(contains(sent.what[1], "of bucket 8"));
  CHECK(contains(sent.what[1], "of bucket 7"));
}

TEST_CASE("a tag that the ranks could not compare is refused") {
  comm::Nonblocking<comm::Ring<Threads>> exchange(Threads{}, options);
  std::vector<float> values(10);
  for (const int tag : {-2, 255, 1 << 30})
    CHECK_THROWS_WITH_AS(
        static_cast<void>(exchange.all_reduce_async(values, comm::sum, tag)),
        concat("the tag of an operation is ", tag, "; it must be from 0 to 254, or -1 for none").c_str(),
        ConfigError);
  for (const int tag : {-1, 0, 254}) exchange.broadcast_async(values, 0, tag).wait();
}

TEST_CASE("memory of the exchange may be freed while other memory is exchanged") {
  std::atomic<bool> freed{false};
  std::atomic<int> right{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, options);
    Buffer<float> a(1000, exchange.memory());
    std::fill(a.begin(), a.end(), 1.0f);
    if (exchange.rank() == 1) freed.wait(false);
    Handle handle = exchange.all_reduce_async(std::span<float>(a), comm::sum);
    if (exchange.rank() == 0) {
      { const Buffer<float> other(1000, exchange.memory()); }
      freed = true;
      freed.notify_all();
    }
    handle.wait();
    right += std::all_of(a.begin(), a.end(), [](float v) { return v == 2; });
  });
  CHECK(right == 2);
}

TEST_CASE("a handle that is dropped waits, and one that an exception drops gives the exchange up") {
  std::atomic<int> right{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, options);
    std::vector<float> a(3000, 1.0f), b(10, 2.0f);
    static_cast<void>(exchange.all_reduce_async(std::span<float>(a), comm::sum));
    right += a.front() == 2 && a.back() == 2;
    Handle handle = exchange.all_reduce_async(std::span<float>(a), comm::sum);
    handle = exchange.all_reduce_async(std::span<float>(b), comm::sum);  // the first one is dropped here
    right += a.front() == 4 && a.back() == 4;
    Handle moved = std::move(handle);
    moved.wait();
    right += b.front() == 4;
  });
  CHECK(right == 6);

  Said said(2);
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, {.deadline = Seconds(60)});
    std::vector<float> a(3000);
    if (exchange.rank() == 0) {
      try {
        Handle handle = exchange.all_reduce_async(std::span<float>(a), comm::sum);
        throw std::runtime_error("of another kind");
      } catch (const std::runtime_error&) {
      }
      said.listen(0, [&] { exchange.all_reduce_async(std::span<float>(a), comm::sum).wait(); });
    } else {
      const Stopwatch watch;
      said.listen(1, [&] {
        exchange.all_reduce_async(std::span<float>(a), comm::sum).wait();
        exchange.all_reduce_async(std::span<float>(a), comm::sum).wait();
      });
      CHECK(watch.seconds() < 30);
    }
  });
  CHECK(said.what[0] ==
        "rank 0: exchange: this exchange has failed before: rank 0: operation with a handle: an exception "
        "ended it");
  INFO(said.what[1]);
  CHECK(said.culprit[1] == 0);
  CHECK(contains(said.what[1], "rank 0: operation with a handle: an exception ended it"));
}

TEST_CASE("a peer that is gone fails every operation, and the error names it") {
  Said first(3), second(3);
  std::string cause;
  try {
    Threads::World(3).run([&](const Threads& endpoint) {
      comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, {.deadline = Seconds(20)});
      std::vector<float> a(3000), b(3000);
      Handle one = exchange.all_reduce_async(std::span<float>(a), comm::sum);
      if (exchange.rank() == 2) {
        one.wait();
        fail("rank 2 has had enough");
      }
      Handle two = exchange.all_reduce_async(std::span<float>(b), comm::sum);
      one = Handle();
      first.listen(exchange.rank(), [&] { two.wait(); });
      second.listen(exchange.rank(), [&] { two.done(); });
    });
  } catch (const Error& e) {
    cause = e.what();
  }
  CHECK(cause == "rank 2 has had enough");
  for (std::size_t r = 0; r < 2; ++r) {
    INFO(first.what[r]);
    CHECK(first.culprit[r] == 2);
    CHECK(second.culprit[r] == 2);
    // The dropped handle may have met the failure already, without reporting it.
    const std::string again = concat("rank ", r, ": exchange: this exchange has failed before: ");
    CHECK(second.what[r] == again + "rank 2 has had enough");
  }
}

TEST_CASE("ranks that fail one after the other pass on what the first one said, and nothing else") {
  constexpr int ranks = 4;
  Said said(ranks), again(ranks);
  std::string cause;
  try {
    Threads::World(ranks).run([&](const Threads& endpoint) {
      comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, {.deadline = Seconds(60)});
      std::vector<float> a(3000);
      const int rank = exchange.rank();
      // Each rank learns from the one before.
      if (rank == 0) fail("the disk is full");
      said.listen(rank, [&] { exchange.all_reduce_async(a, comm::sum).wait(); });
      again.listen(rank, [&] { exchange.all_reduce(a, comm::sum); });
    });
  } catch (const Error& e) {
    cause = e.what();
  }
  CHECK(cause == "the disk is full");
  for (std::size_t r = 1; r < ranks; ++r) {
    INFO(said.what[r]);
    const auto times = [&](const std::string& text, std::string_view part) {
      int found = 0;
      for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
      return found;
    };
    CHECK(times(said.what[r], "that rank has ") == 1);
    CHECK(times(said.what[r], "the disk is full") == 1);
    CHECK(times(said.what[r], "(peer rank ") == 1);
    CHECK(again.what[r] ==
          concat("rank ", r,
                 ": exchange: this exchange has failed before: rank 0 has failed: the disk is full"));
  }
}

TEST_CASE("a long reason is cut at the end of a word") {
  transport::detail::RankRecord<false> record;
  const std::string words = [] {
    std::string all = "that";
    while (all.size() < 1000) all += " word";
    return all;
  }();
  record.write(record.reason, words);
  const std::string cut = record.reason;
  CHECK(cut.size() > 380);
  CHECK(cut.ends_with(" word ..."));
  record.write(record.reason, "short: ", "enough");
  CHECK(std::string(record.reason) == "short: enough");
}

TEST_CASE("a loop that only asks whether an operation is over learns that a peer is gone, or late") {
  Said gone(2);
  std::string cause;
  try {
    Threads::World(2).run([&](const Threads& endpoint) {
      comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, {.deadline = Seconds(60)});
      if (exchange.rank() == 1) fail("rank 1 has had enough");
      std::vector<float> a(3000);
      Handle handle = exchange.all_reduce_async(std::span<float>(a), comm::sum);
      gone.listen(0, [&] {
        while (!handle.done()) {
        }
      });
    });
  } catch (const Error& e) {
    cause = e.what();
  }
  CHECK(cause == "rank 1 has had enough");
  INFO(gone.what[0]);
  CHECK(gone.culprit[0] == 1);

  Said late(2);
  std::atomic<bool> over{false};
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, {.deadline = Seconds(1)});
    std::vector<float> a(16);
    if (exchange.rank() == 0) return over.wait(false);
    Handle handle = exchange.all_reduce_async(std::span<float>(a), comm::sum, 5);
    late.listen(1, [&] {
      while (!handle.done()) {
      }
    });
    over = true;
    over.notify_all();
  });
  INFO(late.what[1]);
  CHECK(late.culprit[1] == 0);
  CHECK(contains(late.what[1], "rank 1: ring of bucket 5: no answer within the deadline of 1 s"));
}

TEST_CASE("a peer that never begins an operation ends it with the deadline") {
  Said said(2);
  std::atomic<bool> over{false};
  Threads::World(2).run([&](const Threads& endpoint) {
    comm::Nonblocking<comm::Ring<Threads>> exchange(endpoint, {.deadline = Seconds(1)});
    std::vector<float> a(16);
    if (exchange.rank() == 0) return over.wait(false);
    said.listen(1, [&] { exchange.all_reduce_async(std::span<float>(a), comm::sum, 5).wait(); });
    over = true;
    over.notify_all();
  });
  INFO(said.what[1]);
  CHECK(said.culprit[1] == 0);
  CHECK(contains(said.what[1], "rank 1: ring of bucket 5: no answer within the deadline of 1 s"));
}

TEST_CASE("room for operations is made before they are begun") {
  comm::Nonblocking<comm::Ring<Threads>> alone;
  std::vector<std::vector<float>> spans(20, std::vector<float>(5));
  std::vector<Handle> handles;
  for (std::size_t k = 0; k < 16; ++k)
    handles.push_back(alone.all_reduce_async(std::span<float>(spans[k]), comm::sum));
  CHECK_THROWS_WITH_AS(
      static_cast<void>(alone.all_reduce_async(std::span<float>(spans[16]), comm::sum)),
      "16 operations are in flight, and there is room for no more; wait for one, or call reserve before "
      "the first",
      ConfigError);
  CHECK_THROWS_WITH_AS(alone.reserve(4),
                       "reserve must be called before any operation is in flight; 16 are in flight",
                       ConfigError);
  handles.clear();
  alone.reserve(4);
  for (std::size_t k = 0; k < 20; ++k)
    handles.push_back(alone.all_reduce_async(std::span<float>(spans[k]), comm::sum));
  CHECK_THROWS_WITH_AS(static_cast<void>(alone.broadcast_async(std::span<float>(spans[0]), 1)),
                       "broadcast from rank 1 in a world of 1", ConfigError);
}
