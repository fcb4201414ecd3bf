// optim_bench: times whole steps of each optimizer over more parameters than caches hold, and a copy. Names
// are optim/<rule>/<parameters>/threads:<n>. A step's bytes are those of its passes over parameters,
// gradients and state, including norms if a rule needs them; copy_share is their rate over that of a copy by
// as many threads in the same process. optim/muon/<rows>x<columns>/threads:<n> is a step over one matrix,
// reported in GFLOPS because matrix products dominate it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "run.hpp"
#include <convoy/core/clock.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/optim/ema.hpp>
#include <convoy/optim/lookahead.hpp>
#include <convoy/optim/registry.hpp>

using namespace convoy;

namespace {

constexpr std::int64_t count = 1 << 24;

std::vector<float> numbers(std::uint64_t seed) {
  std::vector<float> values(count);
  Philox random(seed);
  for (float& v : values) v = random.uniform(-1, 1);
  return values;
}

/// Bytes per second read and written by a copy, the best of 10 rounds.
double copy_rate(int threads) {
  static const std::vector<float> from = numbers(1);
  static std::vector<float> to = from;
  double best = 0;
  for (int round = 0; round < 10; ++round) {
    const Stopwatch watch;
    parallel(threads, [&](int thread, int team) {
      const Range mine = share(count, thread, team, 1024);
      std::memcpy(to.data() + mine.begin, from.data() + mine.begin,
                  static_cast<std::size_t>(mine.size()) * sizeof(float));
    });
    benchmark::DoNotOptimize(to.data());
    best = std::max(best, 2.0 * count * sizeof(float) / watch.seconds());
  }
  return best;
}

void copy(benchmark::State& state, int threads) {
  double best = 0;
  for (auto _ : state) best = std::max(best, copy_rate(threads));
  state.counters["GBps"] = best * 1e-9;
}

/// The number of passes of a step over arrays of as many floats as there are parameters.
template <class R>
double passes(const optim::Guard& guard) {
  using Rule = optim::Optimizer<R>;
  double arrays = 3 + 2 * R::slots;  // parameters and state read and written, gradients read
  if (Rule::has_direction()) arrays += 1 + 2 + R::slots;
  if (Rule::per_tensor_norms() && !Rule::has_direction()) arrays += 2;
  if (guard.decides() && (Rule::has_direction() || !Rule::per_tensor_norms())) arrays += 1;
  return arrays;
}

template <class R>
void step(benchmark::State& state, int threads, const optim::Guard& guard) {
  memory::Host space(std::pmr::new_delete_resource(), threads);
  // Four tensors, whose lengths are not multiples of a vector.
  std::vector<optim::ArenaTensor> tensors;
  for (std::int64_t at = 0; at < count; at += count / 4) tensors.push_back({{at, at + count / 4 - 5}, {}, 0});
  optim::Arena<R> arena(space, {}, tensors, std::vector<optim::Group>{{}}, guard);
  const Range whole{0, count};
  arena.own({&whole, 1});
  std::vector<float> parameters = numbers(1), gradients = numbers(2);
  std::int64_t number = 0;
  const auto once = [&] {
    arena.begin(++number, 1e-3f);
    for (bool deciding = arena.decides(); deciding;) {
      arena.arrived(whole, 1.0f, parameters.data(), gradients.data());
      deciding = arena.decide(parameters.data()) == Decision::again;
    }
    arena.update(whole, 1.0f, parameters.data(), gradients.data());
  };
  once();  // first touch of the state's pages
  double best = 1e9;
  for (auto _ : state) {
    const Stopwatch watch;
    once();
    best = std::min(best, watch.seconds());
  }
  const double rate = passes<R>(guard) * count * sizeof(float) / best;
  state.counters["GBps"] = rate * 1e-9;
  state.counters["copy_share"] = rate / copy_rate(threads);
}

/// A step of Muon over a weight of GPT-2's feed-forward layers.
void matrix_step(benchmark::State& state, int threads) {
  constexpr std::int64_t rows = 768, columns = 3072;
  const optim::Muon::Options options;
  memory::Host space(std::pmr::new_delete_resource(), threads);
  const optim::ArenaTensor tensor{{0, rows * columns}, {}, 0, rows};
  optim::Arena<optim::Muon> arena(space, options, {&tensor, 1}, std::vector<optim::Group>{{}});
  arena.own({&tensor.live, 1});
  std::vector<float> parameters = numbers(1), gradients = numbers(2);
  double best = 1e9;
  for (auto _ : state) {
    const Stopwatch watch;
    arena.begin(1, 1e-3f);
    arena.update(tensor.live, 1.0f, parameters.data(), gradients.data());
    best = std::min(best, watch.seconds());
  }
  // An iteration computes X X', (X X')^2, and their weighted sum times X.
  const double flops = options.iterations * 2.0 * rows * rows * (2.0 * columns + rows);
  state.counters["GFLOPS"] = flops / best * 1e-9;
}

template <class R>
void add(const optim::Guard& guard = {}, const std::string& guarded = "") {
  for (const int threads : {1, 2})
    benchmark::RegisterBenchmark(("optim/" + std::string(R::name) + guarded + "/" + std::to_string(count) +
                                  "/threads:" + std::to_string(threads))
                                     .c_str(),
                                 [=](benchmark::State& state) { step<R>(state, threads, guard); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
  for (const int threads : {1, 2})
    benchmark::RegisterBenchmark(
        ("copy/" + std::to_string(count) + "/threads:" + std::to_string(threads)).c_str(),
        [=](benchmark::State& state) { copy(state, threads); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  optim::Rules::for_each([]<class R>(std::type_identity<R>) {
    if constexpr (!optim::Optimizer<R>::takes_matrices()) add<R>();
  });
  for (const int threads : {1, 2})
    benchmark::RegisterBenchmark(("optim/muon/768x3072/threads:" + std::to_string(threads)).c_str(),
                                 [=](benchmark::State& state) { matrix_step(state, threads); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  const optim::Guard clipping{.max_norm = 1};
  add<optim::AdamW>(clipping, "+clip");
  add<optim::Lamb>(clipping, "+clip");
  add<optim::Ema<optim::AdamW>>();
  add<optim::Lookahead<optim::AdamW>>();
  return bench::run(argc, argv);
}
