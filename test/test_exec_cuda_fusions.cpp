// EMULATES
// SANITIZE: none
// TIMEOUT: 600
// exec::Cuda<f16> with what cuDNN computes together, run on processors.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "exec_cuda_fusions.hpp"
