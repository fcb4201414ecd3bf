// Termination: on SIGTERM, as schedulers send it, or SIGINT, a run ends after the current step.
#pragma once

#include <atomic>
#include <csignal>

namespace examples {

inline std::atomic<bool> told_to_end{false};

/// From here on such a signal sets `told_to_end`. A second SIGINT ends the program at once, for interactive
/// use. A second SIGTERM does not: Slurm signals srun as well as the ranks when a job's time is over, and
/// runs that a second one ended left no checkpoint. SIGKILL ends a program that does not end itself.
inline void end_when_told() {
  for (const int signal : {SIGTERM, SIGINT})
    std::signal(signal, [](int which) {
      told_to_end = true;
      if (which == SIGINT) std::signal(which, SIG_DFL);
    });
}

}  // namespace examples
