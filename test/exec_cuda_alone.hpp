// An exec::Cuda with its own device memory, for tests that make many of them.
#pragma once

#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/memory/cuda.cuh>

namespace exec_cuda {

using namespace convoy;

struct Owner {
  memory::Device device;
};

/// An exec::Cuda in its own space.
template <class P>
class Alone : private Owner, public exec::Cuda<P> {
 public:
  using Options = exec::CudaOptions;
  Alone(const Plan& plan, int batch, const Options& options)
      : exec::Cuda<P>(plan, batch, options, device, exec::kernels<exec::Cuda<P>>) {}
};

}  // namespace exec_cuda
