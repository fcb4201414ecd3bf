// EMULATES: stages
// SANITIZE: none
// TIMEOUT: 600
// On the device, a linear layer and the cross-entropy behind it as one stage, of one block of labels and of
// several.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "emulation/stages.hpp"
#include "exec_cuda_decoder.hpp"
