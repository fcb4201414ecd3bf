// A GPU whose kernels run on the CPU, with memory that the host may touch: closing it takes most of the time
// of a test, and one test of each exchange does so. The space of comm_device.hpp.
#pragma once

#include "emulation/emulation.hpp"
#include <convoy/memory/device.cuh>

namespace device_test {
using TestSpace = convoy::memory::Device;
[[maybe_unused]] inline const bool open_to_host = (emulation::settings.closed_to_host = false, true);
}  // namespace device_test

#include "comm_device.hpp"
