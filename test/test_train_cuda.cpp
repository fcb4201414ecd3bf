// EMULATES
// SANITIZE: none
// TIMEOUT: 600
// Training by exec::Cuda with its kernels and graphs run on processors.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "train_cuda.hpp"
