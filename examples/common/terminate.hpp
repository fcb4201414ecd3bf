// Termination: a run that is told to end (SIGTERM, as schedulers send it, or SIGINT) ends after a step.
#pragma once

#include <atomic>
#include <csignal>

namespace examples {

inline std::atomic<bool> told_to_end{false};

/// From here on such a signal sets `told_to_end`. A second SIGINT ends the program at once, for whoever sits
/// before it. A second SIGTERM does not: Slurm signals srun as well as the ranks when a job's time is over,
/// and runs that a second one ended were seen to leave no checkpoint. SIGKILL ends who does not leave.
inline void end_when_told() {
  for (const int signal : {SIGTERM, SIGINT})
    std::signal(signal, [](int which) {
      told_to_end = true;
      if (which == SIGINT) std::signal(which, SIG_DFL);
    });
}

}  // namespace examples
