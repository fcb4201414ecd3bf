// SANITIZE: address thread
// The parameter server over threads: servers among and beside the workers, every consistency, faults, and
// Trainer with the optimizer on the servers.
#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include "train_support.hpp"
#include <convoy/comm/parameter_server/mailbox.hpp>
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/registry.hpp>

using namespace convoy;
using namespace train_test;
using transport::Threads;

namespace {

constexpr int steps = 4;
const comm::Options options{.deadline = Seconds(20), .segment_bytes = 64};

struct Trained {
  std::vector<std::vector<float>> parameters;  // of each worker at the end
  std::int64_t updated = 0;                    // elements, by the servers
  bool in_time = true;  // each fit's gradients were applied by the callable of that fit
};

/// Trains parameters -= gradients in two consecutive fits.
Trained run(int ranks, const comm::Service& service, std::int64_t count) {
  Trained trained;
  trained.parameters.resize(static_cast<std::size_t>(ranks));
  std::atomic<std::int64_t> updated{0};
  std::atomic<bool> in_time{true};
  Threads::World(ranks).run([&](Threads endpoint) {
    comm::AnyParameterServer exchange(endpoint, service, options);
    Buffer<float> gradients(static_cast<std::size_t>(count)), parameters(static_cast<std::size_t>(count));
    const auto cuts = oracle::buckets(count);
    exchange.open(comm::Fingerprint().add("model", "none"), {gradients, parameters, cuts});
    int now = 0;
    if (exchange.rank() == 0)
      for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
    for (int fit = 0; fit < 2; ++fit) {
      const auto serve = [&, fit](const comm::ServerPart& part) {
        for (std::int64_t i = 0; i < part.range.size(); ++i)
          part.parameters[i] -= part.scale * part.gradients[i];
        updated += part.range.size();
        if (now != fit) in_time = false;
      };
      // Let the others push before this server begins its next fit.
      if (fit == 1 && exchange.serves()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      now = fit;
      exchange.serve(serve);
      if (exchange.role() == comm::Role::server) continue;
      exchange.broadcast(std::span<float>(parameters), 0);
      for (int step = 0; step < steps; ++step) {
        const auto mine =
            oracle::input<float>(exchange.rank(), count, static_cast<std::uint64_t>(steps * fit + step));
        for (std::size_t b = 0; b < cuts.size(); ++b) {
          std::copy(mine.begin() + cuts[b].begin, mine.begin() + cuts[b].end,
                    gradients.begin() + cuts[b].begin);
          exchange.begin(static_cast<int>(b));
          for (int k = 0; k < 5; ++k) exchange.poll();
        }
        exchange.finish([](Range, float) { throw std::logic_error("a worker updates nothing"); });
      }
      exchange.dismiss();
      auto& result = trained.parameters[static_cast<std::size_t>(exchange.rank())];
      result.assign(parameters.begin(), parameters.end());
      if (fit == 1) continue;
      float alike[] = {1};
      exchange.all_reduce(std::span<float>(alike), comm::sum);
      if (alike[0] != static_cast<float>(exchange.workers()))
        throw std::logic_error("not all workers took part");
      // The next fit starts from worker 0's parameters only.
      if (exchange.rank() != 0) std::fill(parameters.begin(), parameters.end(), 0.0f);
    }
    if (exchange.rank() == 0) trained.parameters.resize(static_cast<std::size_t>(exchange.workers()));
  });
  trained.updated = updated;
  trained.in_time = in_time;
  return trained;
}

std::vector<float> expected(int workers, std::int64_t count, float scale) {
  std::vector<float> parameters(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
  for (int step = 0; step < 2 * steps; ++step) {
    std::vector<float> sum(parameters.size());
    for (int w = 0; w < workers; ++w) {
      const auto values = oracle::input<float>(w, count, static_cast<std::uint64_t>(step));
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = w == 0 ? values[i] : sum[i] + values[i];
    }
    for (std::size_t i = 0; i < sum.size(); ++i) parameters[i] -= scale * sum[i];
  }
  return parameters;
}

}  // namespace

TEST_CASE(
    "sync servers give one set of bits, wherever they are and however many, some with nothing to serve") {
  for (const std::int64_t count : {3'001, 17})
    for (int workers = 1; workers <= 4; ++workers)
      for (int servers = 1; servers <= 3; ++servers) {
        const auto bits = expected(workers, count, 1);
        for (const comm::Placement placement : {comm::Placement::among, comm::Placement::beside}) {
          const bool among = placement == comm::Placement::among;
          if (among && servers > workers) continue;
          const Trained trained = run(workers + (among ? 0 : servers), {{}, servers, placement}, count);
          CHECK(trained.in_time);
          CHECK(trained.updated == 2 * steps * count);
          for (int w = 0; w < workers; ++w)
            CHECK(oracle::same_bits(trained.parameters[static_cast<std::size_t>(w)], bits));
        }
      }
}

TEST_CASE("async and stale servers apply every gradient once, and all workers end with the same parameters") {
  const std::int64_t count = 1'003;
  for (const comm::Consistency c :
       {comm::Async::consistency, comm::Stale<0>::consistency, comm::Stale<2>::consistency})
    for (const comm::Placement placement : {comm::Placement::among, comm::Placement::beside}) {
      const int workers = 3, ranks = placement == comm::Placement::among ? 3 : 5;
      const Trained trained = run(ranks, {c, 2, placement}, count);
      CHECK(trained.in_time);
      CHECK(trained.updated == 2 * steps * workers * count);
      const auto all = expected(workers, count, workers);
      double worst = 0;
      for (std::size_t i = 0; i < all.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(all[i] - trained.parameters[0][i])));
      CHECK(worst < 1e-3);
      for (const auto& other : trained.parameters) CHECK(oracle::same_bits(other, trained.parameters[0]));
    }
}

TEST_CASE("a worker or server that fails or stays away is named on all the others") {
  struct Case {
    bool fails = false;
    comm::Placement placement{};
    int culprit = 0;
    std::atomic<int> named{0};
    bool threw = false;
  };
  const auto suffer = [](Case& c) {
    const std::int64_t count = 1'000;
    const auto all = [&](Threads endpoint) {
      // The culprit is determined within a fifth of the deadline; every rank must get a processor in that
      // time.
      comm::AnyParameterServer exchange(endpoint, {{}, 1, c.placement},
                                        {.deadline = Seconds(c.fails ? 20 : 2.5)});
      const auto n = static_cast<std::size_t>(count);
      Buffer<float> gradients(n, exchange.memory()), parameters(n, exchange.memory());
      const auto cuts = oracle::buckets(count);
      exchange.open({}, {gradients, parameters, cuts});
      const auto misbehave = [&] {
        if (c.fails) fail("this rank has burnt down");
        const Deadline enough(Seconds(20));
        while (c.named < 2 && !enough.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      };
      try {
        const auto serve = [](const comm::ServerPart&) {};
        if (exchange.rank() == c.culprit && exchange.role() == comm::Role::server) misbehave();
        exchange.serve(serve);
        for (int step = 0; exchange.role() == comm::Role::worker && step < 3; ++step) {
          if (exchange.rank() == c.culprit && step == 1) misbehave();
          exchange.finish([](Range, float) {});
        }
      } catch (const CommError& error) {
        c.named += error.culprit == c.culprit && exchange.rank() != c.culprit;
        throw;
      }
    };
    try {
      Threads::World(3).run(all);
    } catch (const Error&) {
      c.threw = true;
    }
  };
  // The cases run at once, since they sleep most of the time.
  std::deque<Case> cases;
  std::vector<std::thread> threads;
  for (const bool fails : {true, false})
    for (const comm::Placement placement : {comm::Placement::among, comm::Placement::beside})
      for (const int culprit : {0, 1, 2}) {
        Case& c = cases.emplace_back();
        c.fails = fails, c.placement = placement, c.culprit = culprit;
        threads.emplace_back([&suffer, &c] { suffer(c); });
      }
  for (std::thread& thread : threads) thread.join();
  for (const Case& c : cases) {
    CAPTURE(c.fails);
    CAPTURE(static_cast<int>(c.placement));
    CAPTURE(c.culprit);
    CHECK(c.threw);
    CHECK(c.named == 2);
  }
}

TEST_CASE("a server whose update fails tells the others at once, whatever it threw") {
  std::atomic<bool> told{false};
  std::string said, again;
  Threads::World(2).run([&](Threads endpoint) {
    comm::AnyParameterServer exchange(endpoint, {{}, 1, comm::Placement::beside}, options);
    std::vector<float> gradients(40), parameters(40);
    const std::vector<Range> cuts{{0, 40}};
    exchange.open({}, {gradients, parameters, cuts});
    const auto refuse = [](const comm::ServerPart&) { throw std::runtime_error("no state"); };
    try {
      exchange.serve(refuse);
      exchange.finish([](Range, float) {});
    } catch (const CommError& error) {
      said = error.what();
      told = true;
    } catch (const std::runtime_error&) {
      // This rank does something else meanwhile.
      for (int wait = 0; wait < 3'000 && !told; ++wait)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      try {
        exchange.poll();
      } catch (const CommError& error) {
        again = error.what();
      }
    }
  });
  CHECK(said.find("that rank has given up: an update of its parameters has failed (peer rank 1") !=
        std::string::npos);
  CHECK(again.find("has failed before") != std::string::npos);
}

TEST_CASE("an exchange may be moved once it is open") {
  Threads::World(2).run([](Threads endpoint) {
    comm::ParameterServer<Threads> made(endpoint, options);
    std::vector<float> gradients(40, 1.0f), parameters(40);
    const std::vector<Range> cuts{{0, 16}, {16, 40}};
    made.open({}, {gradients, parameters, cuts});
    comm::Any exchange(std::move(made));
    const auto descend = [](const comm::ServerPart& part) {
      for (std::int64_t i = 0; i < part.range.size(); ++i) part.parameters[i] -= part.gradients[i];
    };
    exchange.serve(descend);
    exchange.finish([](Range, float) {});
    exchange.dismiss();
    for (const float p : parameters)
      if (p != -2) throw std::logic_error("other parameters");
  });
}

TEST_CASE("an exchange that is open may be replaced by another") {
  Threads::World(2).run([](Threads endpoint) {
    comm::ParameterServer<Threads> exchange(endpoint, options);
    std::vector<float> gradients(40, 1.0f), parameters(40);
    const std::vector<Range> cuts{{0, 16}, {16, 40}};
    const auto descend = [](const comm::ServerPart& part) {
      for (std::int64_t i = 0; i < part.range.size(); ++i) part.parameters[i] -= part.gradients[i];
    };
    for (const bool replaces : {false, true}) {
      if (replaces) exchange = comm::ParameterServer<Threads>(endpoint, options);
      exchange.open({}, {gradients, parameters, cuts});
      exchange.serve(descend);
      std::fill(gradients.begin(), gradients.end(), 1.0f);
      exchange.finish([](Range, float) {});
      exchange.dismiss();
    }
    for (const float p : parameters)
      if (p != -4) throw std::logic_error("other parameters");
  });
}

TEST_CASE("without sync, the worker on a busy server makes its steps while the others make theirs") {
  std::atomic<int> updates{0};
  int before = 0;  // updates when the worker on the server has made its first step
  Threads::World(4).run([&](const Threads& endpoint) {
    comm::AnyParameterServer exchange(endpoint, {comm::Async::consistency}, options);
    std::vector<float> gradients(40), parameters(40);
    const std::vector<Range> cuts{{0, 40}};
    exchange.open({}, {gradients, parameters, cuts});
    // While an update is made, another worker's gradients come.
    const auto serve = [&](const comm::ServerPart&) {
      ++updates;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    exchange.serve(serve);
    for (int step = 0; step < 100; ++step) {
      exchange.finish([](Range, float) {});
      if (exchange.rank() == 0 && step == 0) before = updates;
    }
    exchange.dismiss();
  });
  CHECK(updates >= 400);
  CHECK(before < updates / 4);
}

TEST_CASE("a training that an exception has ended is followed by another one only between two steps") {
  constexpr std::int64_t count = 100;
  for (const comm::Consistency consistency : {comm::Consistency{}, comm::Consistency{false, 1}})
    for (const int midway : {-1, 0, 1}) {  // a worker whose exception came in the middle of a step
      std::atomic<int> refused = 0;
      Threads::World(2).run([&](Threads endpoint) {
        comm::AnyParameterServer exchange(endpoint, {consistency}, options);
        Buffer<float> gradients(count), parameters(count);
        const std::vector<Range> cuts = {{50, 100}, {0, 50}};
        exchange.open(comm::Fingerprint(), {gradients, parameters, cuts});
        const auto serve = [](const comm::ServerPart&) {};
        const auto step = [&] { exchange.finish([](Range, float) {}); };
        exchange.serve(serve);
        step();
        if (exchange.rank() == midway) exchange.begin(0);
        exchange.barrier();
        try {
          exchange.serve(serve);
          step();
          exchange.dismiss();
        } catch (const CommError& error) {
          ++refused;
          CHECK(
              error.what() ==
              concat("rank ", exchange.rank(),
                     ": parameter server: an exception ended the last fit in the middle of a step; construct "
                     "the trainer again and restore it from a checkpoint"));
          CHECK_THROWS_WITH(exchange.serve(serve), doctest::Contains("this exchange has failed before"));
        }
      });
      CHECK(refused == (midway < 0 ? 0 : 2));
    }
}

TEST_CASE("with sync, workers that make different numbers of steps are told who left") {
  for (const int hurried : {0, 1}) {
    std::atomic<int> named{0};
    const auto all = [&](Threads endpoint) {
      comm::AnyParameterServer exchange(endpoint, {}, {.deadline = Seconds(20)});
      Buffer<float> gradients(1000, exchange.memory()), parameters(1000, exchange.memory());
      const std::vector<Range> cuts{{0, 400}, {400, 1000}};
      exchange.open({}, {gradients, parameters, cuts});
      exchange.serve([](const comm::ServerPart&) {});
      try {
        for (int step = 0; step < (exchange.rank() == hurried ? 2 : 3); ++step)
          exchange.finish([](Range, float) {});
        exchange.dismiss();
      } catch (const CommError& error) {
        named +=
            std::string(error.what()).find(concat("rank ", hurried, " left before")) != std::string::npos;
        throw;
      }
    };
    CHECK_THROWS_AS(Threads::World(2).run(all), CommError);
    CHECK(named == 2);
  }
}

TEST_CASE("a worker that fails while its gradients are read takes them with it") {
  for (const comm::Consistency c : {comm::Sync::consistency, comm::Async::consistency})
    for (int round = 0; round < 10; ++round) {
      std::atomic<int> named{0};
      const auto all = [&](Threads endpoint) {
        comm::AnyParameterServer exchange(endpoint, {c, 2}, {.deadline = Seconds(20), .segment_bytes = 256});
        Buffer<float> gradients(50'000, exchange.memory()), parameters(50'000, exchange.memory());
        const std::vector<Range> cuts{{0, 20'000}, {20'000, 50'000}};
        exchange.open({}, {gradients, parameters, cuts});
        exchange.serve([](const comm::ServerPart&) {});
        exchange.begin(0);
        for (int i = 0; i < round * 4; ++i) exchange.poll();
        if (exchange.rank() == 0) fail("out of patience");
        try {
          for (;;) exchange.finish([](Range, float) {});
        } catch (const CommError& error) {
          named += error.culprit == 0;
          throw;
        }
      };
      CHECK_THROWS_WITH_AS(Threads::World(2).run(all), "out of patience", Error);
      CHECK(named == 1);
    }
}

TEST_CASE("a letter that is not what it should be is refused, and its sender named") {
  using comm::detail::LetterHead, comm::detail::LetterKind, comm::detail::Mailbox;
  struct Wrong {
    LetterKind kind;
    int part, sender;
    std::int64_t count;
    std::size_t bytes;  // of the numbers
    const char* sentence;
  };
  const comm::detail::ServedParts parts{{{0, 32}, 0}, {{32, 48}, 0}};
  for (const Wrong& w : {
           Wrong{LetterKind::push, 0, 0, 32, 128, "a message that is not a parameter server's"},
           Wrong{LetterKind::reply, 0, 1, 32, 128, "a message of kind 3, which is not for a server"},
           Wrong{LetterKind{9}, 0, 1, 32, 128, "a message of kind 9, which is not for a server"},
           Wrong{LetterKind::push, 1, 1, 16, 64, "part 1 where part 0 of 2 was expected"},
           Wrong{LetterKind::push, 0, 1, 16, 64, "16 elements of part 0 where 32 were expected"},
           Wrong{LetterKind::push, 0, 1, 32, 64, "64 bytes for the 32 elements of part 0"},
       }) {
    std::string said;
    Threads::World(2).run([&](const Threads& endpoint) {
      Threads where = endpoint.isolated();
      if (where.rank() == 1) {
        const LetterHead head{.kind = w.kind, .part = w.part, .sender = w.sender, .count = w.count};
        const std::vector<float> numbers(32);
        Threads::Request first, second;
        where.send(first, 0, comm::detail::push_lane, &head, sizeof head);
        where.send(second, 0, comm::detail::push_lane, numbers.data(), w.bytes);
        const Deadline deadline(Seconds(20));
        while (where.departed(0).empty() && !deadline.expired()) std::this_thread::yield();
        return;
      }
      transport::Any end = where;
      Mailbox mail(1, comm::detail::reply_lane, comm::detail::push_lane, parts, false, false, end.in_place(),
                   std::pmr::new_delete_resource());
      try {
        while (mail.open(end) == nullptr || mail.numbers(end, nullptr).empty()) std::this_thread::yield();
      } catch (const CommError& error) {
        if (error.culprit == 1) said = error.what();
      }
      mail.cancel(end);
    });
    CAPTURE(said);
    CHECK(said.find(concat("rank 1 sent ", w.sentence)) != std::string::npos);
  }
}

TEST_CASE("a shard travels in parts that cover each bucket once, in order, none longer than asked for") {
  const std::vector<Range> buckets{{0, 100}, {100, 100}, {112, 5'000}, {5'000, 5'003}};
  for (const std::int64_t most : {16, 100, 1'024, 1 << 20})
    for (int servers = 1; servers <= 5; ++servers) {
      std::vector<int> times(5'003);
      for (int s = 0; s < servers; ++s) {
        const comm::Service service{{}, servers};
        std::int64_t last = 0;
        for (const auto& part : comm::detail::parts_of(service.shard(s, 5'003), buckets, most)) {
          const Range& bucket = buckets[static_cast<std::size_t>(part.bucket)];
          const bool fits = part.range.begin >= std::max(last, bucket.begin) &&
                            part.range.end <= bucket.end && !part.range.empty() &&
                            part.range.size() <= most + 15;
          CHECK(fits);
          last = part.range.end;
          for (auto i = part.range.begin; i < part.range.end; ++i) ++times[static_cast<std::size_t>(i)];
        }
      }
      for (std::int64_t i = 0; i < 5'003; ++i)
        if (times[static_cast<std::size_t>(i)] != (i < 100 || i >= 112)) FAIL_CHECK("element ", i);
    }
}

TEST_CASE("what cannot be served is refused") {
  CHECK_THROWS_WITH_AS(comm::AnyParameterServer(Threads{}, {{}, 2}),
                       "a parameter server needs 1 server in a world of 1, not 2", ConfigError);
  CHECK_THROWS_WITH_AS(comm::Service({{}, 4}).check(3),
                       "a parameter server needs 1 to 3 servers in a world of 3, not 4", ConfigError);
  CHECK_THROWS_WITH_AS(comm::Service({{}, 2, comm::Placement::beside}).check(2),
                       "a parameter server needs 1 server in a world of 2, not 2", ConfigError);
  CHECK_THROWS_WITH_AS(comm::Service({{}, 1, comm::Placement::beside}).check(1),
                       "a parameter server beside its workers needs at least 2 ranks", ConfigError);
  CHECK_THROWS_AS(comm::AnyParameterServer(Threads{}, {{false, -1}, 1}), ConfigError);
}

TEST_CASE("Trainer trains with the optimizer on the servers") {
  const Blobs training(240), test(90, 8);
  const data::DatasetRef set(&training);
  using Plain32 = exec::Reference<f32>;
  const auto trained = [&]<class C>(int ranks, float lr) {
    std::vector<float> result;
    double accuracy = 0;
    std::atomic<std::size_t> bytes{0};
    Threads::World(ranks).run([&](const Threads& endpoint) {
      Trainer<Plain, optim::Adam, C, Plain32> trainer{{.batch = 12, .optimizer = {.lr = lr}}, endpoint};
      const auto report = trainer.fit(set, {.epochs = 4, .validate = &test, .log = nullptr});
      trainer.fit(set, {.epochs = 1, .log = nullptr});
      bytes += trainer.optimizer_state_bytes();
      if (trainer.rank() != 0) return;
      accuracy = report.epochs.back().test.accuracy.value();
      const auto parameters = trainer.exec().parameters();
      result.assign(parameters.begin(), parameters.end());
    });
    return std::tuple(result, accuracy, bytes.load());
  };
  using namespace comm;
  const auto [ordered, accuracy, bytes] = trained.operator()<Reproducible<Ring<Threads>>>(3, 0.01f);
  const auto [among, among_accuracy, among_bytes] =
      trained.operator()<ParameterServer<Threads, Sync, 2>>(3, 0.01f);
  const auto [beside, beside_accuracy, beside_bytes] =
      trained.operator()<ParameterServer<Threads, Sync, 1, Placement::beside>>(4, 0.01f);
  CHECK(ordered == among);
  CHECK(ordered == beside);
  CHECK(accuracy > 0.9);
  CHECK(among_bytes == bytes / 3);
  CHECK(beside_bytes == bytes / 3);
  CHECK(std::get<1>(trained.operator()<ParameterServer<Threads, Async>>(3, 0.003f)) > 0.85);
  CHECK(std::get<1>(trained.operator()<ParameterServer<Threads, Stale<2>, 2>>(3, 0.003f)) > 0.85);
}

TEST_CASE("servers stand beside the workers where an option says so") {
  Threads::World(3).run([](Threads endpoint) {
    comm::Any any = comm::make("ps", endpoint, {.deadline = Seconds(20)}, {.servers_beside = true});
    const bool serves = endpoint.rank() == 2;
    if (any.workers() != 2 || any.role() != (serves ? comm::Role::server : comm::Role::worker))
      throw std::logic_error("of three ranks the last is to serve the others");
    Buffer<float> gradients(100), parameters(100);
    const std::vector<Range> cuts{{0, 100}};
    any.open({}, {gradients, parameters, cuts});
    std::fill(gradients.begin(), gradients.end(), 1.0f);
    const auto serve = [&](const comm::ServerPart& part) { *part.parameters = *part.gradients; };
    any.serve(serve);
    if (serves) return;
    any.finish([](Range, float) {});
    if (parameters[0] != 2) throw std::logic_error("the server has not got both workers' gradients");
    any.dismiss();
  });
}

TEST_CASE("servers are chosen by name") {
  Threads::World(2).run([](Threads endpoint) {
    for (const char* policy : {"ps", "ps-async", "ps-stale"}) {
      comm::Choice choice{.servers = 2};
      if (std::string_view(policy) == "ps-stale") choice.staleness = 1;
      comm::Any any = comm::make(policy, endpoint, {.deadline = Seconds(20)}, choice);
      if (any.policy() != policy || any.lockstep() != (std::string_view(policy) == "ps"))
        throw std::logic_error(policy);
      Buffer<float> gradients(1000, any.memory()), parameters(1000, any.memory());
      const std::vector<Range> cuts{{0, 1000}};
      any.open({}, {gradients, parameters, cuts});
      const auto serve = [](const comm::ServerPart&) {};
      any.serve(serve);
      any.finish([](Range, float) {});
      any.dismiss();
    }
  });
}
