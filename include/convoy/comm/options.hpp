// Options common to all policies on a transport.
#pragma once

#include <cstddef>

#include <convoy/comm/schedule/price.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/fields.hpp>

namespace convoy::comm {

/// How an exchange is carried out. The exchange throws ConfigError for a value out of range.
struct Options {
  /// Limit of every wait of an exchange that has been made, counted from the last progress. The calls of MPI
  /// that make an exchange or a group over Mpi or Shm have the limit of the transport instead, 60 s unless
  /// the transport was made with another. A call that exceeds that limit ends the process.
  Seconds deadline{60};
  std::size_t segment_bytes = 0;  ///< size of the messages of a long block, 64 to 2^28 bytes; 0: chosen for
                                  ///< the transport
  int window = 0;  ///< segments in flight between two ranks, at most half the messages that the transport's
                   ///< channels hold, or 64 if channels have no limit; 0: chosen for the transport
  schedule::CostModel cost{};  ///< the costs that Auto uses, read on rank 0 only; all zero: measured

  static constexpr void fields(auto& self, auto&& field) {
    field("deadline", self.deadline, convoy::fields::local);
    field("segment_bytes", self.segment_bytes);
    field("window", self.window);
    field("cost", self.cost, convoy::fields::local);
  }
};

}  // namespace convoy::comm
