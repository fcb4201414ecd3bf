// A GPU whose kernels run on processors, and whose memory the host may touch: closing it costs most of the
// time of a test, and one test of each exchange has that. The space of comm_device.hpp.
#pragma once

#include "emulation/emulation.hpp"
#include <convoy/memory/device.cuh>

namespace device_test {
using TestSpace = convoy::memory::Device;
[[maybe_unused]] inline const bool open_to_host = (emulation::settings.closed_to_host = false, true);
}  // namespace device_test

#include "comm_device.hpp"
