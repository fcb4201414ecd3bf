// SANITIZE: address thread
// Background: the same bits as without it, messages progress while nobody calls, failures are reported.
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include <convoy/comm/policy/background.hpp>
#include <convoy/comm/registry.hpp>

using namespace convoy;
using comm::Background;
using comm::Ring;
using transport::Threads;

namespace {

static_assert(comm::Comm<Background<Ring<Threads>>>);

/// Its polls fail once a bucket is under way.
class Failing : public Ring<Threads> {
 public:
  using Ring<Threads>::Ring;
  void begin(int bucket, Ready ready = {}) {
    Ring<Threads>::begin(bucket, ready);
    begun_ = true;
  }
  void poll() {
    if (begun_) fail("the network is on fire");
  }

 private:
  bool begun_ = false;
};

/// As MPI initialized without thread support.
class OneThread : public Threads {
 public:
  OneThread() = default;
  explicit OneThread(const Threads& endpoint) : Threads(endpoint) {}
  OneThread isolated() const { return OneThread(Threads::isolated()); }
  bool one_thread() const { return true; }
};

/// As an mpi::Session, from which a transport can be made, but which is none.
struct Session {
  operator OneThread() const { return OneThread(); }
};

/// Counts overlapping calls.
class Watched {
 public:
  Watched(const Threads& endpoint, std::atomic<int>& clashes) : comm_(endpoint), clashes_(clashes) {}
  const Ring<Threads>& facts() const { return comm_; }
  comm::Traffic traffic() const { return comm_.traffic(); }
  template <class F>
  decltype(auto) call(F&& f) {
    const Inside inside(*this);
    std::this_thread::yield();
    return f(comm_);
  }

 private:
  struct Inside {
    explicit Inside(Watched& w) : calls(w.calls_) { w.clashes_ += calls++ > 0; }
    ~Inside() { --calls; }
    std::atomic<int>& calls;
  };
  Ring<Threads> comm_;
  std::atomic<int> calls_{0};
  std::atomic<int>& clashes_;
};
struct Exclusive : comm::Wrapper<Ring<Threads>, Watched> {
  Exclusive(const Threads& endpoint, std::atomic<int>& clashes) : Wrapper(std::in_place, endpoint, clashes) {}
};

}  // namespace

TEST_CASE("background: training ends with the oracle's bits, whoever polls") {
  for (const int ranks : {1, 2, 4})
    for (const int polls : {0, 5}) {
      const auto expected = oracle::trained(ranks, 3000, 4);
      Threads::World(ranks).run([&](const Threads& endpoint) {
        Background<Ring<Threads>> plain(endpoint);
        CHECK(oracle::train(plain, 3000, 4, polls) == expected);
        Background<comm::Sharded<Ring<Threads>>> sharded(endpoint);
        CHECK(oracle::train(sharded, 3000, 4, polls) == expected);
        comm::Any named = comm::make("ring", endpoint, {}, {.background = true});
        CHECK(named.policy() == "ring");
        CHECK(oracle::train(named, 3000, 4, polls) == expected);
      });
    }
}

TEST_CASE("background: an exchange is over while no rank calls it, and its observer is called by the rank") {
  constexpr int ranks = 3;
  Threads::World(ranks).run([&](const Threads& endpoint) {
    Background<Ring<Threads>> exchange(endpoint);
    Buffer<float> gradients(3000, exchange.memory()), parameters(3000, exchange.memory());
    const Range buckets[] = {{0, 1000}, {1000, 3000}};
    exchange.open(comm::Fingerprint(), {gradients, parameters, buckets});
    struct Seen {
      std::thread::id thread = std::this_thread::get_id();
      int events = 0, elsewhere = 0;
    } seen;
    exchange.observe({[](void* context, const comm::ExchangeEvent& event) {
                        Seen& s = *static_cast<Seen*>(context);
                        ++s.events;
                        s.elsewhere += s.thread != std::this_thread::get_id() || event.end < event.begin;
                      },
                      &seen});
    const auto before = exchange.traffic().messages;
    exchange.begin(0);
    exchange.begin(1);
    const Deadline deadline(Seconds(30));
    while (exchange.traffic().messages - before < 2 * 2 * (ranks - 1) && !deadline.expired())
      std::this_thread::yield();
    CHECK(exchange.traffic().messages - before == 2 * 2 * (ranks - 1));
    exchange.finish([](Range, float) {});
    CHECK(seen.events == 2);
    CHECK(seen.elsewhere == 0);
  });
}

TEST_CASE("background: an observer that is taken away or replaced has been told what there was to tell") {
  Threads::World(2).run([&](const Threads& endpoint) {
    Background<Ring<Threads>> exchange(endpoint);
    Buffer<float> gradients(3000, exchange.memory()), parameters(3000, exchange.memory());
    const Range buckets[] = {{0, 3000}};
    exchange.open(comm::Fingerprint(), {gradients, parameters, buckets});
    int first = 0, second = 0;
    const auto counts = [](int& events) {
      return comm::Observer{[](void* count, const comm::ExchangeEvent&) { ++*static_cast<int*>(count); },
                            &events};
    };
    for (const comm::Observer& next : {comm::Observer{}, counts(second)}) {
      exchange.observe(counts(first));
      const auto before = exchange.traffic().messages;
      exchange.begin(0);
      const Deadline deadline(Seconds(30));
      while (exchange.traffic().messages - before < 2 && !deadline.expired()) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the last message has come
      exchange.observe(next);
      exchange.finish([](Range, float) {});
    }
    CHECK(first == 2);
    CHECK(second == 0);
  });
}

