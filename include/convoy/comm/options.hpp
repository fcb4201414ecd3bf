// Options common to all policies on a transport.
#pragma once

#include <cstddef>

#include <convoy/comm/schedule/price.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/fields.hpp>

namespace convoy::comm {

/// How an exchange is carried out. The exchange throws ConfigError for a value out of range.
struct Options {
  Seconds deadline{60};           ///< limit of every wait, counted from the last progress
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
