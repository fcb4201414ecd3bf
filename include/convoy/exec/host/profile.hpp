// StageProfile: what the stages of a plan cost so far.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace convoy::exec::host {

/// Seconds that one direction of a stage took.
struct Timing {
  double total = 0, fastest = 0;
  std::int64_t runs = 0;

  void take(double seconds) {
    fastest = runs == 0 ? seconds : std::min(fastest, seconds);
    total += seconds;
    ++runs;
  }
};

/// What a stage cost so far, and the kernels that it runs.
struct StageProfile {
  std::string name, implementation;
  Timing forward, backward;
};

}  // namespace convoy::exec::host
