// Space: a kind of memory together with the stream of work that reads and writes it. Arenas live in a space.
// Only the space and kernels written for it dereference what it allocates: the host cannot read device
// memory.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include <convoy/core/clock.hpp>
#include <convoy/memory/ready.hpp>

namespace convoy::memory {

/// Requirements of a space. Every object is a stream of its own; objects of one type work on the same memory.
/// Work is done in the order of the calls. Calls are asynchronous unless stated otherwise; on the host every
/// call is synchronous.
///
///   `name`                       "host", "device"
///   `addressable`                whether host code may dereference pointers of the space
///   `allocate(bytes)`            memory aligned to convoy::alignment, zeroed
///   `release(p, bytes)`          frees it after the work enqueued so far
///   `fill(p, n, value)`          n floats
///   `add(into, from, n)`         into[i] += from[i]
///   `copy(to, from, bytes)`      within the space
///   `write(to, from, bytes)`     from host memory, which may be reused when the call returns
///   `read(to, from, bytes)`      into host memory; returns when the bytes are there
///   `sum_squares(p, n, f, sum)`  *sum += f^2 times the sum of p[i]^2, in f64 and in an order that depends
///                                only on n, so that ranks with equal numbers get equal bits; `sum` points
///                                into the space
///   `mark()`                     a mark after all work so far
///   `wait_for(ready)`            work enqueued from now on begins after the mark, which may be of another
///                                space's stream
///   `synchronize()`              returns when all work is done
///   `timestamp()`                an S::Timestamp of the moment when all work so far is done; movable
///   `time_of(timestamp)`         that moment by the host's clock; waits for it
///   `lock(p, bytes)`             optional: pins this host memory for fast copies while the result lives
template <class S>
concept Space = requires(S& s, void* to, const void* from, std::size_t bytes, float* values,
                         const float* given, std::int64_t n, double* sum, Ready ready) {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::addressable } -> std::convertible_to<bool>;
  { s.allocate(bytes) } -> std::same_as<void*>;
  s.release(to, bytes);
  s.fill(values, n, 0.0f);
  s.add(values, given, n);
  s.copy(to, from, bytes);
  s.write(to, from, bytes);
  s.read(to, from, bytes);
  s.sum_squares(given, n, 1.0f, sum);
  { s.mark() } -> std::same_as<Ready>;
  s.wait_for(ready);
  s.synchronize();
  { s.time_of(s.timestamp()) } -> std::same_as<Clock::time_point>;
  { s.timestamp() } -> std::same_as<typename S::Timestamp>;
};

/// Waits at the end of its scope until all work enqueued in a space is done, so that the memory it reads may
/// be freed however the scope ends.
template <Space S>
class AllDone {
 public:
  explicit AllDone(S& space) : space_(space) {}
  AllDone(const AllDone&) = delete;
  AllDone& operator=(const AllDone&) = delete;
  ~AllDone() {
    try {
      space_.synchronize();
    } catch (...) {  // the error is reported to whoever asks for a result
    }
  }

 private:
  S& space_;
};

/// Tag of arrays that ranks exchange. A space with `allocate_exchanged(bytes)` takes them from memory of the
/// exchange (Comm::memory()), if that has any.
struct Exchanged {};
inline constexpr Exchanged exchanged;

/// `size` elements in a space, zeroed at the start, released at the end. Move only. The space must outlive
/// the array.
template <class T, Space S>
class Array {
 public:
  Array() = default;
  Array(S& space, std::size_t size) : space_(&space), size_(size) {
    if (size > 0) data_ = static_cast<T*>(space.allocate(size * sizeof(T)));
  }
  Array(S& space, std::size_t size, Exchanged) : space_(&space), size_(size) {
    if (size > 0) data_ = static_cast<T*>(space.allocate_exchanged(size * sizeof(T)));
  }
  Array(Array&& other) noexcept
      : space_(other.space_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Array& operator=(Array&& other) noexcept {
    std::swap(space_, other.space_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Array() {
    if (data_ != nullptr) space_->release(data_, size_ * sizeof(T));
  }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  S* space_ = nullptr;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace convoy::memory
