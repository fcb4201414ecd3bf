// EMULATES
// TIMEOUT: 300
// What test_comm_peer_gpu.cu does on a GPU, with kernels run on processors.
#include "emulation/emulation.hpp"

namespace {
[[maybe_unused]] const bool open_to_host = (emulation::settings.closed_to_host = false, true);
}  // namespace

#include "comm_peer_ranks.hpp"
