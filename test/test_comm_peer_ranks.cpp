// EMULATES
// TIMEOUT: 300
// The tests of test_comm_peer_gpu.cu, with kernels run on the CPU.
#include "emulation/emulation.hpp"

namespace {
[[maybe_unused]] const bool open_to_host = (emulation::settings.closed_to_host = false, true);
}  // namespace

#include "comm_peer_ranks.hpp"
