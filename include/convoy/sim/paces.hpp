// Paces: the factors by which each worker is slower than the times in Work.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/comm/shares.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/sim/setting.hpp>

namespace convoy::sim {

/// The factors of all ranks of a setting, of which the first `workers` compute. Forward and backward of a
/// step share one random factor of mean 1, which is lognormal, so that it is always positive.
class Paces {
 public:
  Paces(const Setting& setting, int workers) : seed_(setting.seed) {
    const double spread = setting.cluster.jitter;
    sigma_ = std::sqrt(std::log1p(spread * spread));
    for (const Nodes& some : setting.cluster.nodes)
      update_.insert(update_.end(), static_cast<std::size_t>(some.count * some.ranks), 1 / some.speed);
    pace_ = update_;
    const Exchange& exchange = setting.exchange;
    if (!exchange.weighted && exchange.weights.empty()) return;
    if (exchange.weighted && !exchange.weights.empty())
      fail<ConfigError>(
          "weighted takes the shares from the workers' speeds, and weights gives them; choose one of the "
          "two");
    std::vector<double> weights = exchange.weights;
    for (int rank = 0; exchange.weighted && rank < workers; ++rank)
      weights.push_back(1 / update_[static_cast<std::size_t>(rank)]);
    const std::vector<double> shares = comm::shares_of(weights, workers, "the weight");
    for (std::size_t rank = 0; rank < shares.size(); ++rank) pace_[rank] *= shares[rank] * workers;
  }

  /// The factor of forward and backward.
  double of(int rank, int step) const {
    const double pace = pace_[static_cast<std::size_t>(rank)];
    if (sigma_ == 0) return pace;
    Philox numbers(seed_, static_cast<std::uint64_t>(rank) << 32 | static_cast<std::uint32_t>(step));
    return pace * std::exp(sigma_ * numbers.normal() - sigma_ * sigma_ / 2);
  }
  /// The factor of updates, which do not depend on the batch.
  double of_update(int rank) const { return update_[static_cast<std::size_t>(rank)]; }

 private:
  std::uint64_t seed_;
  double sigma_ = 0;
  std::vector<double> pace_, update_;
};

}  // namespace convoy::sim
