// Termination: a run that is told to end (SIGTERM, as schedulers send it, or SIGINT) ends after a step.
#pragma once

#include <atomic>
#include <csignal>

namespace examples {

inline std::atomic<bool> told_to_end{false};

/// From here on the first such signal sets `told_to_end`; a second one ends the program at once.
inline void end_when_told() {
  for (const int signal : {SIGTERM, SIGINT})
    std::signal(signal, [](int which) {
      told_to_end = true;
      std::signal(which, SIG_DFL);
    });
}

}  // namespace examples
