// Shares: the fraction of a batch that each worker takes, in proportion to weights.
#pragma once

#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <cstddef>

#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>
#endif

namespace convoy::comm {

/// The workers' shares, which sum to 1, in proportion to their weights. Throws ConfigError unless there is
/// one weight per worker, all are finite, none is negative and their sum is positive and finite; `what` names
/// a weight in the error sentence.
std::vector<double> shares_of(std::vector<double> weights, int workers, std::string_view what);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::vector<double> shares_of(std::vector<double> weights, int workers,
                                              std::string_view what) {
  if (weights.size() != static_cast<std::size_t>(workers))
    fail<ConfigError>("weighted: ", counted(weights.size(), "weight"), " for ", counted(workers, "worker"),
                      "; give one to each");
  double total = 0;
  for (std::size_t r = 0; r < weights.size(); ++r) {
    if (!(weights[r] >= 0) || !is_finite(weights[r]))
      fail<ConfigError>("weighted: ", what, " of rank ", r, " is ", weights[r],
                        "; it must be a number that is not negative");
    total += weights[r];
  }
  if (!(total > 0) || !is_finite(total))
    fail<ConfigError>("weighted: the sum of all ", weights.size(), " weights is ", total,
                      ", so there are no shares");
  for (double& weight : weights) weight /= total;
  return weights;
}
#endif

}  // namespace convoy::comm
