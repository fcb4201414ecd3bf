// The exact result of a ring, computed in the ring's order, and random inputs that every rank can generate.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/error.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/philox.hpp>

namespace oracle {

using convoy::comm::Op;

template <class T>
std::vector<T> input(int rank, std::int64_t count, std::uint64_t seed) {
  convoy::Philox numbers(seed, static_cast<std::uint64_t>(rank));
  std::vector<T> values(static_cast<std::size_t>(count));
  for (T& v : values) {
    if constexpr (std::is_integral_v<T>)
      v = static_cast<T>(numbers.below(2000)) - 1000;
    else
      v = static_cast<T>(numbers.uniform(-1, 1));
  }
  return values;
}

template <class T>
T combine(T mine, T incoming, Op op, double scale) {
  using W = std::conditional_t<(sizeof(T) == 2), float, T>;
  const W a = static_cast<W>(mine), b = static_cast<W>(incoming);
  W result = op == Op::min ? (b < a ? b : a) : op == Op::max ? (b > a ? b : a) : a + b;
  if constexpr (!std::is_integral_v<T>)
    if (op == Op::mean && scale != 1) result *= static_cast<W>(scale);
  return static_cast<T>(result);
}

// Block b starts at rank b+1 and is complete at rank b, whatever the number of segments.
template <class T>
std::vector<T> ring(int size, std::int64_t count, std::uint64_t seed, Op op) {
  std::vector<std::vector<T>> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(input<T>(r, count, seed));
  std::vector<T> result(static_cast<std::size_t>(count));
  for (int block = 0; block < size; ++block) {
    const auto range =
        convoy::share(count, block, size, convoy::schedule::grain_of(static_cast<std::int64_t>(sizeof(T))));
    for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i) {
      T value = inputs[static_cast<std::size_t>((block + 1) % size)][i];
      for (int k = 2; k <= size; ++k)
        value = combine(inputs[static_cast<std::size_t>((block + k) % size)][i], value, op,
                        k == size ? 1.0 / size : 1);
      result[i] = value;
    }
  }
  return result;
}

// Whether an error names one of the ranks as its culprit. A CommError names it by number and in its text; a
// rank whose own transport fails may be the culprit itself. Another error names it in its text.
inline bool names_culprit(const convoy::Error& error, int ranks) {
  const auto says = [&](int rank) {
    return std::string_view(error.what()).find(convoy::concat("rank ", rank)) != std::string_view::npos;
  };
  if (const auto* comm = dynamic_cast<const convoy::CommError*>(&error)) {
    const int culprit = comm->culprit >= 0 ? comm->culprit : comm->rank;
    return culprit >= 0 && culprit < ranks && says(culprit);
  }
  for (int rank = 0; rank < ranks; ++rank)
    if (says(rank)) return true;
  return false;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace oracle
