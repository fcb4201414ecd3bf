// Options of an exchange, and a schedule made ready for its execution by one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/core/clock.hpp>

namespace convoy::comm {

/// How an exchange is carried out. The same on all ranks, except the deadline.
struct Options {
  Seconds deadline{60};                    ///< for every wait, from the last progress
  std::size_t segment_bytes = 256u << 10;  ///< how long the messages of a long block are
  int window = 8;                          ///< segments under way at a time between two ranks
  schedule::CostModel cost{};              ///< what Auto reckons with on rank 0; all zero: measured
};

/// Into how many segments each block is cut. A block of up to four segments' length is not: there is too
/// little to pipeline, and one long message is cheaper than four.
constexpr int segments_for(std::int64_t count, std::size_t element, int blocks, const Options& options) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(element);
  const std::int64_t block = (bytes + blocks - 1) / blocks;
  const auto limit = static_cast<std::int64_t>(options.segment_bytes);
  if (block <= 4 * limit) return 1;
  return static_cast<int>(std::min<std::int64_t>((block + limit - 1) / limit, 4096));
}

namespace detail {

/// One rank's steps, with what their execution needs to know in advance.
struct Program {
  struct Step {
    schedule::Action action;
    bool completes;
    int peer;
    int chunk;
    int count;
    int first_guard, last_guard;  // the sends in `guards` that must be over before a receive writes
    int ready;                    // a receive may be announced once this many steps are done
    int slot;                     // which scratch buffer a receive_reduce uses
  };
  std::string_view name;
  int blocks = 1, segments = 1, root = 0;
  std::vector<Step> steps;
  std::vector<int> guards;

  static constexpr int slots = 8;

  template <schedule::Schedule S>
  Program(const S& s, int rank, int size, int root_rank)
      : name(S::name), blocks(s.blocks(size)), segments(s.segments), root(root_rank) {
    const auto chunk_count = static_cast<std::size_t>(schedule::chunks(s, size));
    std::vector<std::vector<int>> reads(chunk_count);  // the sends of a chunk since it was last written
    std::vector<int> last_touch(chunk_count, -1);
    std::vector<int> reduces;
    s.steps(rank, size, [&](schedule::Step step) {
      const int index = static_cast<int>(steps.size());
      const int guard = static_cast<int>(guards.size());
      Step made{step.action, step.completes, step.peer, step.chunk, step.count, guard, guard, 0, 0};
      for (int c = step.chunk; c < step.chunk + step.count; ++c) {
        const auto chunk = static_cast<std::size_t>(c);
        made.ready = std::max(made.ready, last_touch[chunk] + 1);
        last_touch[chunk] = index;
        if (step.action == schedule::Action::send) {
          reads[chunk].push_back(index);
        } else {
          for (int read : reads[chunk])
            if (std::find(guards.begin() + guard, guards.end(), read) == guards.end()) guards.push_back(read);
          reads[chunk].clear();
        }
      }
      made.last_guard = static_cast<int>(guards.size());
      if (step.action == schedule::Action::receive_reduce) {
        const int number = static_cast<int>(reduces.size());
        made.slot = number % slots;
        made.ready = number < slots ? 0 : reduces[static_cast<std::size_t>(number - slots)] + 1;
        reduces.push_back(index);
      }
      steps.push_back(made);
    });
  }
};

}  // namespace detail

}  // namespace convoy::comm
