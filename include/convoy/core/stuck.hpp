// The end of a process in which a call neither returns nor can be abandoned.
#pragma once

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <cstdio>
#include <cstdlib>
#endif

namespace convoy {

/// With this code exits a process in which a call is stuck.
inline constexpr int stuck_exit_code = 86;

/// Ends the process at once with `stuck_exit_code`. The caller has written to stderr which call is stuck.
[[noreturn, gnu::cold]] void end_stuck_process();

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void end_stuck_process() {
  std::fflush(stderr);
  std::_Exit(stuck_exit_code);
}
#endif

}  // namespace convoy
