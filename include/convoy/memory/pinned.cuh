// Pinned: host memory that a GPU reads and writes by itself, while the host does something else.
#pragma once

#include <cstddef>
#include <utility>

#include <convoy/memory/cuda.cuh>

namespace convoy::device {

/// Bytes of it. Move only.
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

}  // namespace convoy::device
