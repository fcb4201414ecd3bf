// CONVOY_HD marks arithmetic that runs on the host and, when compiled by nvcc, on the device.
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
