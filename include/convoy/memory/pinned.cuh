// Pinned: page-locked host memory, which a GPU copies from and to while the host does something else.
#pragma once

#include <cstddef>
#include <utility>

#include <convoy/memory/cuda.cuh>

namespace convoy::device {

/// An allocation of pinned memory, in bytes. Move only.
class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(std::size_t size) : size_(size) {
    if (size > 0) check(cudaHostAlloc(&data_, size, cudaHostAllocDefault), "pin host memory");
  }
  Pinned(Pinned&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Pinned& operator=(Pinned&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Pinned() {
    if (data_ != nullptr) cudaFreeHost(data_);
  }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Pins host memory that somebody else owns while this object lives, so that a GPU can access it directly. If
/// CUDA cannot pin it, copies only take longer. Move only.
class LockedPages {
 public:
  LockedPages() = default;
  LockedPages(void* p, std::size_t bytes) {
    if (bytes == 0) return;
    if (cudaHostRegister(p, bytes, cudaHostRegisterPortable) == cudaSuccess)
      data_ = p;
    else
      cudaGetLastError();  // clears the error, which a later call would report
  }
  LockedPages(LockedPages&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  LockedPages& operator=(LockedPages&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~LockedPages() {
    if (data_ != nullptr) cudaHostUnregister(data_);
  }

 private:
  void* data_ = nullptr;
};

}  // namespace convoy::device
