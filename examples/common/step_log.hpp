// A table with a line for each step, in comma-separated values.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <convoy/core/error.hpp>
#include <convoy/train/report.hpp>

namespace examples {

class StepLog {
 public:
  /// No file where `path` is empty. A row of data holds `per_row` of `unit`.
  StepLog(const std::string& path, const std::string& unit, double per_row) : path_(path), per_row_(per_row) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), "w"));
    if (file_ == nullptr) convoy::fail(path, " cannot be written: ", std::strerror(errno));
    std::fprintf(file_.get(), "step,epoch,rows,loss,accuracy,lr,seconds,samples_per_sec,%s_per_sec\n",
                 unit.c_str());
  }

  void operator()(const convoy::train::StepReport& r) {
    if (file_ == nullptr) return;
    std::fprintf(file_.get(), "%lld,%d,%lld,%.9g,%.9g,%.9g,%.6g,%.6g,%.6g\n", static_cast<long long>(r.step),
                 r.epoch, static_cast<long long>(r.rows), r.loss, r.accuracy, static_cast<double>(r.lr),
                 r.seconds, r.samples_per_sec, r.samples_per_sec * per_row_);
    // A line is there when its step is over, for those who watch, and so that a full disk is noticed.
    if (std::fflush(file_.get()) != 0) convoy::fail(path_, " cannot be written: ", std::strerror(errno));
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  double per_row_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace examples
