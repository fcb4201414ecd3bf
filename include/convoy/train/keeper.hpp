// Keeper: what keeps the state of a fit, and where a fit stands.
#pragma once

#include <cstdint>
#include <limits>

namespace convoy::train {

/// Where a fit stands between two steps. The same on every rank.
struct FitPosition {
  std::int64_t epoch = 0;
  std::int64_t rows = 0;                                  ///< of the epoch that all ranks have trained on
  double loss = 0;                                        ///< sum over these rows
  std::int64_t correct = 0, labels = 0;                   ///< as in StepReport, of these rows
  double best = std::numeric_limits<double>::infinity();  ///< the lowest test loss of an epoch
  std::int64_t waited = 0;                                ///< epochs since then

  static constexpr void fields(auto& self, auto&& field) {
    field("epoch", self.epoch);
    field("rows", self.rows);
    field("loss", self.loss);
    field("correct", self.correct);
    field("labels", self.labels);
    field("best", self.best);
    field("waited", self.waited);
  }
};

/// What `fit` asks to keep its state. All ranks make the same calls together.
class Keeper {
 public:
  /// Puts the trainer into the state that was kept last, and says where the fit goes on.
  virtual FitPosition resume() = 0;
  /// Whether the state is kept after so many steps, or at the end of an epoch.
  virtual bool due(std::int64_t steps_done, bool epoch_ends) const = 0;
  virtual void keep(const FitPosition& position) = 0;
  /// The fit has ended: returns once all that was kept is safe.
  virtual void finish() = 0;

 protected:
  ~Keeper() = default;
};

}  // namespace convoy::train
