// The result of a schedule, by executing all its ranks one after the other in one thread. The real exchange
// must give these bits whatever its timing.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "comm_oracle.hpp"
#include <convoy/comm/schedule/network.hpp>

namespace oracle {

template <class T>
struct Interpreter {
  std::vector<std::vector<T>> buffers;
  int blocks, segments;
  Op op;

  bool send(int, int, const convoy::schedule::Step&, int) { return true; }
  bool receive(int rank, int, const convoy::schedule::Step& step, int) {
    namespace schedule = convoy::schedule;
    auto& mine = buffers[static_cast<std::size_t>(rank)];
    const auto& theirs = buffers[static_cast<std::size_t>(step.peer)];
    const convoy::Range range =
        schedule::range_of(step.chunk, step.count, static_cast<std::int64_t>(mine.size()), blocks, segments,
                           schedule::grain_of(static_cast<std::int64_t>(sizeof(T))));
    const double scale = step.completes ? 1.0 / static_cast<double>(buffers.size()) : 1;
    for (auto i = static_cast<std::size_t>(range.begin); i < static_cast<std::size_t>(range.end); ++i)
      mine[i] = step.action == schedule::Action::receive ? theirs[i] : combine(mine[i], theirs[i], op, scale);
    return true;
  }
};

// Every rank's buffer at the end.
template <class T, class S>
std::vector<std::vector<T>> executed(const S& schedule, int size, std::int64_t count, std::uint64_t seed,
                                     Op op) {
  Interpreter<T> all{{}, schedule.blocks(size), schedule.segments, op};
  for (int r = 0; r < size; ++r) all.buffers.push_back(input<T>(r, count, seed));
  if (convoy::schedule::execute(schedule, size, 16, all).stuck)
    throw std::logic_error("the schedule is stuck");
  return all.buffers;
}

}  // namespace oracle
