// Arithmetic that runs on the host and, when compiled by nvcc, on the device, which CONVOY_HD marks.
#pragma once

#ifdef __CUDACC__
#define CONVOY_HD __host__ __device__
/// The same for a template that calls user-supplied code: suppresses nvcc's warning if that code is
/// host-only.
#define CONVOY_HD_OF_USER _Pragma("nv_exec_check_disable") __host__ __device__
#else
#define CONVOY_HD
#define CONVOY_HD_OF_USER
#endif

namespace convoy {

/// a b + c. On a GPU it is rounded once, in every kernel: nvcc fuses an expression in one kernel and not in
/// another, so that kernels that must agree would differ in the last bit.
CONVOY_HD constexpr float multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

}  // namespace convoy
