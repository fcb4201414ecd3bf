// Counters: how far a training has come.
#pragma once

#include <cstdint>

namespace convoy::train {

/// Numbers of a training that are the same on all ranks and that checkpoints keep.
struct Counters {
  std::int64_t steps = 0;  ///< optimizer steps since construction or, if resumed, since the training began
  /// How many steps the learning-rate schedule is ahead of `steps`: the steps of a resumed fit may have
  /// another size than those before.
  std::int64_t schedule_lead = 0;
  /// In how many epochs all fits so far have made a step, the fit under way included.
  std::int64_t epochs_begun = 0;
  double lr_factor = 1;  ///< what the rate of the schedule is multiplied by
};

}  // namespace convoy::train
