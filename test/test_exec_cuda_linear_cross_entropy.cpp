// EMULATES: stages
// SANITIZE: none
// TIMEOUT: 600
// A linear layer and its cross-entropy as one stage on the device, with one block of labels and with several.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "exec_cuda_decoder.hpp"
#include <convoy/exec/cuda/cuda.cuh>
