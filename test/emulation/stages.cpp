// exec::Cuda, its stages and the emulated libraries, compiled once for tests that say `// EMULATES: stages`.
#define CONVOY_COMPILING_F32
#define CONVOY_COMPILING_BF16
#define CONVOY_COMPILING_F16
#include "cublaslt.hpp"
#include "cudnn.hpp"
#include <convoy/exec/cuda/cuda.cuh>
