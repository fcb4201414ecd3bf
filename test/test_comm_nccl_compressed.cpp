// EMULATES: nccl
// TIMEOUT: 300
// ALONE
// GPU gradients that travel encoded over NCCL: the bits of Compressed on the host, the state carried from
// step to step, and what is refused. Kernels run on the CPU; ranks are threads.
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "comm_oracle.hpp"
#include "device_of_tests.hpp"
#include "emulation/nccl.hpp"
#include "sanitized.hpp"
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/nccl_compressed.cuh>
#include <convoy/comm/transport/threads.hpp>

namespace {

using namespace device_test;
using transport::Threads;
namespace codec = comm::codec;

template <class Codec>
using OnGpus = comm::Compressed<comm::Nccl<TestSpace>, Codec>;
template <class Codec>
using OnHosts = comm::Compressed<comm::Ring<Threads>, Codec>;

static_assert(comm::Comm<OnGpus<codec::Bf16>> && comm::Comm<OnGpus<codec::Int8>> &&
              comm::Comm<OnGpus<codec::TopK>>);
static_assert(comm::works_in<OnGpus<codec::Int8>, TestSpace> &&
              !comm::works_in<OnGpus<codec::Int8>, memory::Host>);

// With one warm-up step.
template <class Codec>
Codec made() {
  if constexpr (std::is_same_v<Codec, codec::TopK>)
    return {.fraction = 0.03, .warm_up_steps = 1};
  else
    return {};
}

/// The state that an exchange carries, by name.
class State final : public comm::StateVisitor {
 public:
  explicit State(bool writes = false) : writes_(writes) {}
  std::map<std::string, std::vector<float>, std::less<>> numbers;
  std::map<std::string, std::int64_t, std::less<>> counters;

  bool writes() const override { return writes_; }
  void arena(std::string_view name, std::span<float> values) override { this->values(name, values); }
  void values(std::string_view name, std::span<float> values) override {
    std::vector<float>& mine = numbers[std::string(name)];
    if (writes_)
      std::copy(mine.begin(), mine.end(), values.begin());
    else
      mine.assign(values.begin(), values.end());
  }
  void counter(std::string_view name, std::int64_t& number) override {
    (writes_ ? number : counters[std::string(name)]) = writes_ ? counters[std::string(name)] : number;
  }
  void common(std::string_view, std::int64_t&) override { throw Error("nothing is common"); }

  friend bool operator==(const State& a, const State& b) {
    return a.numbers == b.numbers && a.counters == b.counters;
  }
  State to_write() const {
    State copy = *this;
    copy.writes_ = true;
    return copy;
  }

