// The sources of measurements that calibration knows: which columns their files have, what is known of their
// hardware and of how they exchanged, and which numbers are not known.
#pragma once

#include <string>
#include <vector>

#include "csv.hpp"
#include <convoy/sim/calibrate.hpp>

namespace bench {

/// A file of measurements.
struct Measurements {
  convoy::sim::Source source;
  std::vector<convoy::sim::Cell> cells;  ///< repeats made one, in the order of their first rows
  std::vector<std::string> columns;
};

/// Reads a file of measurements; its columns say which source it is of. Repeats of a setting are made one by
/// the source's own statistic (the median, or the mean of run times), averages that the file states are left
/// out. Throws ConfigError, in one sentence, for columns of no known source, for a field that is none, and
/// for a workload that nothing is known of.
Measurements read_measurements(const std::string& file);
/// The same for rows that were read already.
Measurements measurements_of(const Csv& csv, const std::string& file);

/// The setting that a text names: `nodes=2,gpus=4,batch=32` with a `model=` or `dataset=` where the source
/// has several, or `lm1_gpus=1,lm6_gpus=2` where its machines have names. A batch that is not said is that of
/// the measurements, if all have the same. Throws ConfigError for what the source cannot have.
convoy::sim::Cell cell_of(const Measurements& measurements, const std::string& text);

/// Samples a second of all workers of a cell whose step takes so many seconds.
inline double throughput(const convoy::sim::Cell& cell, double seconds) {
  return static_cast<double>(cell.batch) * cell.workers() / seconds;
}

}  // namespace bench
