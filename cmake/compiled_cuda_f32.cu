// The source of convoy::compiled_cuda for elements of f32, also in tf32 (convoy/exec/cuda/compiled.hpp).
#define CONVOY_COMPILING_F32
#include <convoy/exec/cuda/cuda.cuh>
