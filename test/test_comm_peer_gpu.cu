// NEEDS: cuda
// LABELS: cuda gpu
// TIMEOUT: 300
// CudaPeer with two ranks on one GPU.
#include <cstdlib>

namespace {
// Before CUDA starts: each stream has a queue of its own, and no kernel is loaded while another one waits.
[[maybe_unused]] const int set =
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1) + setenv("CUDA_MODULE_LOADING", "EAGER", 1);
}  // namespace

#include "comm_peer_ranks.hpp"
