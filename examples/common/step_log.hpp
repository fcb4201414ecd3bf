// A CSV table with a line for each step; a field of an unknown value is empty.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include <convoy/core/error.hpp>
#include <convoy/train/report.hpp>

namespace examples {

class StepLog {
 public:
  /// Writes no file if `path` is empty. A row of data holds `per_row` of `unit`; if the unit is "samples", it
  /// has no separate column.
  StepLog(const std::string& path, const std::string& unit, double per_row)
      : path_(path), per_row_(unit == "samples" ? 0 : per_row) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), "w"));
    if (file_ == nullptr) convoy::fail(path, " cannot be written: ", std::strerror(errno));
    std::fputs("step,epoch,rows,loss,accuracy,lr,grad_norm,seconds,samples_per_sec", file_.get());
    if (per_row_ > 0) std::fprintf(file_.get(), ",%s_per_sec", unit.c_str());
    std::fputc('\n', file_.get());
  }

  void operator()(const convoy::train::StepReport& r) {
    if (file_ == nullptr) return;
    std::fprintf(file_.get(), "%lld,%d,%lld,%.9g,", static_cast<long long>(r.step), r.epoch,
                 static_cast<long long>(r.rows), r.loss);
    field(r.accuracy);
    std::fprintf(file_.get(), "%.9g,", static_cast<double>(r.lr));
    field(r.gradient_norm);
    std::fprintf(file_.get(), "%.6g,%.6g", r.seconds, r.samples_per_sec);
    if (per_row_ > 0) std::fprintf(file_.get(), ",%.6g", r.samples_per_sec * per_row_);
    std::fputc('\n', file_.get());
    // Flushed after each step, for readers of the running file, and so that a full disk is noticed.
    if (std::fflush(file_.get()) != 0) convoy::fail(path_, " cannot be written: ", std::strerror(errno));
  }

 private:
  void field(const std::optional<double>& value) {
    if (value) std::fprintf(file_.get(), "%.9g", *value);
    std::fputc(',', file_.get());
  }
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  double per_row_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace examples
