// Checks that the libraries and headers that were found in the wheels fit together.
#include <cstdio>

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <nccl.h>

int main() {
  int runtime = 0, nccl = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess || ncclGetVersion(&nccl) != ncclSuccess) return 1;
  std::printf("CUDA %d, cuBLASLt %zu, cuDNN %zu, NCCL %d\n", runtime, cublasLtGetVersion(), cudnnGetVersion(),
              nccl);
  return runtime / 1000 == CUDART_VERSION / 1000 && nccl >= NCCL_VERSION_CODE ? 0 : 1;
}