TEST_CASE("background: the thread keeps away while the rank is in a call, and goes on after it") {
  std::atomic<int> clashes{0};
  Threads::World(2).run([&](const Threads& endpoint) {
    Background<Exclusive> exchange(endpoint, clashes);
    Buffer<float> gradients(3000, exchange.memory()), parameters(3000, exchange.memory());
    const Range buckets[] = {{0, 1000}, {1000, 3000}};
    exchange.open(comm::Fingerprint(), {gradients, parameters, buckets});
    for (int step = 0; step < 5; ++step) {
      double sum[] = {1};
      exchange.begin(0);
      exchange.barrier();
      exchange.all_reduce(std::span<double>(sum), comm::sum);
      CHECK(sum[0] == 2);
      exchange.broadcast(std::span<double>(sum), 0);
      const auto before = exchange.traffic().messages;
      exchange.begin(1);
      const Deadline deadline(Seconds(30));
      while (exchange.traffic().messages - before < 2 && !deadline.expired()) std::this_thread::yield();
      CHECK(exchange.traffic().messages - before >= 2);
      exchange.finish([&](Range, float) { exchange.poll(); });
    }
  });
  CHECK(clashes == 0);
}

TEST_CASE("background: what a poll throws comes out of the next call") {
  Threads::World(1).run([&](const Threads& endpoint) {
    Background<Failing> exchange(endpoint);
    Buffer<float> gradients(100), parameters(100);
    const Range buckets[] = {{0, 100}};
    exchange.open(comm::Fingerprint(), {gradients, parameters, buckets});
    exchange.begin(0);
    const Deadline deadline(Seconds(30));
    std::string thrown;
    while (thrown.empty() && !deadline.expired()) {
      try {
        exchange.poll();
      } catch (const Error& error) {
        thrown = error.what();
      }
    }
    CHECK(thrown == "the network is on fire");
  });
}

TEST_CASE("background: arenas may be released with buckets under way") {
  CHECK_THROWS_AS(Threads::World(2).run([&](const Threads& endpoint) {
    Background<Ring<Threads>> exchange(endpoint);
    Buffer<float> gradients(100'000, exchange.memory()), parameters(100'000, exchange.memory());
    const Range buckets[] = {{0, 100'000}};
    exchange.open(comm::Fingerprint(), {gradients, parameters, buckets});
    if (endpoint.rank() == 0) {
      exchange.begin(0);
      fail("this rank gives up");
    }
    exchange.begin(0);
    exchange.finish([](Range, float) {});
  }),
                  Error);
}

TEST_CASE("background: memory of any kind may go once the exchange is closed, with a bucket under way") {
  std::atomic<bool> closed{false};
  std::string heard;
  Threads::World(2).run([&](const Threads& endpoint) {
    Background<Ring<Threads>> exchange(endpoint);
    const Range buckets[] = {{0, 100'000}};
    auto gradients = std::make_unique<std::vector<float>>(100'000),
         parameters = std::make_unique<std::vector<float>>(100'000);
    exchange.open(comm::Fingerprint(), {*gradients, *parameters, buckets});
    if (endpoint.rank() == 0) {
      exchange.begin(0);
      exchange.close();
      gradients.reset();
      closed = true;
      return;
    }
    while (!closed) std::this_thread::yield();
    try {
      exchange.begin(0);
      exchange.finish([](Range, float) {});
    } catch (const CommError& error) {
      heard = error.what();
    }
  });
  CHECK(heard.find("it was ended with buckets in flight") != std::string::npos);
}

TEST_CASE("background: what no call was told goes with the end of the exchange") {
  Threads::World(1).run([&](const Threads& endpoint) {
    Background<Failing> exchange(endpoint);
    std::vector<float> gradients(100), parameters(100);
    const Range buckets[] = {{0, 100}};
    exchange.open(comm::Fingerprint(), {gradients, parameters, buckets});
    exchange.begin(0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the thread fails
    exchange.close();
    exchange.close();
  });
}

TEST_CASE("background: a parameter server is refused, and a transport for one thread") {
  Threads::World(1).run([&](const Threads& endpoint) {
    const char* refusal =
        "background: this transport takes calls from one thread only; an mpi::Session starts MPI with "
        "MPI_THREAD_SERIALIZED, which is enough";
    CHECK_THROWS_WITH_AS(Background<Ring<OneThread>>(OneThread(endpoint)), refusal, ConfigError);
    CHECK_THROWS_WITH_AS(Background<Ring<OneThread>>{}, refusal, ConfigError);
    CHECK_THROWS_WITH_AS(Background<Ring<OneThread>>(Session{}), refusal, ConfigError);
    CHECK_THROWS_WITH_AS(Background<comm::Weighted<Ring<OneThread>>>(comm::WeightedOptions{}, OneThread()),
                         refusal, ConfigError);
    CHECK_THROWS_WITH_AS(comm::make("ring", OneThread(), {}, {.background = true}), refusal, ConfigError);
    CHECK_THROWS_WITH_AS(comm::make("ps", endpoint, {}, {.background = true}),
                         "background: a parameter server computes updates when it polls, so no background "
                         "thread may poll for it",
                         ConfigError);
  });
}
