// The source of convoy::compiled_cuda for elements of f16 (convoy/exec/cuda/compiled.hpp).
#define CONVOY_COMPILING_F16
#include <convoy/exec/cuda/cuda.cuh>
