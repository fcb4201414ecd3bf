// Gather: what all ranks are told of what some ranks have, servers included, and whether they have the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>

namespace convoy::train {

/// Gives all ranks the values that each of them has in part. Each value is one rank's, zero bits elsewhere:
/// as integers they add up to the very bits. All ranks call it together.
template <class Comm, class T>
void all_gather(Comm& comm, std::vector<T>& values) {
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

/// Throws ConfigError on every worker where a worker's data set has another size than that of rank 0: their
/// steps would not fit together. All workers call it together.
template <class Comm>
void expect_same_rows(Comm& comm, std::size_t mine, std::string_view of) {
  auto first = static_cast<std::int64_t>(mine);
  comm.broadcast(&first, sizeof first, 0);
  double culprit = static_cast<std::int64_t>(mine) == first ? -1 : comm.rank();
  comm.all_reduce(std::span<double>(&culprit, 1), comm::max);
  if (culprit < 0) return;
  auto other = static_cast<std::int64_t>(mine);
  comm.broadcast(&other, sizeof other, static_cast<int>(culprit));
  fail<ConfigError>("the data set ", of, " has ", other, " rows on rank ", culprit, " and ", first,
                    " on rank 0; every rank passes the whole set");
}

}  // namespace convoy::train
