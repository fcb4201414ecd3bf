// Options of an exchange: what every policy on a transport takes, beside options of its own.
#pragma once

#include <cstddef>

#include <convoy/comm/schedule/price.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/fields.hpp>

namespace convoy::comm {

/// How an exchange is carried out.
struct Options {
  Seconds deadline{60};           ///< for every wait, from the last progress
  std::size_t segment_bytes = 0;  ///< how long the messages of a long block are; 0: as suits the transport
  int window = 0;                 ///< segments under way at a time between two ranks; 0: likewise
  schedule::CostModel cost{};     ///< what Auto reckons with, on rank 0 alone; all zero: measured

  static constexpr void fields(auto& self, auto&& field) {
    field("deadline", self.deadline, convoy::fields::local);
    field("segment_bytes", self.segment_bytes);
    field("window", self.window);
    field("cost", self.cost, convoy::fields::local);
  }
};

}  // namespace convoy::comm
