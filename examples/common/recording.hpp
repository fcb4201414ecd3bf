// Recording: the times of a run's operations, for replays of the run.
#pragma once

#include <cstdint>
#include <string>

#include <unistd.h>

#include <convoy/core/error.hpp>
#include <convoy/exec/host/recorder.hpp>
#include <convoy/io/profile.hpp>
#include <convoy/train/report.hpp>

namespace examples {

/// Records the steps of an Exec that measures its stages; with any other Exec, does nothing. Leaves out the
/// first steps, in which memory is first touched and caches are filled, and steps with fewer rows.
template <class Exec>
class Recording {
 public:
  /// A full step has `rows` of this rank and `global_rows` of all ranks. `exec` and `plan` must outlive it.
  Recording(Exec& exec, const convoy::Plan& plan, int rows, std::int64_t global_rows)
      : exec_(exec), recorder_(plan, rows), global_rows_(global_rows) {}

  void operator()(const convoy::train::StepReport& step) {
    constexpr std::int64_t warm_up = 3;
    if constexpr (measures)
      if (step.step >= warm_up && step.rows == global_rows_)
        recorder_.take(exec_.profile(), step.update_seconds.value_or(0));
    forget();
  }

  /// Drops what ran since the last step, such as an evaluation, so that it does not count for the next step.
  void forget() {
    if constexpr (measures) exec_.reset_profile();
  }

  /// Writes the profile of a model to a file beside `path`, and renames it. Throws ConfigError if there was
  /// no step to record.
  void write(const std::string& path, const std::string& model) const {
    if (recorder_.steps() == 0)
      convoy::fail<convoy::ConfigError>(
          "--profile-out: the run ended without a full step after the first three, which are not recorded");
    char machine[256] = {};
    gethostname(machine, sizeof machine - 1);
    convoy::graph::Profile profile = recorder_.profile(machine, model);
    profile.precision = exec_.precision();
    convoy::io::write_profile(path, profile);
  }

 private:
  static constexpr bool measures = requires(Exec & exec) { exec.reset_profile(); };

  Exec& exec_;
  convoy::exec::host::Recorder recorder_;
  std::int64_t global_rows_;
};

}  // namespace examples
