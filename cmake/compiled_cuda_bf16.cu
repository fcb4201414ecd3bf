// The source of convoy::compiled_cuda for elements of bf16 (convoy/exec/cuda/compiled.hpp).
#define CONVOY_COMPILING_BF16
#include <convoy/exec/cuda/cuda.cuh>
