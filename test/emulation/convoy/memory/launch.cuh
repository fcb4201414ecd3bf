// Launch, on processors: takes the place of the library's file of this name where test/emulation comes first
// among the include directories. The same names, the same rules; kernels run as test/emulation/grid.hpp says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>

#include "../../grid.hpp"
#include "../../words.hpp"
#include <convoy/core/dtype.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::device {

/// Where a kernel runs: a stream, and how many blocks of how many threads; `shared` is the bytes of dynamic
/// shared memory a block.
struct Launch {
  cudaStream_t stream = nullptr;
  dim3 grid = 1;
  dim3 block = 256;
  std::size_t shared = 0;
};

/// Enqueues `kernel`. Throws DeviceError if it could not be started, and emulation::KernelFault if it did
/// what a kernel may not do.
template <class... P>
void launch(const Launch& where, void (*kernel)(P...), std::type_identity_t<P>... arguments) {
  struct Call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
  } call{kernel, {arguments...}};
  emulation::Block::of_thread().run_grid(
      where.grid, where.block, where.shared, reinterpret_cast<const void*>(kernel),
      [](void* p) {
        const Call& c = *static_cast<const Call*>(p);
        std::apply(c.kernel, c.arguments);
      },
      &call);
}

/// The dynamic shared memory of the block.
template <class T>
T* shared_memory() {
  return reinterpret_cast<T*>(emulation::Block::running->dynamic_shared());
}

}  // namespace convoy::device
