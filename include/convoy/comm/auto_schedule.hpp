// The schedule of comm::Auto on transports that send messages.
#pragma once

#include <convoy/comm/schedule/auto.hpp>
#include <convoy/comm/schedule/halving_doubling.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/schedule/tree.hpp>

namespace convoy::comm {

/// The schedules that comm::Auto chooses from on transports that send messages.
using AutoSchedule = schedule::Auto<schedule::Ring, schedule::HalvingDoubling, schedule::Tree>;

}  // namespace convoy::comm
