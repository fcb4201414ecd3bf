// The report that an example trainer prints and writes at its end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <convoy/train/report.hpp>

namespace examples {

/// The facts of one run.
struct Summary {
  std::string model, comm, codec, transport, device, precision, products, data;
  std::string arenas = "plain";  ///< how the exchange accesses them (comm::Access)
  std::string unit = {};         ///< what a row holds `per_row` of
  double per_row = 0;            ///< 0: nothing that is counted
  int world = 1;                 ///< ranks that compute
  int batch_per_rank = 0, threads = 1;
  std::vector<double> shares;  ///< of a batch; empty: equal
  std::int64_t parameters = 0;
  std::optional<std::int64_t> sent_bytes = {};               ///< by rank 0, in all steps; none: not counted
  double exchange_ms = 0;                                    ///< of a step, alone; 0: not measured
  std::vector<std::pair<std::string, std::string>> options;  ///< of the trainer, by name
  convoy::train::FitReport fit;
};

/// Prints the summary as a table.
void print_table(const Summary& summary);

/// Writes the summary as one JSON object to a file beside `path`, and renames it.
void write_json(const Summary& summary, const std::string& path);

}  // namespace examples
