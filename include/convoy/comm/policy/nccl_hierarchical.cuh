// Hierarchical over GPUs with NCCL inside nodes, between nodes, or both (policy/hierarchical_gpu.cuh).
#pragma once

#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/hierarchical_gpu.cuh>
#include <convoy/comm/policy/nccl.cuh>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/comm/transport/group.hpp>
#include <convoy/memory/space.hpp>

namespace convoy::comm::detail {

/// `Hierarchical<CudaPeer<S>, Nccl<S>>`
template <memory::Space S>
struct Levels<BasicCudaPeer<S, false>, BasicNccl<S, false>, Nodes> {
  using type = TwoLevelsOfGpus<BasicCudaPeer<S, true>, BasicNccl<S, false>>;
};

/// `Hierarchical<Nccl<S>, Nccl<S>>`
template <memory::Space S>
struct Levels<BasicNccl<S, false>, BasicNccl<S, false>, Nodes> {
  using type = TwoLevelsOfGpus<BasicNccl<S, true>, BasicNccl<S, false>>;
};

/// `Hierarchical<Nccl<S>, Ring<transport::Mpi>>`
template <memory::Space S, class Inter, class World>
struct Levels<BasicNccl<S, false>, AllReduce<Algorithm<Inter, World>, true>, Nodes> {
  using type = TwoLevelsOfGpus<BasicNccl<S, true>,
                               Staged<AllReduce<Algorithm<Inter, transport::Group<World>>, true>, S>>;
};

}  // namespace convoy::comm::detail
