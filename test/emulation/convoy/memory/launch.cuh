// Launch, on CPUs: replaces the library's file of this name where test/emulation comes first among the
// include directories. Names and rules are the same; kernels run as test/emulation/grid.hpp says.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <type_traits>

#include "../../counts.hpp"
#include "../../enqueued.hpp"
#include "../../grid.hpp"
#include "../../runtime.hpp"
#include "../../stream.hpp"
#include "../../words.hpp"
#include <convoy/core/dtype.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::device {

/// Where a kernel runs: the stream, the blocks and the threads of a block; `shared` is the dynamic shared
/// memory of a block in bytes.
struct Launch {
  cudaStream_t stream = nullptr;
  dim3 grid = 1;
  dim3 block = 256;
  std::size_t shared = 0;
};

/// Enqueues `kernel`. Throws DeviceError if the kernel could not be started, and emulation::KernelFault if
/// the kernel did something that kernels may not do.
template <class... P>
void launch(const Launch& where, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "convoy: CUDA copies arguments byte by byte");
  const auto* name = reinterpret_cast<const void*>(kernel);
  check(emulation::may_start(name, where.grid, where.block, where.shared), "start a kernel");
  check(emulation::may_use(where.stream), "start a kernel");
  check(emulation::load_for(where.stream, name), "load a kernel");
  emulation::Counts::count(emulation::Called::kernel);
  emulation::Enqueued::note_kernel(name);
  const auto run = [=, grid = where.grid, block = where.block, shared = where.shared,
                    call = std::bind_front(kernel, arguments...)] {
    emulation::Block::of_thread().run_grid(
        grid, block, shared, name, [](const void* c) { (*static_cast<const decltype(call)*>(c))(); }, &call);
  };
  check(emulation::run_on(where.stream, run), "start a kernel");
}

/// Loads a kernel, so that its first launch may be captured.
template <class... P>
void load(void (*kernel)(P...)) {
  emulation::load(reinterpret_cast<const void*>(kernel));
}

/// The dynamic shared memory of the block.
template <class T>
T* shared_memory() {
  return reinterpret_cast<T*>(emulation::Block::running->dynamic_shared());
}

inline unsigned long long nanoseconds() {
  return static_cast<unsigned long long>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace convoy::device
