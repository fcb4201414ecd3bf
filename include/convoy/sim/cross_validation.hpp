// Cross-validation: how well a calibration predicts settings that it has not seen. A cell is held out with
// all of its repeats, because predicting a fitted cell proves nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/sim/calibrate.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <convoy/core/philox.hpp>
#endif

namespace convoy::sim {

/// The simulator's prediction for a cell.
struct Prediction {
  Cell cell;
  double seconds = 0;   ///< predicted seconds of a step
  bool fitted = false;  ///< whether the calibration has seen the cell

  /// Relative error of the predicted throughput: predicted / measured - 1; 0 if nothing was measured.
  double error() const { return cell.seconds > 0 ? cell.seconds / seconds - 1 : 0; }
};

/// Absolute relative errors of measured cells that the calibration has not seen.
struct Errors {
  int cells = 0;
  double median = 0;
  double worst = 0;
  std::string worst_cell;
};
Errors errors_of(std::span<const Prediction> predictions);

/// A calibration on some of the cells, and its predictions for all.
struct Trial {
  Fit fit;
  std::vector<Prediction> predictions;  ///< in the order of the cells
};

/// Fits the marked cells and predicts all.
Trial try_out(const Source& source, std::span<const Cell> cells, const std::vector<bool>& fitted);

/// A random half of the cells, rounded up, that determines all parameters. Throws ConfigError, with what is
/// missing, if the cells together do not determine them or none of 1000 random halves does.
std::vector<bool> draw_half(const Source& source, std::span<const Cell> cells, std::uint64_t seed);

/// Predicts each cell by a calibration on all others. A cell without which a parameter would be undetermined
/// is predicted by a calibration on all cells and counts as fitted.
std::vector<Prediction> leave_one_out(const Source& source, std::span<const Cell> cells);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Errors errors_of(std::span<const Prediction> predictions) {
  Errors errors;
  std::vector<double> all;
  for (const Prediction& one : predictions) {
    if (one.fitted || !(one.cell.seconds > 0)) continue;
    const double error = std::abs(one.error());
    all.push_back(error);
    if (error < errors.worst) continue;
    errors.worst = error;
    errors.worst_cell = concat(one.cell);
  }
  std::sort(all.begin(), all.end());
  const std::size_t n = all.size();
  errors.cells = static_cast<int>(n);
  if (n > 0) errors.median = (all[(n - 1) / 2] + all[n / 2]) / 2;
  return errors;
}

CONVOY_FUNCTION Trial try_out(const Source& source, std::span<const Cell> cells,
                              const std::vector<bool>& fitted) {
  std::vector<Cell> seen;
  for (std::size_t i = 0; i < cells.size(); ++i)
    if (fitted[i]) seen.push_back(cells[i]);
  Trial trial{calibrate(source, seen), {}};
  for (std::size_t i = 0; i < cells.size(); ++i)
    trial.predictions.push_back({cells[i], predict(source, trial.fit.values, cells[i]), fitted[i]});
  return trial;
}

CONVOY_FUNCTION std::vector<bool> draw_half(const Source& source, std::span<const Cell> cells,
                                            std::uint64_t seed) {
  if (const std::string missing = unmeasured(source, cells); !missing.empty()) fail<ConfigError>(missing);
  std::vector<std::size_t> order(cells.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  Philox random(seed);
  std::string missing;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    for (std::size_t left = order.size(); left > 1; --left)
      std::swap(order[left - 1], order[random.below(static_cast<std::uint32_t>(left))]);
    std::vector<bool> fitted(cells.size());
    std::vector<Cell> seen;
    for (std::size_t i = 0; i < (order.size() + 1) / 2; ++i) {
      fitted[order[i]] = true;
      seen.push_back(cells[order[i]]);
    }
    missing = unmeasured(source, seen);
    if (missing.empty()) return fitted;
  }
  fail<ConfigError>("none of 1000 random halves of the ", cells.size(),
                    " settings determines all parameters; for the last, ", missing);
}

CONVOY_FUNCTION std::vector<Prediction> leave_one_out(const Source& source, std::span<const Cell> cells) {
  std::vector<Prediction> predictions;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    std::vector<Cell> others(cells.begin(), cells.end());
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    const bool needed = !unmeasured(source, others).empty();
    const Fit fit = calibrate(source, needed ? cells : std::span<const Cell>(others));
    predictions.push_back({cells[i], predict(source, fit.values, cells[i]), needed});
  }
  return predictions;
}
#endif

}  // namespace convoy::sim
