// EMULATES: stages
// SANITIZE: none
// TIMEOUT: 600
// exec::Cuda with its kernels and graphs run on the CPU.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "exec_cuda_models.hpp"
