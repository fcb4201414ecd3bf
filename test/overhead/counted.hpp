// Rounds whose instructions callgrind counts.
#pragma once

#include <cstdlib>

#include <valgrind/callgrind.h>

/// Calls `round` ten times, and then `rounds` times (a program's argument) under callgrind's count.
template <class Round>
void counted(const char* rounds, Round&& round) {
  for (int warm_up = 0; warm_up < 10; ++warm_up) round();
  CALLGRIND_START_INSTRUMENTATION;
  for (int left = std::atoi(rounds); left > 0; --left) round();
  CALLGRIND_STOP_INSTRUMENTATION;
}
