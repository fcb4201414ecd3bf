// CONVOY_HD marks arithmetic that runs on the host and, when compiled by nvcc, on the device.
#pragma once

#ifdef __CUDACC__
#define CONVOY_HD __host__ __device__
#else
#define CONVOY_HD
#endif
