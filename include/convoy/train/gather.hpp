// Gather: gives all ranks, including servers, values that only some ranks have, and checks that ranks agree.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/gather.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>

namespace convoy::train {

/// comm::merge_disjoint of all ranks, including servers, which must call it together.
template <class Comm, class T>
void merge_disjoint(Comm& comm, std::vector<T>& values) {
  comm::merge_disjoint(std::span<T>(values), [&](std::span<i32> bits) {
    comm.all_reduce_with_servers(bits.data(), static_cast<std::int64_t>(bits.size()),
                                 comm::reduction<i32>(comm::sum));
  });
}

/// The value that rank 0 passes. All ranks, including servers, must call it together. T has no padding, whose
/// bits would be indeterminate; the compiler cannot tell for a T with floating-point members.
template <class Comm, class T>
T broadcast_with_servers(Comm& comm, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(i32) == 0);
  auto bits = std::bit_cast<std::array<i32, sizeof(T) / sizeof(i32)>>(value);
  if (comm.rank() != 0) bits.fill(0);  // so that the sum has rank 0's bits
  comm.all_reduce_with_servers(bits.data(), bits.size(), comm::reduction<i32>(comm::sum));
  return std::bit_cast<T>(bits);
}

/// Sums what the workers count of a step. A worker that does not run in lockstep waits for no other, and
/// supposes that all have as many as it has.
template <class Comm>
void sum_counts(Comm& comm, std::span<double> counts) {
  if (comm.lockstep())
    comm.all_reduce(counts, comm::sum);
  else
    for (double& count : counts) count *= comm.workers();
}

/// The number, at least 0, that some ranks pass; the others pass -1. If ranks pass several, the largest. All
/// ranks must call it together.
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

/// The lowest rank that passes true, or -1. All ranks, including servers, must call it together.
template <class Comm>
int lowest_rank(Comm& comm, bool mine) {
  const auto above = static_cast<int>(common_number(comm, mine ? comm.size() - 1 - comm.rank() : -1));
  return above < 0 ? -1 : comm.size() - 1 - above;
}

/// Throws ConfigError on every rank, with the same sentence, which names the rank and the field, unless all
/// ranks, including servers, pass the same fields. All ranks must call it together.
template <class Comm>
[[gnu::cold]] void expect_same(Comm& comm, const comm::Fingerprint& fingerprint) {
  using Field = comm::Fingerprint::Field;
  const std::vector<Field>& mine = fingerprint.fields();
  const std::int64_t count = common_number(comm, static_cast<std::int64_t>(mine.size()));
  const auto fields_of = [&](int rank) {
    std::vector<Field> fields(static_cast<std::size_t>(count));
    if (comm.rank() == rank) std::copy(mine.begin(), mine.end(), fields.begin());
    merge_disjoint(comm, fields);
    return fields;
  };
  const std::vector<Field> first = fields_of(0);
  const bool same = comm::detail::compare(first, mine).kind == comm::detail::Difference::none;
  if (const int culprit = lowest_rank(comm, !same); culprit >= 0)
    comm::detail::disagree(culprit, comm::detail::compare(first, fields_of(culprit)));
}

/// Calls `work` on every rank. If it throws on a rank, every rank throws: that rank its own error, the others
/// a ConfigError that names the rank and has the error's text. All ranks, including servers, must call it
/// together.
template <class Comm, class Work>
[[gnu::cold]] void all_or_none(Comm& comm, std::string_view what, Work&& work) {
  std::exception_ptr error;
  std::string text;
  try {
    work();
  } catch (const CommError&) {
    throw;  // the other ranks cannot be told, and learn of it from the exchange
  } catch (const std::exception& refusal) {
    error = std::current_exception();
    text = refusal.what();
  } catch (...) {
    error = std::current_exception();
  }
  const int culprit = lowest_rank(comm, error != nullptr);
  if (culprit < 0) return;
  const bool mine = comm.rank() == culprit;
  const std::int64_t length = common_number(comm, mine ? static_cast<std::int64_t>(text.size()) : -1);
  std::vector<i32> letters(static_cast<std::size_t>(length));
  if (mine) std::copy(text.begin(), text.end(), letters.begin());
  merge_disjoint(comm, letters);
  if (error) std::rethrow_exception(error);
  fail<ConfigError>(what, " is refused by rank ", culprit, ": ", std::string(letters.begin(), letters.end()));
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
