// A CSV table with a line for each step; a field of an unknown value is empty. A run that resumes goes on in
// the table of the run before.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/train/report.hpp>

namespace examples {

class StepLog {
 public:
  /// Writes no file if `path` is empty. A row of data holds `per_row` of `unit`; if `per_row` is 0, the unit
  /// has no column. A step is `accumulate` of the steps of `batches`. If the run `resumes`, the lines of an
  /// existing file are kept as far as they log the rows before the run's first step. The file is unchanged
  /// until the first step, because a run that is refused must not destroy the table of the run before.
  /// Without `computes`, losses and norms are unknown. Throws ConfigError if the file of a run that resumes
  /// has other columns.
  StepLog(const std::string& path, const std::string& unit, double per_row,
          const convoy::data::BatchPlan& batches, int accumulate, bool resumes, bool computes)
      : path_(path), per_row_(per_row), batches_(batches), accumulate_(accumulate), computes_(computes) {
    if (path.empty()) return;
    std::string columns = "step,epoch,rows,loss,accuracy,lr,grad_norm,seconds,samples_per_sec";
    if (per_row_ > 0) columns += "," + unit + "_per_sec";
    columns += ",mean_samples_per_sec,first_row";
    if (resumes && std::filesystem::is_regular_file(path) && std::filesystem::file_size(path) > 0) {
      std::ifstream file(path);
      std::string first;
      std::getline(file, first);
      goes_on_ = !file.eof();  // if the columns are not a whole line, there is nothing to keep
      if (first != columns)
        convoy::fail<convoy::ConfigError>(path, " begins with \"", first, "\" and not with \"", columns,
                                          "\", so that a run that resumes cannot go on in it");
    }
    file_.reset(std::fopen(path.c_str(), "a"));
    if (file_ == nullptr) convoy::fail(path, " cannot be written: ", std::strerror(errno));
    columns_ = std::move(columns);
  }

  void operator()(const convoy::train::StepReport& r) {
    if (file_ == nullptr) return;
    if (!std::exchange(begun_, true)) begin(r);
    std::fprintf(file_.get(), "%lld,%d,%lld,", static_cast<long long>(r.step), r.epoch,
                 static_cast<long long>(r.rows));
    field(computes_ ? std::optional(r.loss) : std::nullopt);
    field(r.accuracy);
    std::fprintf(file_.get(), "%.9g,", static_cast<double>(r.lr));
    field(computes_ ? r.gradient_norm : std::nullopt);
    const double rate = static_cast<double>(r.rows) / r.seconds;
    std::fprintf(file_.get(), "%.6g,%.6g,", r.seconds, rate);
    if (per_row_ > 0) std::fprintf(file_.get(), "%.6g,", rate * per_row_);
    std::fprintf(file_.get(), "%.6g,%lld\n", r.samples_per_sec, static_cast<long long>(first_row(r)));
    // Flushed after each step, for readers of the running file, and so that a full disk is noticed.
    if (std::fflush(file_.get()) != 0) convoy::fail(path_, " cannot be written: ", std::strerror(errno));
  }

 private:
  void begin(const convoy::train::StepReport& first) const {
    if (goes_on_) return cut(first);
    if (std::filesystem::is_regular_file(path_)) std::filesystem::resize_file(path_, 0);  // not a pipe
    std::fprintf(file_.get(), "%s\n", columns_.c_str());
  }
  /// The row of the epoch with which a step begins. Every rank of an unsharded run has its own rows, so that
  /// each counts them alone.
  std::int64_t first_row(const convoy::train::StepReport& r) const {
    return batches_.first_sample(r.step_in_epoch * accumulate_);
  }
  /// Removes the lines from step `first` on, which the run before logged after the checkpoint, and a line
  /// that it did not end. Compares rows, because another number of ranks numbers the steps anew.
  void cut(const convoy::train::StepReport& first) const {
    std::ifstream file(path_);
    std::string line;
    std::getline(file, line);
    auto kept = static_cast<std::uintmax_t>(line.size() + 1);
    int epoch = 0;
    long long row = 0;
    while (std::getline(file, line) && !file.eof()) {
      const std::size_t last = std::min(line.rfind(','), line.size());
      if (std::sscanf(line.c_str(), "%*d,%d,", &epoch) != 1 ||
          std::sscanf(line.c_str() + last, ",%lld", &row) != 1 || epoch > first.epoch ||
          (epoch == first.epoch && row >= first_row(first)))
        break;
      kept += line.size() + 1;
    }
    std::filesystem::resize_file(path_, kept);
  }
  void field(const std::optional<double>& value) {
    if (value) std::fprintf(file_.get(), "%.9g", *value);
    std::fputc(',', file_.get());
  }
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_, columns_;
  double per_row_;
  convoy::data::BatchPlan batches_;
  int accumulate_;
  bool computes_;
  bool goes_on_ = false;  ///< in the table of the run before
  bool begun_ = false;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace examples
