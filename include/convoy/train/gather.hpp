// Gather: what all ranks are told of what some ranks have, servers included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/core/dtype.hpp>

namespace convoy::train {

/// Gives all ranks the values that each of them has in part. Each value is one rank's, zero bits elsewhere:
/// as integers they add up to the very bits. All ranks call it together.
template <class Comm, class T>
void gather(Comm& comm, std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(i32) == 0);
  const std::size_t bytes = values.size() * sizeof(T);
  std::vector<i32> bits(bytes / sizeof(i32));
  std::memcpy(bits.data(), values.data(), bytes);
  comm.all_reduce_with_servers(bits.data(), static_cast<std::int64_t>(bits.size()),
                               comm::reduction<i32>(comm::sum));
  std::memcpy(values.data(), bits.data(), bytes);
}

/// A number, at least 0, that some ranks have alike; the others give -1. All ranks call it together.
template <class Comm>
std::int64_t common_number(Comm& comm, std::int64_t number) {
  auto most = static_cast<double>(number);
  comm.all_reduce_with_servers(&most, 1, comm::reduction<double>(comm::max));
  return static_cast<std::int64_t>(most);
}

}  // namespace convoy::train
