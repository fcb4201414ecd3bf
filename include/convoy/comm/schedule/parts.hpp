// Adapts a half of an all-reduce to a buffer that is already cut into parts, at least as many as the half has
// blocks. Each block is then a run of parts.
//
//     7 parts, a half of 3 blocks:   0 0 | 1 1 | 2 2 2
#pragma once

#include <string_view>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

/// `Half` over `parts` parts, at least as many as `Half` has blocks. A rank may own several parts, or none.
template <Schedule Half>
struct InParts {
  static constexpr std::string_view name = Half::name;
  static constexpr Goal goal = Half::goal;
  static constexpr bool proved = detail::proved<Half>();
  int parts = 1;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const InParts&, const InParts&) = default;

  constexpr int blocks(int) const { return parts; }
  constexpr int owner(int part, int size) const {
    const Half half{};
    return half.owner(((part + 1) * half.blocks(size) - 1) / parts, size);  // the block that has the part
  }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    const Half half = segmented(Half{}, segments, window);
    const int blocks = half.blocks(size);
    // Converts the number of a chunk of the half to that of its first chunk in the parts.
    const auto chunk_of = [&](int chunk) {
      const int block = chunk / segments, segment = chunk % segments;
      const int begin = block * parts / blocks, end = (block + 1) * parts / blocks;
      return begin * segments + segment * (end - begin);
    };
    half.steps(rank, size, [&](const Step& step) {
      const int begin = chunk_of(step.chunk), end = chunk_of(step.chunk + step.count);
      emit(Step{step.action, step.completes, step.peer, begin, end - begin});
    });
  }
};

}  // namespace convoy::schedule
