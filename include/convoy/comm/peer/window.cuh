// Window: one rank's view of pieces of device memory, one from every rank of a node. A piece of another
// process is mapped by a CUDA IPC handle that the bootstrap carries; within a process the pointer is enough.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/place.cuh>
#include <convoy/comm/peer/kernels.cuh>
#include <convoy/core/error.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::comm::peer {

namespace detail {

/// A piece of memory as a rank describes it to the others.
struct Address {
  comm::detail::Place place;
  std::int32_t device = 0;
  std::int32_t exported = 0;      // whether handle and offset are valid
  std::uint64_t offset = 0;       // from the beginning of the allocation, which is what a handle maps
  const void* pointer = nullptr;  // for ranks of the same process
  const std::shared_ptr<void>* owner = nullptr;  // likewise, valid until all ranks have mapped
  cudaIpcMemHandle_t handle{};
};
static_assert(std::is_trivially_copyable_v<Address>);

/// The beginning of the allocation in which `p` lies; null if CUDA knows none.
inline const void* allocation_of(const void* p) {
  // The runtime has no function for this, and programs do not link the driver's library.
  using Ask = CUresult (*)(CUdeviceptr*, std::size_t*, CUdeviceptr);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  device::check(
      cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &found, 12000, cudaEnableDefault, &result),
      "find a function of the driver");
  if (result != cudaDriverEntryPointSuccess || found == nullptr) return nullptr;
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  const auto at = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(p));
  if (reinterpret_cast<Ask>(found)(&base, &bytes, at) != CUDA_SUCCESS) return nullptr;
  return reinterpret_cast<const void*>(static_cast<std::uintptr_t>(base));
}

/// Describes this rank's piece to the others. Ranks of the same process may share `owner`, which keeps the
/// memory alive until the last of them has ended.
inline Address address_of(void* p, const std::shared_ptr<void>& owner) {
  Address mine;
  mine.place = comm::detail::Place::here();
  mine.pointer = p;
  mine.owner = &owner;
  int device = 0;
  device::check(cudaGetDevice(&device), "ask which GPU is this thread's");
  mine.device = device;
  const void* const base = p == nullptr ? nullptr : allocation_of(p);
  if (base != nullptr && cudaIpcGetMemHandle(&mine.handle, const_cast<void*>(base)) == cudaSuccess) {
    mine.exported = 1;
    mine.offset =
        static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - static_cast<const std::byte*>(base));
  } else {
    cudaGetLastError();  // the ranks of this process need no handle
  }
  return mine;
}

}  // namespace detail

/// The pieces of all ranks, in the order of ranks. Move only.
class Window {
 public:
  Window() = default;
  /// Every rank passes a piece of the same size, from cudaMalloc on its thread's GPU, or null. The ranks of a
  /// process hold `owner`, if there is one, as long as they have windows. Throws ConfigError on every rank,
  /// with the same sentence, if a rank cannot map the memory of another.
  Window(AnyBootstrap& ranks, void* mine, const std::shared_ptr<void>& owner = {}) {
    const int size = ranks.size();
    if (size > most_ranks)
      fail<ConfigError>("cuda-peer: ", size, " ranks are too many; at most ", most_ranks,
                        " exchange over peer memory");
    std::vector<detail::Address> all(static_cast<std::size_t>(size));
    const detail::Address own = detail::address_of(mine, owner);
    ranks.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
    std::array<char, 256> mishap{};
    for (int r = 0; r < size && mishap[0] == '\0'; ++r) {
      const auto& address = all[static_cast<std::size_t>(r)];
      try {
        pieces_[static_cast<std::size_t>(r)] = r == ranks.rank()            ? mine
                                               : address.pointer == nullptr ? nullptr
                                                                            : map(own, address);
      } catch (const Error& error) {
        concat("cuda-peer: rank ", ranks.in_world(ranks.rank()), " cannot reach the memory of rank ",
               ranks.in_world(r), ": ", error.what())
            .copy(mishap.data(), mishap.size() - 1);
      }
    }
    std::vector<std::array<char, 256>> mishaps(static_cast<std::size_t>(size));
    ranks.all_gather(std::as_bytes(std::span(&mishap, 1)), std::as_writable_bytes(std::span(mishaps)));
    for (const auto& text : mishaps)
      if (text[0] != '\0') {
        close();
        throw ConfigError(text.data());
      }
  }
  Window(Window&& other) noexcept { swap(other); }
  Window& operator=(Window&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Window() { close(); }

  std::byte* of(int rank) const { return static_cast<std::byte*>(pieces_[static_cast<std::size_t>(rank)]); }
  /// Whether a piece belongs to another process.
  bool crosses_processes() const { return !mapped_.empty(); }

 private:
  void swap(Window& other) noexcept {
    std::swap(pieces_, other.pieces_);
    std::swap(mapped_, other.mapped_);
    std::swap(owners_, other.owners_);
  }
  void close() {
    for (void* base : mapped_) cudaIpcCloseMemHandle(base);
    mapped_.clear();
    owners_.clear();
  }

  void* map(const detail::Address& own, const detail::Address& other) {
    if (own.place.shares_process(other.place)) {
      if (own.device != other.device) enable(own.device, other.device);
      if (*other.owner) owners_.push_back(*other.owner);
      return const_cast<void*>(other.pointer);
    }
    if (!own.place.shares_host(other.place))
      fail<ConfigError>("it runs on ", other.place.host.name.data(),
                        ", but ranks that share memory must run on one host");
    if (other.exported == 0)
      fail<ConfigError>("another process cannot map it; memory for exchanges must come from cudaMalloc");
    void* base = nullptr;
    device::check(cudaIpcOpenMemHandle(&base, other.handle, cudaIpcMemLazyEnablePeerAccess),
                  concat("map memory of the GPU at ", other.place.gpu.data()));
    mapped_.push_back(base);
    return static_cast<std::byte*>(base) + other.offset;
  }
  static void enable(int own, int other) {
    int can = 0;
    device::check(cudaDeviceCanAccessPeer(&can, own, other), "ask which GPUs reach each other");
    if (can == 0) fail<ConfigError>("GPU ", own, " has no peer access to GPU ", other);
    const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
      cudaGetLastError();
    else
      device::check(status, "let GPUs reach each other");
  }

  std::array<void*, most_ranks> pieces_{};
  std::vector<void*> mapped_;
  std::vector<std::shared_ptr<void>> owners_;
};

}  // namespace convoy::comm::peer
