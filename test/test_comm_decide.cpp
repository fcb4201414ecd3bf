// SANITIZE: address thread
// ALONE
// Rules that decide over the whole gradient before they update: every policy gives the same bits and one
// decision per step, and a skipped step leaves no trace.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "comm_decide.hpp"
#include "sanitized.hpp"
#include <convoy/comm/policy/hierarchical.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/transport/group.hpp>

using namespace convoy;
using transport::Threads;
using Local = transport::Group<Threads>;

template <>
struct comm::NodeOf<Local, Threads> {
  static Nodes nodes(const Threads& world) {
    std::vector<int> node_of;
    for (int r = 0; r < world.size(); ++r) node_of.push_back(r / 2);
    return Nodes(node_of);
  }
  static Local local(const Threads& world, const Nodes& nodes) {
    return Local(world, nodes.members(nodes.node_of(world.rank())));
  }
};

namespace {

const comm::Options small{.deadline = Seconds(20), .segment_bytes = 64, .window = 2};
constexpr std::int64_t count = 3'001;

// How many ranks end with the expected parameters, whether they decide at once or ask for another round.
// `make(endpoint)` returns the Comm.
template <class Make>
int right(int ranks, int workers, const Make& make) {
  const auto bits = decide::trained(workers, count);
  std::atomic<int> right{0};
  Threads::World(ranks).run([&](Threads endpoint) {
    bool all = true;
    for (const int rounds : {1, 2}) {
      auto exchange = make(endpoint);
      const auto parameters = decide::train(exchange, count, {1}, rounds);
      all = all && (endpoint.rank() >= workers ? parameters.empty() : oracle::same_bits(parameters, bits));
    }
    right += all;
  });
  return right;
}

template <class C>
void check() {
  for (const int ranks : {1, 2, 3, 5}) {
    if (sanitized && ranks % 2 == 0) continue;
    CAPTURE(C::policy());
    CAPTURE(ranks);
    CHECK(right(ranks, ranks, [](Threads endpoint) { return C(endpoint, small); }) == ranks);
  }
}

}  // namespace

TEST_CASE("what is expected clips in some steps and not in others") {
  const auto whole = decide::trained(3, count, {}), none = decide::trained(3, count, {0, 1, 2, 3});
  CHECK(none[7] == 7.0f);
  CHECK(whole != none);
  CHECK(decide::trained(3, count, {1}) != whole);
}

TEST_CASE_TEMPLATE("all-reduces clip and skip, each rank for itself", C, comm::Ring<Threads>,
                   comm::HalvingDoubling<Threads>, comm::Tree<Threads>, comm::Direct<Threads>,
                   comm::Hierarchical<comm::Ring<Threads>, comm::Tree<Threads>, schedule::Every<2>>,
                   comm::Hierarchical<comm::Direct<Local>, comm::Ring<Threads>>,
                   comm::Hierarchical<comm::Ring<Local>, comm::Tree<Threads>>,
                   comm::Reproducible<comm::Ring<Threads>>,
                   comm::Compressed<comm::Ring<Threads>, comm::codec::F16>) {
  check<C>();
}

TEST_CASE_TEMPLATE("shards add up what each of them saw before they clip", C,
                   comm::Sharded<comm::Ring<Threads>>, comm::Sharded<comm::Tree<Threads>>,
                   comm::Sharded<comm::Direct<Threads>>,
                   comm::Sharded<comm::Reproducible<comm::Ring<Threads>>>) {
  check<C>();
}

TEST_CASE("wrappers and a single rank clip and skip") {
  CHECK(right(1, 1, [](Threads) { return comm::None{}; }) == 1);
  CHECK(right(1, 1, [](Threads) { return comm::Any{}; }) == 1);
  CHECK(right(3, 3, [](Threads endpoint) {
          return comm::Weighted<comm::Ring<Threads>>({.weights = {1, 2, 3}}, endpoint, small);
        }) == 3);
  CHECK(right(3, 3, [](Threads endpoint) {
          return comm::Background<comm::Sharded<comm::Ring<Threads>>>(endpoint, small);
        }) == 3);
  CHECK(right(3, 3, [](Threads endpoint) {
          return comm::Any(comm::Background<comm::Any>(comm::Tree<Threads>(endpoint, small)));
        }) == 3);
}

