// Setting: what is simulated.
#pragma once

#include <cstdint>

#include <convoy/sim/cluster.hpp>
#include <convoy/sim/exchange.hpp>
#include <convoy/sim/work.hpp>

namespace convoy::sim {

/// A training on a cluster.
struct Setting {
  Cluster cluster;
  Work work;
  Exchange exchange;
  int steps = 0;           ///< number of steps; 0: as many as a mean needs
  std::uint64_t seed = 1;  ///< of the jitter

  static constexpr void fields(auto& self, auto&& field) {
    field("cluster", self.cluster);
    field("work", self.work);
    field("exchange", self.exchange);
    field("steps", self.steps);
    field("seed", self.seed);
  }
};

}  // namespace convoy::sim
