// NEEDS: cuda
// LABELS: cuda gpu
// TIMEOUT: 300
// CudaPeer with two ranks on one GPU.
#include "comm_peer_ranks.hpp"

namespace {
[[maybe_unused]] const bool prepared = (convoy::device::let_ranks_share_gpus(), true);
}  // namespace
