// The sources of measurements that calibration knows: the columns of their files, what is known of their
// hardware and exchange, and which numbers are unknown.
#pragma once

#include <string>
#include <vector>

#include "csv.hpp"
#include <convoy/sim/calibrate.hpp>

namespace bench {

/// A file of measurements.
struct Measurements {
  convoy::sim::Source source;
  std::vector<convoy::sim::Cell> cells;  ///< repeats merged, in the order of their first rows
  std::vector<std::string> columns;
};

/// Reads a file of measurements; its columns determine the source. Repeats of a setting are merged by the
/// source's statistic (the median, or the mean of run times); averages in the file are left out. Throws
/// ConfigError for columns of no known source, an invalid field, and an unknown workload.
Measurements read_measurements(const std::string& file);
/// The same for rows that have been read already.
Measurements measurements_of(const Csv& csv, const std::string& file);

/// The setting that a text names: `nodes=2,gpus=4,batch=32` with a `model=` or `dataset=` if the source has
/// several, or `lm1_gpus=1,lm6_gpus=2` if its machines have names. Without `batch`, the batch is that of the
/// measurements, if all have the same. Throws ConfigError for a setting that the source cannot have.
convoy::sim::Cell cell_of(const Measurements& measurements, const std::string& text);

/// Samples per second of all workers of a cell whose step takes `seconds`.
inline double throughput(const convoy::sim::Cell& cell, double seconds) {
  return static_cast<double>(cell.batch) * cell.workers() / seconds;
}

}  // namespace bench
