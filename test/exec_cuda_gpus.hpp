// Properties of GPUs that need not be present, as cuDNN is told them.
#pragma once

#include <string>
#include <string_view>

#include <convoy/core/error.hpp>

namespace exec_cuda {

using convoy::concat;

struct Gpu {
  std::string_view name;
  int version, processors, shared;  // maximum shared memory of a block, in bytes
};
inline constexpr Gpu gpus[] = {
    {"NVIDIA A100", 800, 108, 166912}, {"NVIDIA H200", 900, 132, 232448}, {"NVIDIA B200", 1000, 148, 232448}};
inline constexpr Gpu desktop = {"NVIDIA GeForce RTX 5090", 1200, 170, 101376};

/// The properties of a GPU that cuDNN asks for, in its format. cuDNN 9.19 does not have memoryBusWidth,
/// oversizedSharedMemoryPerBlock and smCountOrigin; a smCountOrigin of 0 means a whole GPU.
inline std::string properties(const Gpu& gpu) {
  return concat(
      R"({"cudaDeviceId":0,"deviceVer":)", gpu.version, R"(,"deviceName":")", gpu.name,
      R"(","driverVer":13000,"isTccDriver":0,"l2CacheSize":41943040,"maxBlockSize":[1024,1024,64],)",
      R"("maxCtasPerSM":32,"maxGridSize":[2147483647,65535,65535],"maxRegistersPerSM":65536,)",
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":)", gpu.shared,
      R"(,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"memClockRateKHz":2600000,)",
      R"("memoryBusWidth":5120,"multiProcessorCount":)", gpu.processors,
      R"(,"oversizedSharedMemoryPerBlock":)", gpu.shared,
      R"(,"pciDeviceId":0,"regsPerBlock":65536,"reservedSharedMemoryPerBlock":1024,)",
      R"("smClockRateKHz":1500000,"smCountOrigin":0,"supportCoopLaunch":1,"totalGlobalMem":80000000000,"warpSize":32})");
}

}  // namespace exec_cuda
