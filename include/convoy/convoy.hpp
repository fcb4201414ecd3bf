// convoy: includes what most programs need; README.md, "How to include it", lists the headers left out.
//
// Headers that need a library other than the standard library and zlib are included only if the CMake
// component for that library defines the macro tested below.
#pragma once

#include <convoy/core/compiled.hpp>

#ifndef CONVOY_REFUSED
#include <convoy/comm/bootstrap/comm.hpp>
#include <convoy/comm/bootstrap/tcp.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/policy/staged.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/schedule/price_shared.hpp>
#include <convoy/comm/tensors/broadcast.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/comm/tensors/groups.hpp>
#include <convoy/data/data.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/optim/registry.hpp>
#include <convoy/train/checkpoint.hpp>
#include <convoy/train/trainer.hpp>
#include <convoy/train/weights.hpp>

#ifdef CONVOY_HAS_HOST
#include <convoy/exec/host/host.hpp>
#include <convoy/train/usual.hpp>
#endif
#ifdef CONVOY_HAS_MPI
#include <convoy/comm/bootstrap/mpi.hpp>
#include <convoy/comm/policy/native.hpp>
#include <convoy/comm/transport/mpi.hpp>
#if defined(__linux__)
#include <convoy/comm/policy/hierarchical_mpi.hpp>
#include <convoy/comm/transport/shm.hpp>
#endif
#endif
#ifdef __CUDACC__
#ifdef CONVOY_HAS_CUDA
#include <convoy/comm/policy/cuda_peer.cuh>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/hierarchical_gpu.cuh>
#include <convoy/comm/registry.cuh>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/optim/device.cuh>
#endif
#ifdef CONVOY_HAS_NCCL
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/nccl.cuh>
#include <convoy/comm/policy/nccl_compressed.cuh>
#include <convoy/comm/policy/nccl_hierarchical.cuh>
#endif
#endif
#endif