TEST_CASE("servers decide together, with fewer parts under way than a step has") {
  for (const int workers : {1, 2, 4})
    for (const int servers : {1, 2, 3})
      for (const comm::Placement placement : {comm::Placement::among, comm::Placement::beside}) {
        const bool among = placement == comm::Placement::among;
        if (among && servers > workers) continue;
        if (sanitized && workers + servers != 4) continue;
        const int ranks = workers + (among ? 0 : servers);
        CAPTURE(workers);
        CAPTURE(servers);
        CAPTURE(among);
        CHECK(right(ranks, workers, [&](Threads endpoint) {
                return comm::AnyParameterServer(endpoint, {{}, servers, placement}, small);
              }) == ranks);
      }
}

TEST_CASE("servers without a rule that decides do not, and those that cannot say so") {
  static_assert(comm::never_decides<comm::ParameterServer<Threads, comm::Async>>);
  static_assert(comm::never_decides<comm::ParameterServer<Threads, comm::Stale<3>>>);
  static_assert(!comm::never_decides<comm::ParameterServer<Threads>>);
  static_assert(!comm::never_decides<comm::Ring<Threads>> && !comm::never_decides<comm::Any>);
  using Wrapped = comm::Wrapper<comm::Wrapper<comm::ParameterServer<Threads, comm::Async>>>;
  static_assert(comm::never_decides<Wrapped>);
  static_assert(!comm::never_decides<comm::Wrapper<comm::ParameterServer<Threads>>>);
  decide::OnServer rule;
  for (const auto& [consistency, policy] :
       {std::pair{comm::Async::consistency, "ps-async"}, {comm::Stale<3>::consistency, "ps-stale"}}) {
    comm::AnyParameterServer served(Threads{}, {consistency}, small);
    CHECK(!served.decides());
    CHECK_THROWS_WITH_AS(served.serve(rule),
                         ("comm \"" + std::string(policy) +
                          "\" applies each worker's gradients on arrival, so that no rule can decide over "
                          "the whole gradient of a step; use ps")
                             .c_str(),
                         ConfigError);
  }
}

TEST_CASE("a worker that knows of no rule is named by the server that has one") {
  std::vector<int> culprits(3, -1);
  std::atomic<int> said{0};
  try {
    Threads::World(3).run([&](Threads endpoint) {
      comm::AnyParameterServer exchange(endpoint, {}, small);
      std::vector<float> arena(100);
      const Range whole[] = {{0, 100}};
      exchange.open({}, {arena, arena, whole});
      decide::OnServer rule;
      const auto plain = [](const comm::ServerPart&) {};
      const comm::ServerUpdate update =
          exchange.rank() == 1 ? comm::ServerUpdate(plain) : comm::ServerUpdate(rule);
      try {
        exchange.serve(update);
        exchange.begin(0);
        exchange.finish([](Range, float) {});
      } catch (const CommError& error) {
        culprits[static_cast<std::size_t>(endpoint.rank())] = error.culprit;
        said += std::string(error.what())
                    .find(
                        "rank 1 expects no rule to decide over the whole gradient, and "
                        "the server on rank 0 has one") != std::string::npos;
        throw;
      }
    });
  } catch (const Error&) {
  }
  CHECK(said >= 1);
  CHECK(culprits[0] == 1);
  CHECK(culprits[2] == 1);
}

