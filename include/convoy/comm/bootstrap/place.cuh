// Place: on which host, in which process and with which GPU a rank runs.
#pragma once

#include <array>
#include <cstdint>
#include <random>

#include <cuda_runtime.h>
#include <unistd.h>

#include <convoy/core/host_identity.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::comm::detail {

/// Where a rank runs.
struct Place {
  HostIdentity host;
  std::array<char, 32> gpu{};
  std::int64_t process = 0;
  std::uint64_t chance = 0;  // random, because containers of a host may have the same process ids

  static Place here() {
    static const std::uint64_t drawn = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    Place place;
    place.host = identity_of_host();
    int device = 0;
    device::check(cudaGetDevice(&device), "ask which GPU is this thread's");
    device::check(cudaDeviceGetPCIBusId(place.gpu.data(), static_cast<int>(place.gpu.size()), device),
                  "ask where a GPU is");
    place.process = getpid();
    place.chance = drawn;
    return place;
  }
  bool shares_host(const Place& other) const { return host == other.host; }
  bool shares_process(const Place& other) const {
    return shares_host(other) && process == other.process && chance == other.chance;
  }
  bool shares_gpu(const Place& other) const { return shares_host(other) && gpu == other.gpu; }
};

}  // namespace convoy::comm::detail
