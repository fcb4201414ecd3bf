// The schedule that comm::Auto stands for where ranks send messages.
#pragma once

#include <convoy/comm/schedule/auto.hpp>
#include <convoy/comm/schedule/halving_doubling.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/schedule/tree.hpp>

namespace convoy::comm {

/// What Auto chooses among where ranks send messages.
using AutoSchedule = schedule::Auto<schedule::Ring, schedule::HalvingDoubling, schedule::Tree>;

}  // namespace convoy::comm
