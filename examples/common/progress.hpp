// A progress bar on a terminal; nothing elsewhere, where the log's lines suffice.
#pragma once

#include <cstdio>

#include <unistd.h>

#include <convoy/train/report.hpp>

namespace examples {

class ProgressBar {
 public:
  explicit ProgressBar(bool wanted) : shown_(wanted && isatty(STDERR_FILENO) != 0) {}

  void operator()(const convoy::train::StepReport& report) const {
    if (!shown_) return;
    constexpr int width = 32;
    const std::int64_t done = report.step_in_epoch + 1;
    const int filled = static_cast<int>(width * done / report.steps_per_epoch);
    std::fprintf(stderr, "\repoch %d [%.*s%*s] %lld/%lld  loss %.4f  %.0f samples/s ", report.epoch, filled,
                 "################################", width - filled, "", static_cast<long long>(done),
                 static_cast<long long>(report.steps_per_epoch), report.loss, report.samples_per_sec);
    if (done == report.steps_per_epoch) std::fputs("\r\033[K", stderr);
  }

 private:
  bool shown_;
};

}  // namespace examples
