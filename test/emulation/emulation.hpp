// The emulation: CUDA sources run on processors, in tests. A test says
//
//   // EMULATES                            among its first lines, for CMake; then, before all else,
//   #include "emulation/emulation.hpp"
//   #include <convoy/memory/vector.cuh>    kernels, started by convoy::device::launch(Launch{...}, kernel,
//   ...) emulation::With orders({.blocks = emulation::Order::shuffled, .threads =
//   emulation::Order::backward});
//
// and by hand: g++ -std=c++20 -Itest/emulation -Iinclude test/main.cpp test/test_<room>_<what>.cpp
#pragma once

#include <convoy/memory/launch.cuh>
