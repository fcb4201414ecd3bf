// CONVOY_HD marks arithmetic that runs on the host and, when compiled by nvcc, on the device.
#pragma once

#ifdef __CUDACC__
#define CONVOY_HD __host__ __device__
/// The same before a template that calls what its user gave: nvcc says nothing where that is the host's
/// alone.
#define CONVOY_HD_OF_USER _Pragma("nv_exec_check_disable") __host__ __device__
#else
#define CONVOY_HD
#define CONVOY_HD_OF_USER
#endif
