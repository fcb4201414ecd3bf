// Log: the lines that rank 0 prints during a fit.
#pragma once

#include <cstdint>
#include <cstdio>
#include <ostream>
#include <string_view>

#include <convoy/train/report.hpp>

namespace convoy::train {

/// Prints `Step200: 100.71 data/sec, loss:0.43210, lr:0.001` every `every` completed steps. The rate is the
/// mean since the start of the fit. If a row holds `per_row` of `unit`, their rate comes after it:
/// `, 12890.88 words/sec`. The norm of the gradient, if it is known, comes last: `, gradient norm:0.731`.
inline void log_step(std::ostream& out, const StepReport& report, std::int64_t every = 200,
                     double per_row = 0, std::string_view unit = {}) {
  if (every <= 0 || (report.step + 1) % every != 0) return;
  char line[96];
  std::snprintf(line, sizeof line, "Step%lld: %.2f data/sec", static_cast<long long>(report.step + 1),
                report.samples_per_sec);
  out << line;
  if (per_row > 0) {
    std::snprintf(line, sizeof line, ", %.2f ", report.samples_per_sec * per_row);
    out << line << unit << "/sec";
  }
  std::snprintf(line, sizeof line, ", loss:%.5f, lr:%.4g", report.loss, static_cast<double>(report.lr));
  out << line;
  if (report.gradient_norm) {
    std::snprintf(line, sizeof line, ", gradient norm:%.4g", *report.gradient_norm);
    out << line;
  }
  out << '\n' << std::flush;
}

/// Prints `Epoch 0 in 543.88 sec, test time 13.77 sec, test accuracy:0.86263, test loss:0.43210`, without the
/// accuracy if there is none; the training loss if there is no validation set. The model's metrics follow:
/// `, top3:0.99100`.
inline void log_epoch(std::ostream& out, const EpochReport& report) {
  char line[160];
  if (report.test.accuracy)
    std::snprintf(line, sizeof line,
                  "Epoch %d in %.2f sec, test time %.2f sec, test accuracy:%.5f, test loss:%.5f",
                  report.epoch, report.seconds, report.test.seconds, *report.test.accuracy, report.test.loss);
  else if (report.test.rows > 0)
    std::snprintf(line, sizeof line, "Epoch %d in %.2f sec, test time %.2f sec, test loss:%.5f", report.epoch,
                  report.seconds, report.test.seconds, report.test.loss);
  else
    std::snprintf(line, sizeof line, "Epoch %d in %.2f sec, loss:%.5f", report.epoch, report.seconds,
                  report.loss);
  out << line;
  for (const MetricValue& metric : report.test.metrics) {
    std::snprintf(line, sizeof line, ":%.5f", metric.value);
    out << ", " << metric.name.view() << line;
  }
  out << '\n' << std::flush;
}

}  // namespace convoy::train
