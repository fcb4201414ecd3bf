// Buffer: aligned, zeroed memory from a memory resource. The Comm's resource decides where arenas live.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <utility>

#include <convoy/memory/pages.hpp>

namespace convoy {

/// Every arena and every tensor in it starts on a multiple of this many bytes: a cache line, an AVX-512
/// register.
inline constexpr std::size_t alignment = 64;

/// `size` elements of a trivial type in memory of a resource, zeroed at start, released at the end. Move
/// only.
template <class T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>, "convoy: a Buffer holds trivially copyable elements only");

 public:
  Buffer() = default;
  explicit Buffer(std::size_t size, std::pmr::memory_resource* resource = memory::pages())
      : resource_(resource), size_(size) {
    if (size == 0) return;
    data_ = static_cast<T*>(resource->allocate(size * sizeof(T), alignment));
    std::memset(static_cast<void*>(data_), 0, size * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept
      : resource_(other.resource_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(resource_, other.resource_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) resource_->deallocate(data_, size_ * sizeof(T), alignment);
  }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  operator std::span<T>() { return {data_, size_}; }
  operator std::span<const T>() const { return {data_, size_}; }

 private:
  std::pmr::memory_resource* resource_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace convoy
