// StageProfile: the time spent so far in each stage of a plan.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace convoy::exec::host {

/// The seconds of one direction of a stage.
struct Timing {
  double total = 0, fastest = 0;
  std::int64_t runs = 0;

  void take(double seconds) {
    fastest = runs == 0 ? seconds : std::min(fastest, seconds);
    total += seconds;
    ++runs;
  }
};

/// The name, kernels and times so far of a stage.
struct StageProfile {
  std::string name, implementation;
  Timing forward, backward;
};

}  // namespace convoy::exec::host
