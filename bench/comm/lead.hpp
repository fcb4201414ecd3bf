// Rank 0 runs Google Benchmark; the other ranks follow its commands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "work.hpp"
#include <convoy/comm/registry.hpp>
#include <convoy/core/error.hpp>

namespace bench {

/// Google Benchmark's name, time and counters for case `i`.
inline void report(Runner& runner, std::size_t i) {
  benchmark::RegisterBenchmark(runner.cases()[i].name.c_str(), [&runner, i](benchmark::State& state) {
    const auto iterations = static_cast<std::int64_t>(state.max_iterations);
    const Timing timing = runner.time(static_cast<std::int64_t>(i), iterations);
    const Work& work = runner.work();
    std::size_t done = 0;
    const auto batch = static_cast<std::size_t>(work.batch);
    for (auto _ : state) state.SetIterationTime(timing.seconds[done++ / batch] / work.batch);
    const double seconds = Timing::median(timing.seconds) / work.batch;
    const double bound = timing.bare.empty() ? work.bound : Timing::median(timing.bare) / work.batch;
    const double rate = static_cast<double>(work.bytes) / seconds * 1e-9;
    state.counters["algbw_GBps"] = rate;
    state.counters["busbw_GBps"] = rate * work.bus;
    if (bound > 0) state.counters["bound_percent"] = 100 * bound / seconds;
  })->UseManualTime();
}

template <class T>
void take_part(const T& where, std::vector<Case> cases, std::vector<char*> arguments) {
  Runner runner(convoy::comm::make("ring", where, {.deadline = convoy::Seconds(300)}), std::move(cases));
  if (runner.rank() != 0) return runner.follow();
  for (std::size_t i = 0; i < runner.cases().size(); ++i) report(runner, i);
  // Short, because there are some 400 cases; an argument of the command line comes later and overrides it.
  char seconds_a_case[] = "--benchmark_min_time=0.1";
  arguments.insert(arguments.begin() + 1, seconds_a_case);
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  const bool understood = !benchmark::ReportUnrecognizedArguments(count, arguments.data());
  const bool ran = understood && benchmark::RunSpecifiedBenchmarks() > 0;
  benchmark::Shutdown();
  runner.stop();
  if (!understood) convoy::fail<convoy::ConfigError>("there is an unknown option; --help lists all options");
  if (!ran) convoy::fail<convoy::ConfigError>("--benchmark_filter selects no case");
}

}  // namespace bench
