// Runs the registered benchmarks and says how a benchmark program ends.
#pragma once

#include <cstddef>
#include <exception>
#include <iostream>

#include <benchmark/benchmark.h>

#include "../examples/common/printed.hpp"

namespace bench {

/// The exit status: 1 for an unknown option, for a filter that selects no case, and for results that the
/// standard output did not take.
inline int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  const std::size_t cases = benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  try {
    examples::expect_printed();
  } catch (const std::exception& error) {
    std::cerr << argv[0] << ": " << error.what() << '\n';
    return 1;
  }
  return cases == 0;  // a filter that selects none is a mistake
}

}  // namespace bench
