// Gather: gives all ranks, including servers, values that only some ranks have, and checks that ranks agree.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>

namespace convoy::train {

/// Gives all ranks the values of which each rank has a part. Each value is present on one rank, and all its
/// bits are zero on the others: a sum as integers preserves the bits. All ranks must call it together.
template <class Comm, class T>
void merge_disjoint(Comm& comm, std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(i32) == 0);
  const std::size_t bytes = values.size() * sizeof(T);
  std::vector<i32> bits(bytes / sizeof(i32));
  std::memcpy(bits.data(), values.data(), bytes);
  comm.all_reduce_with_servers(bits.data(), static_cast<std::int64_t>(bits.size()),
                               comm::reduction<i32>(comm::sum));
  std::memcpy(values.data(), bits.data(), bytes);
}

/// The value that rank 0 passes. All ranks, including servers, must call it together.
template <class Comm, class T>
T broadcast_with_servers(Comm& comm, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(i32) == 0);
  auto bits = std::bit_cast<std::array<i32, sizeof(T) / sizeof(i32)>>(value);
  if (comm.rank() != 0) bits.fill(0);  // so that the sum has rank 0's bits
  comm.all_reduce_with_servers(bits.data(), bits.size(), comm::reduction<i32>(comm::sum));
  return std::bit_cast<T>(bits);
}

/// The number, at least 0, that some ranks pass (all the same); the others pass -1. All ranks must call it
/// together.
template <class Comm>
std::int64_t common_number(Comm& comm, std::int64_t number) {
  auto most = static_cast<double>(number);
  comm.all_reduce_with_servers(&most, 1, comm::reduction<double>(comm::max));
  return static_cast<std::int64_t>(most);
}

/// Whether all ranks, including servers, pass the same numbers. All ranks must call it together, with equally
/// many numbers.
template <class Comm>
bool all_equal(Comm& comm, std::initializer_list<std::uint64_t> numbers) {
  // Each 32-bit half is exact as a double. All ranks have the same half if its maximum is also its minimum.
  std::vector<double> most;
  for (const std::uint64_t number : numbers)
    for (const std::uint64_t half : {number >> 32, number & 0xffffffffu}) {
      most.push_back(static_cast<double>(half));
      most.push_back(-static_cast<double>(half));
    }
  comm.all_reduce_with_servers(most.data(), static_cast<std::int64_t>(most.size()),
                               comm::reduction<double>(comm::max));
  for (std::size_t i = 0; i < most.size(); i += 2)
    if (most[i] != -most[i + 1]) return false;
  return true;
}

/// Throws ConfigError on every worker if a worker's data set has another size than rank 0's, because their
/// steps would not match. All workers must call it together.
template <class Comm>
void expect_same_rows(Comm& comm, std::size_t mine, std::string_view of) {
  auto first = static_cast<std::int64_t>(mine);
  comm.broadcast(&first, sizeof first, 0);
  double culprit = static_cast<std::int64_t>(mine) == first ? -1 : comm.rank();
  comm.all_reduce(std::span<double>(&culprit, 1), comm::max);
  if (culprit < 0) return;
  auto other = static_cast<std::int64_t>(mine);
  comm.broadcast(&other, sizeof other, static_cast<int>(culprit));
  fail<ConfigError>("the ", of, " has ", other, " rows on rank ", culprit, " and ", first,
                    " on rank 0; pass the whole set on every rank");
}

}  // namespace convoy::train