 private:
  bool writes_;
};

// The steps of a test, and their decisions.
struct Plan {
  std::int64_t count = 3'000;
  int first = 0, end = 4;       // the range of steps
  std::set<int> deciding = {};  // steps in which a rule decides,
  std::set<int> skipped = {};   // and those that it skips, since rank 0 overflows
};

struct Rule {
  bool deciding, skips;
  bool decides() const { return deciding; }
  void arrived(Range, float) {}
  std::span<double> partial() { return {}; }
  bool decide() { return !skips; }
  void update(Range, float) {}
};

std::vector<float> gradients(const Plan& plan, int rank, int step) {
  auto values = oracle::input<float>(rank, plan.count, static_cast<std::uint64_t>(step));
  if (rank == 0 && plan.skipped.contains(step)) {
    values[7] = std::numeric_limits<float>::infinity();
    values[1'000] = std::numeric_limits<float>::quiet_NaN();
  }
  return values;
}

// The results of a rank: the sums of each step, and the state after it.
struct Seen {
  std::vector<std::vector<float>> sums;
  std::vector<State> states;
};
using Ranks = std::vector<Seen>;

template <class Codec>
Ranks on_hosts(int ranks, const Plan& plan, const Codec& codec, const Ranks* from = nullptr) {
  Ranks all(static_cast<std::size_t>(ranks));
  Threads::World(ranks).run([&](Threads endpoint) {
    const int me = endpoint.rank();
    Seen& seen = all[static_cast<std::size_t>(me)];
    OnHosts<Codec> comm(endpoint, {.deadline = Seconds(20)}, codec);
    Buffer<float> arena(static_cast<std::size_t>(plan.count)), parameters(arena.size());
    const auto cuts = oracle::buckets(plan.count);
    comm.open({}, {arena, parameters, cuts});
    if (from != nullptr) {
      State state = (*from)[static_cast<std::size_t>(me)].states.back().to_write();
      comm.visit_state(state);
    }
    for (int step = plan.first; step < plan.end; ++step) {
      const auto values = gradients(plan, me, step);
      std::copy(values.begin(), values.end(), arena.begin());
      for (std::size_t b = 0; b < cuts.size(); ++b) comm.begin(static_cast<int>(b));
      Rule rule{plan.deciding.contains(step), plan.skipped.contains(step)};
      comm.finish(rule);
      seen.sums.emplace_back(arena.begin(), arena.end());
      comm.visit_state(seen.states.emplace_back());
    }
  });
  return all;
}

template <class Codec>
Ranks on_gpus(int ranks, const Plan& plan, const Codec& codec, const Ranks* from = nullptr) {
  Ranks all(static_cast<std::size_t>(ranks));
  all_well(run<OnGpus<Codec>>(
      ranks,
      [&](OnGpus<Codec>& comm, TestSpace& space) {
        Seen& seen = all[static_cast<std::size_t>(comm.rank())];
        Arenas arenas(space, plan.count);
        const comm::Closing closing(comm);
        comm.open(comm::Fingerprint(), arenas.layout());
        if (from != nullptr) {
          State state = (*from)[static_cast<std::size_t>(comm.rank())].states.back().to_write();
          comm.visit_state(state);
        }
        for (int step = plan.first; step < plan.end; ++step) {
          const auto values = gradients(plan, comm.rank(), step);
          for (std::size_t b = 0; b < arenas.buckets.size(); ++b) {
            const Range r = arenas.buckets[b];
            space.write(arenas.gradients.data() + r.begin, values.data() + r.begin,
                        static_cast<std::size_t>(r.size()) * sizeof(float));
            if (b > 0) comm.begin(static_cast<int>(b), space.mark());  // bucket 0 begins last
            comm.poll();
          }
          Rule rule{plan.deciding.contains(step), plan.skipped.contains(step)};
          comm.finish(rule);
          std::vector<float> sums(values.size());
          space.read(sums.data(), arenas.gradients.data(), arenas.gradients.bytes());
          seen.sums.push_back(sums);
          comm.visit_state(seen.states.emplace_back());
        }
      },
      {}, codec));
  return all;
}

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Checks that sums and state have the host's bits. Sums that NCCL computes, in 16 bits and in warm-up steps,
// are rounded in another order.
template <class Codec>
void agree(const Ranks& gpus, const Ranks& hosts, const Plan& plan) {
  REQUIRE(gpus.size() == hosts.size());
  for (std::size_t r = 0; r < gpus.size(); ++r) {
    CAPTURE(r);
    REQUIRE(gpus[r].sums.size() == hosts[r].sums.size());
    for (std::size_t step = 0; step < gpus[r].sums.size(); ++step) {
      CAPTURE(step);
      const auto &mine = gpus[r].sums[step], &theirs = hosts[r].sums[step], &first = gpus[0].sums[step];
      std::size_t wrong = 0, apart = 0;
      const bool warms_up = plan.first + static_cast<int>(step) < made<Codec>().warm_up();
      const float unit = warms_up                             ? 0x1p-24f
                         : std::is_same_v<Codec, codec::Bf16> ? 0x1p-8f
                         : std::is_same_v<Codec, codec::F16>  ? 0x1p-11f
                                                              : 0.0f;
      for (std::size_t i = 0; i < mine.size(); ++i) {
        // Each addition rounds by at most half a unit in the last place of the sum of magnitudes.
        const auto n = static_cast<float>(gpus.size());
        const bool near = std::abs(mine[i] - theirs[i]) <= 2 * n * n * unit;
        wrong += same(mine[i], theirs[i]) || near ? 0 : 1;
        apart += same(mine[i], first[i]) ? 0 : 1;
      }
      CHECK(wrong == 0);
      CHECK(apart == 0);
      CHECK(gpus[r].states[step] == hosts[r].states[step]);
    }
  }
  for (const int step : plan.skipped) {
    const auto& sums = gpus[0].sums[static_cast<std::size_t>(step - plan.first)];
    CHECK(!std::isfinite(sums[7]));
    CHECK(!std::isfinite(sums[1'000]));
  }
}

}  // namespace

TYPE_TO_STRING(codec::Bf16);
TYPE_TO_STRING(codec::F16);
TYPE_TO_STRING(codec::Int8);
TYPE_TO_STRING(codec::TopK);

#define EVERY_CODEC codec::Bf16, codec::F16, codec::Int8, codec::TopK

TEST_CASE_TEMPLATE("steps are those of the host, in worlds of each size", Codec, EVERY_CODEC) {
  for (const int ranks : {1, 2, 3, 4})
    for (const std::int64_t count : {40, 3'000, 10'011}) {
      if (sanitized && (ranks == 2 || count > 5'000)) continue;
      CAPTURE(ranks);
      CAPTURE(count);
      const Plan plan{.count = count};
      agree<Codec>(on_gpus(ranks, plan, made<Codec>()), on_hosts(ranks, plan, made<Codec>()), plan);
    }
}

TEST_CASE_TEMPLATE("a step that is skipped leaves nothing in what is carried on", Codec, EVERY_CODEC) {
  const Plan plans[] = {
      {.end = 6, .deciding = {0, 1, 2, 3, 4, 5}, .skipped = {2, 4}},
      // The first step in which a rule decides follows steps without a rule, whose leftovers must be
      // discarded.
      {.end = 5, .deciding = {2, 3}, .skipped = {2}},
      // In warm-up steps nothing is dropped.
      {.end = 3, .deciding = {0, 1, 2}, .skipped = {0}},
  };
  for (const Plan& plan : plans)
    for (const int ranks : {1, 3}) {
      CAPTURE(ranks);
      CAPTURE(plan.end);
      const Ranks gpus = on_gpus(ranks, plan, made<Codec>());
      agree<Codec>(gpus, on_hosts(ranks, plan, made<Codec>()), plan);
    }
}

TEST_CASE_TEMPLATE("a run goes on from its state, on GPUs and on hosts", Codec, EVERY_CODEC) {
  const int ranks = 3;
  const Plan whole, begin{.end = 2}, rest{.first = 2};
  const Ranks expected = on_gpus(ranks, whole, made<Codec>()), half = on_gpus(ranks, begin, made<Codec>()),
              half_there = on_hosts(ranks, begin, made<Codec>());
  for (const Ranks& again :
       {on_gpus(ranks, rest, made<Codec>(), &half), on_gpus(ranks, rest, made<Codec>(), &half_there)})
    for (std::size_t r = 0; r < again.size(); ++r) {
      CHECK(again[r].sums.back() == expected[r].sums.back());
      CHECK(again[r].states.back() == expected[r].states.back());
    }
  agree<Codec>(expected, expected, whole);
  const Ranks there = on_hosts(ranks, rest, made<Codec>(), &half);
  for (std::size_t r = 0; r < there.size(); ++r) CHECK(there[r].states.back() == expected[r].states.back());
}

TEST_CASE_TEMPLATE("a rule clips and skips in the stream, and the host is told", Codec, EVERY_CODEC) {
  struct Told : device_test::Rule {
    using Rule::Rule;
    Decision decide() {
      const Decision decision = Rule::decide();
      if (decision == Decision::again) return decision;
      return factor() > 0 ? Decision::apply : Decision::skip;
    }
  };
  const std::int64_t count = 3'000;
  const Codec codec = [] {
    if constexpr (std::is_same_v<Codec, codec::TopK>)
      return codec::TopK{.fraction = 0.1, .warm_up_steps = 0};
    else
      return Codec{};
  }();
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    std::vector<std::vector<float>> expected(static_cast<std::size_t>(ranks));
    Threads::World(ranks).run([&](Threads endpoint) {
      OnHosts<Codec> comm(endpoint, {.deadline = Seconds(20)}, codec);
      expected[static_cast<std::size_t>(comm.rank())] = decide::train(comm, count);
    });
    // Small integers are exact in 16 bits.
    if (codec::Reduced<Codec>) CHECK(expected[0] == decide::trained(ranks, count));
    std::atomic<int> right = 0;
    all_well(run<OnGpus<Codec>>(
        ranks,
        [&](OnGpus<Codec>& comm, TestSpace& space) {
          Arenas arenas(space, count);
          const comm::Closing closing(comm);
          comm.open(comm::Fingerprint(), arenas.layout());
          Told rule(arenas, 1);
          for (int step = 0; step < decide::steps; ++step) {
            for (std::size_t b = 0; b < arenas.buckets.size(); ++b)
              comm.begin(static_cast<int>(b), arenas.compute(b, comm.rank(), step));
            comm.finish(rule);
          }
          right += arenas.result() == expected[static_cast<std::size_t>(comm.rank())] ? 1 : 0;
        },
        {}, codec));
    CHECK(right == ranks);
  }
}

TEST_CASE_TEMPLATE("streams fall behind, blocks run in any order, and the host touches no memory of a GPU",
                   Codec, EVERY_CODEC) {
  const Plan plan{.deciding = {0, 1, 2, 3}, .skipped = {1}};
  const Ranks usual = on_gpus(2, plan, made<Codec>());
  const auto check = [&](const Ranks& other) {
    for (std::size_t r = 0; r < other.size(); ++r) {
      CHECK(other[r].states.back() == usual[r].states.back());
      CHECK(other[r].sums.back() == usual[r].sums.back());
    }
  };
  {
    const emulation::With other(
        {.blocks = emulation::Order::shuffled, .threads = emulation::Order::backward});
    check(on_gpus(2, plan, made<Codec>()));
  }
  {
    const emulation::With late({.late = true, .devices = 2, .closed_to_host = false});
    check(on_gpus(2, plan, made<Codec>()));
  }
}

TEST_CASE("memory is registered, and given back where an exchange is opened once more") {
  using C = OnGpus<codec::TopK>;
  std::atomic<int> registered = 0;
  all_well(run<C>(2, [&](C& comm, TestSpace& space) {
    Arenas first(space, 2'000), second(space, 500);
    const comm::Closing closing(comm);
    for (Arenas* arenas : {&first, &second}) {
      comm.open(comm::Fingerprint(), arenas->layout());
      for (std::size_t b = 0; b < arenas->buckets.size(); ++b)
        comm.begin(static_cast<int>(b), arenas->compute(b, comm.rank(), 0));
      comm.finish([](Range, float) {});
      comm.barrier();
      registered = emulation::nccl_counts.registrations.load();
      comm.barrier();
      space.synchronize();
    }
  }));
  CHECK(registered == 4);  // encoded buffers, and the gradients of warm-up steps
  CHECK(emulation::nccl_counts.registrations == 0);
  CHECK(emulation::nccl_counts.communicators == 0);
}

TEST_CASE("bytes that travel are those of the encoding") {
  const auto bytes = [](auto codec) {
    using C = OnGpus<decltype(codec)>;
    std::atomic<std::int64_t> sent = 0;
    all_well(run<C>(
        4,
        [&](C& comm, TestSpace& space) {
          const auto before = comm.traffic();
          train(comm, space, 40'000, 1);
          if (comm.rank() == 0) sent = comm.traffic().bytes - before.bytes;
        },
        {}, codec));
    return static_cast<double>(sent) / (2 * 3 * 40'000);
  };
  CHECK(bytes(codec::Bf16{}) == 0.5);
  const double int8 = bytes(codec::Int8{});
  CHECK(int8 > 0.25);
  CHECK(int8 < 0.31);
  const double topk = bytes(codec::TopK{.fraction = 0.01, .warm_up_steps = 0});
  CHECK(topk > 0.01 * 2 * 2);  // one pair of index and value for each place, from each of two ranks
  CHECK(topk < 0.05);
  CHECK(bytes(codec::TopK{.fraction = 0.01, .warm_up_steps = 1}) == 1);
}

TEST_CASE("options that cannot be are refused, and ranks that differ are named") {
  using C = OnGpus<codec::TopK>;
  for (const std::string& sentence : run<C>(
           2, [](C&, TestSpace&) {}, {}, codec::TopK{.fraction = 2}))
    CHECK(sentence == "topk keeps a fraction of the gradients above 0 and up to 1, not 2");
  Table table(2);
  std::atomic<int> named = 0;
  const auto body = [&](int rank) {
    TestSpace space;
    C comm(AtTable(table, rank), {}, {.warm_up_steps = rank});
    Arenas arenas(space, 64);
    const comm::Closing closing(comm);
    try {
      comm.open(comm::Fingerprint(), arenas.layout());
    } catch (const ConfigError& error) {
      named += std::string_view(error.what()) ==
               "rank 1 differs from rank 0 in comm codec.warm_up_steps: 1 instead of 0";
    }
  };
  std::thread other(body, 1);
  body(0);
  other.join();
  CHECK(named == 2);
}

TEST_CASE_TEMPLATE("a rank that does not come is noticed by the others, who say in what", Codec,
                   EVERY_CODEC) {
  using C = OnGpus<Codec>;
  std::atomic<int> over = 0;
  const auto sentences = run<C>(
      3, [&](C& comm, TestSpace& space) { go_without_rank_1(comm, space, over); }, {.deadline = Seconds(0.3)},
      made<Codec>());
  CHECK(sentences[1] == "left");
  const std::string what = codec::Scattered<Codec> ? "all-to-all" : "all-reduce";  // topk is in its warm-up
  for (const std::size_t r : {std::size_t{0}, std::size_t{2}}) {
    CAPTURE(sentences[r]);
    CHECK(contains(sentences[r],
                   concat("rank ", r, ": nccl ", what, " of bucket 0: rank 1 did not come within")));
  }
  CHECK(emulation::nccl_counts.communicators == 0);
}
