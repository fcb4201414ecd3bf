// The emulation runs CUDA sources on CPUs, in tests. A test says
//
//   // EMULATES                              among its first lines, for CMake; then, before all else,
//   #include "emulation/emulation.hpp"       kernels and the CUDA runtime, and where it uses the libraries
//   #include "emulation/cublaslt.hpp"
//   #include "emulation/cudnn.hpp"
//   #include <convoy/memory/vector.cuh>
//
//   device::launch(Launch{...}, kernel, ...);                          runs the kernel
//   const emulation::With w({.threads = emulation::Order::backward});  in another order, from here on
//
// and by hand: g++ -std=c++20 -Itest/emulation -Iinclude test/main.cpp test/test_<room>_<what>.cpp. These
// headers define the libraries' functions, so only one source of a program may include them.
#pragma once

#include <convoy/memory/launch.cuh>

// Ranks of tests are threads that share a GPU.
[[maybe_unused]] inline const bool ranks_may_share_gpus = (convoy::device::let_ranks_share_gpus(), true);
