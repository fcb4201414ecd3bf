// Keeper: the interface for keeping the state of a fit, and the position of a fit.
#pragma once

#include <cstdint>
#include <limits>

#include <convoy/core/error.hpp>

namespace convoy::train {

/// The position of a fit between two steps. The same on every rank.
struct FitPosition {
  std::int64_t epoch = 0;     ///< of the next step, or of the evaluation that comes before it; from 0
  std::int64_t next_row = 0;  ///< position in the epoch's order; ranks share this order; with `unsharded`
                              ///< each has its own. Behind the last row, the epoch is not evaluated yet
  std::int64_t steps = 0;     ///< of the fit, in steps of the present size; 0 if unknown
  std::int64_t samples = 0;   ///< of the training set; 0 if unknown
  std::int64_t rows = 0;      ///< rows of the epoch that all ranks together have trained on
  double loss = 0;            ///< sum over these rows
  std::int64_t correct = 0, labels = 0;                   ///< as in StepReport, over these rows
  double best = std::numeric_limits<double>::infinity();  ///< the lowest test loss of an epoch
  std::int64_t waited = 0;                                ///< epochs since that one
  double accuracy = -1;  ///< of the last test; negative: there was none, or the model does not classify

  static constexpr void fields(auto& self, auto&& field) {
    field("epoch", self.epoch);
    field("next_row", self.next_row);
    field("steps", self.steps);
    field("samples", self.samples);
    field("rows", self.rows);
    field("loss", self.loss);
    field("correct", self.correct);
    field("labels", self.labels);
    field("best", self.best);
    field("waited", self.waited);
    field("accuracy", self.accuracy);
  }

  /// Throws ConfigError if the training set has another size, with which the rows of an epoch would come in
  /// another order; 0 stands for an unknown size.
  void expect_samples(std::int64_t there) const {
    if (samples != 0 && there != 0 && samples != there)
      fail<ConfigError>("fit: the fit to resume had a training set of ", samples,
                        " samples and this one has ", there,
                        ", whose order is another; resume with the same set, or begin a new fit");
  }
};

/// Keeps the state of a fit. All ranks make the same calls together.
class Keeper {
 public:
  /// Restores the trainer to the last kept state, if any, and returns the position at which the fit
  /// continues. `samples` is the size of the training set, 0 if this rank does not know it. Throws on all
  /// ranks, and restores nothing, if the kept fit had a set of another size (FitPosition::expect_samples).
  virtual FitPosition resume(std::int64_t samples) = 0;
  /// Whether to keep the state after `steps_done` steps; `epoch_ends`: these are the last of an epoch, which
  /// is not evaluated yet.
  virtual bool due(std::int64_t steps_done, bool epoch_ends) const = 0;
  /// Stores the trainer's state and `position`, or begins to. All ranks call it between two steps.
  virtual void keep(const FitPosition& position) = 0;
  /// Called when the fit has ended; returns once everything kept is stored.
  virtual void finish() = 0;

 protected:
  ~Keeper() = default;
};

}  // namespace convoy::train