TEST_CASE("servers that wait for one another name who holds them up") {
  // Rank 2 never begins; the servers are on ranks 0 and 1.
  std::vector<int> culprits(3, -1);
  std::atomic<int> ended{0};
  try {
    Threads::World(3).run([&](Threads endpoint) {
      const comm::Options quick{.deadline = Seconds(1), .segment_bytes = 64, .window = 2};
      comm::AnyParameterServer exchange(endpoint, {{}, 2, comm::Placement::among}, quick);
      std::vector<float> arena(100);
      const Range whole[] = {{0, 100}};
      exchange.open({}, {arena, arena, whole});
      decide::OnServer rule;
      exchange.serve(rule);
      if (endpoint.rank() == 2) {
        const Deadline enough(Seconds(20));
        while (ended < 2 && !enough.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      try {
        exchange.begin(0);
        exchange.finish([](Range, float) {});
      } catch (const CommError& error) {
        culprits[static_cast<std::size_t>(endpoint.rank())] = error.culprit;
      }
      ++ended;
    });
  } catch (const Error&) {
  }
  CHECK(culprits[0] == 2);
  CHECK(culprits[1] == 2);
}

namespace {

// Copies an exchange's state, and writes the copy into another exchange.
struct StateOf final : comm::StateVisitor {
  std::map<std::string, std::vector<float>, std::less<>> floats;
  std::map<std::string, std::int64_t, std::less<>> numbers;
  bool restores = false;

  void arena(std::string_view name, std::span<float> values) override { this->values(name, values); }
  void values(std::string_view name, std::span<float> values) override {
    auto& kept = floats[std::string(name)];
    if (restores)
      std::copy(kept.begin(), kept.end(), values.begin());
    else
      kept.assign(values.begin(), values.end());
  }
  void counter(std::string_view name, std::int64_t& number) override {
    auto& kept = numbers[std::string(name)];
    (restores ? number : kept) = restores ? kept : number;
  }
  void common(std::string_view name, std::int64_t& number) override { counter(name, number); }
  bool writes() const override { return restores; }
};

// Trains with some steps whose gradients are bad and skipped; the others must be as if there were no bad
// steps. With `resumes`, another exchange goes on before each bad step.
template <class Codec>
void check_skips(const Codec& codec, const std::vector<int>& bad_before, bool resumes) {
  constexpr int good_steps = 5, ranks = 2;
  const comm::Matrix matrices[] = {{{0, 2'400}, 40, 60}};
  std::vector<std::vector<float>> results(2 * ranks);
  for (const bool with_bad : {false, true})
    Threads::World(ranks).run([&](Threads endpoint) {
      using Exchange = comm::Compressed<comm::Ring<Threads>, Codec>;
      Buffer<float> gradients(count), parameters(count);
      const Range cuts[] = {{0, 2'500}, {2'500, count}};
      std::optional<Exchange> exchange;
      const auto open = [&] {
        exchange.emplace(endpoint, small, codec);
        exchange->open({}, {gradients, parameters, cuts, matrices});
      };
      open();
      struct Rule {
        bool skips = false;
        std::span<float> parameters, gradients;
        std::vector<double> sums = {0.0};
        bool decides() const { return true; }
        void arrived(Range, float) {}
        std::span<double> partial() { return sums; }
        bool decide() { return !skips; }
        void update(Range r, float) {
          for (auto i = r.begin; !skips && i < r.end; ++i)
            parameters[static_cast<std::size_t>(i)] -= gradients[static_cast<std::size_t>(i)];
        }
      } rule;
      rule.parameters = parameters;
      rule.gradients = gradients;
      const auto make_step = [&](int step, bool bad) {
        const auto mine = oracle::input<float>(exchange->rank(), count, static_cast<std::uint64_t>(step));
        std::copy(mine.begin(), mine.end(), gradients.begin());
        for (std::size_t i = 0; bad && i < 200; ++i)
          gradients[i * 11] =
              i % 3 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
        rule.skips = bad;
        exchange->begin(0);
        exchange->begin(1);
        exchange->finish(rule);
      };
      const auto resume = [&] {
        StateOf state;
        exchange->visit_state(state);
        exchange->close();
        open();
        state.restores = true;
        exchange->visit_state(state);
      };
      for (int step = 0; step < good_steps; ++step) {
        for (const int before : bad_before)
          if (with_bad && before == step) {
            if (resumes) resume();
            make_step(100 + step, true);
          }
        make_step(step, false);
      }
      results[static_cast<std::size_t>(2 * exchange->rank() + (with_bad ? 1 : 0))].assign(parameters.begin(),
                                                                                          parameters.end());
    });
  CAPTURE(Codec::name);
  for (const auto& result : results) {
    CHECK(oracle::same_bits(result, results[0]));
    bool finite = true;
    for (const float p : result) finite = finite && std::isfinite(p);
    CHECK(finite);
  }
}

}  // namespace

TEST_CASE("a skipped step leaves nothing in error feedback: later steps are as if there had been none") {
  namespace codec = comm::codec;
  for (const bool resumes : {false, true})
    for (const std::vector<int>& bad : {std::vector<int>{0}, {2}, {3, 3}, {0, 1, 4}}) {
      CAPTURE(resumes);
      check_skips(codec::Bf16{}, bad, resumes);
      check_skips(codec::F16{}, bad, resumes);
      check_skips(codec::Int8{}, bad, resumes);
      check_skips(codec::TopK{.fraction = 0.01, .warm_up_steps = 0}, bad, resumes);
      check_skips(codec::TopK{.fraction = 0.01, .warm_up_steps = 2}, bad, resumes);
      check_skips(codec::PowerSgd{.rank = 2, .warm_up_steps = 0}, bad, resumes);
      check_skips(codec::PowerSgd{.rank = 2, .warm_up_steps = 2}, bad, resumes);
    }
}
