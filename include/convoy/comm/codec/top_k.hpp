// TopK: only the elements of largest magnitude, with their indices.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include <convoy/comm/codec/codec.hpp>
#include <convoy/comm/codec/largest.hpp>
#include <convoy/core/error.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::comm::codec {

/// Sends a fraction of a range's elements as pairs of index and value (Aji and Heafield 2017); the others
/// stay in the error. Of equal magnitudes the first are sent. NaN counts as larger than infinity, so that all
/// ranks see it.
struct TopK {
  static constexpr std::string_view name = "topk";
  static constexpr std::string_view about = "only the largest elements, with their indices";
  static constexpr Travel travel = Travel::gathered;
  double fraction = 0.01;
  /// The first steps after `open`, which send gradients uncompressed: see PowerSgd::warm_up_steps. (Lin, Han,
  /// Mao, Wang and Dally, "Deep Gradient Compression", ICLR 2018, also warm up.)
  std::int64_t warm_up_steps = 50;

  static constexpr void fields(auto& self, auto&& field) {
    field("fraction", self.fraction);
    field("warm_up_steps", self.warm_up_steps);
  }
  std::int64_t warm_up() const { return warm_up_steps; }
  void check() const {
    if (!(fraction > 0 && fraction <= 1))
      fail<ConfigError>("topk keeps a fraction of the gradients above 0 and up to 1, not ", fraction);
    if (warm_up_steps < 0) fail<ConfigError>("topk cannot warm up for ", warm_up_steps, " steps");
  }

  struct Pair {
    std::uint32_t index = 0;
    float value = 0;
  };
  /// How many of `count` elements are kept: at least one.
  std::int64_t kept(std::int64_t count) const {
    const auto k = static_cast<std::int64_t>(std::ceil(fraction * static_cast<double>(count)));
    return std::clamp<std::int64_t>(k, count > 0 ? 1 : 0, count);
  }
  /// The candidates to have room for: with error feedback many elements are close to being sent.
  std::size_t most_candidates(std::int64_t count) const {
    return static_cast<std::size_t>(kept(count) + count / 16);
  }

  /// Bytes of the pairs of `count` elements, in whole cache lines.
  std::int64_t bytes(std::int64_t count) const {
    if (count > std::int64_t{1} << 32)
      fail<ConfigError>("topk: a bucket has ", count, " elements; its indices have 32 bits");
    return (kept(count) * std::int64_t{sizeof(Pair)} + 63) / 64 * 64;
  }
  std::int64_t room(std::int64_t count) const {
    return static_cast<std::int64_t>(most_candidates(count) * sizeof(Pair));
  }
  void encode(std::byte* to, const float* values, float* error, std::int64_t count,
              std::span<std::byte> room) const {
    select(reinterpret_cast<Pair*>(to), values, error, count,
           {reinterpret_cast<Pair*>(room.data()), room.size() / sizeof(Pair)});
  }
  void decode_add(float* to, const std::byte* from, std::int64_t count) const {
    const auto* pairs = reinterpret_cast<const Pair*>(from);
    const std::int64_t sent = kept(count);
    for (std::int64_t k = 0; k < sent; ++k) {
      if (pairs[k].index >= count)
        fail("topk: an index of ", pairs[k].index, " in a bucket of ", count, " elements");
      to[pairs[k].index] += pairs[k].value;
    }
  }

  /// error += values; then moves the kept(count) largest elements of error to `to`, in ascending order of
  /// index. `room` is used for candidates if all of them fit; its size affects the speed and not the result.
  void select(Pair* to, const float* values, float* error, std::int64_t count, std::span<Pair> room) const {
    if (count == 0) return;
    detail::Histogram first;
    detail::Threshold threshold{.left = kept(count)};
    simd::run<detail::CountDigits<true>>(error, values, count, threshold, &first);
    const std::int64_t agree = threshold.learn(first);
    const auto candidates = static_cast<std::size_t>(kept(count) - threshold.left + agree);
    const float* elements = error;
    if (candidates <= room.size()) {
      room = room.first(candidates);
      auto gather = [next = room.data(), elements](std::int64_t i, std::int32_t) mutable {
        *next++ = {static_cast<std::uint32_t>(i), elements[i]};
      };
      simd::run<detail::VisitLargest>(elements, count, &threshold.least, &gather);
    } else {
      room = {};
    }
    while (threshold.unknown > 0) {
      detail::Histogram next;
      if (room.empty()) simd::run<detail::CountDigits<false>>(error, values, count, threshold, &next);
      for (const Pair& candidate : room) {
        std::int32_t digit;
        threshold.digit(digit, detail::magnitude_of(candidate.value));
        ++next.counts[0][digit];
      }
      threshold.learn(next);
    }
    auto move = [&](std::int64_t i, std::int32_t magnitude) {
      *to++ = {static_cast<std::uint32_t>(i), error[i]};
      error[i] = 0;
      if (magnitude == threshold.least && --threshold.left == 0) ++threshold.least;
    };
    if (room.empty()) simd::run<detail::VisitLargest>(elements, count, &threshold.least, &move);
    for (const Pair& candidate : room)
      if (const std::int32_t m = detail::magnitude_of(candidate.value); m >= threshold.least)
        move(candidate.index, m);
  }
};

static_assert(Codec<TopK>);

}  // namespace convoy::comm::codec
