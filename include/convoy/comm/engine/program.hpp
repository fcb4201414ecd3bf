// A schedule made ready for its execution by one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/comm/options.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

namespace convoy::comm {

/// Into how many segments each block is cut. A block of no more segments than may be under way at a time is
/// not: there is nothing to pipeline, and one long message is cheaper than several.
constexpr int segments_for(std::int64_t count, std::size_t element, int blocks, const Options& options) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(element);
  const std::int64_t block = (bytes + blocks - 1) / blocks;
  const auto limit = static_cast<std::int64_t>(options.segment_bytes);
  if (block <= options.window * limit) return 1;
  return static_cast<int>(std::min<std::int64_t>((block + limit - 1) / limit, 4096));
}

namespace detail {

/// What an engine does in one step: a message's part of a schedule, or one of what a schedule over shared
/// memory comes down to.
enum class Act : unsigned char {
  send,
  receive,
  receive_reduce,
  expose,  // let the peer into the whole buffer: the first barrier's half towards it
  post,    // leave it a copy instead
  attach,  // wait to be let into the peer's
  fold,    // combine and store
  detach,  // say that the peer's is left alone again
  settle,  // wait for the peer to say so: the second barrier
};

/// Its address tells schedules apart; their names need not differ.
template <class S>
inline constexpr char kind = 0;

/// One rank's steps, with what their execution needs to know in advance.
struct Program {
  struct Step {
    Act act;
    bool completes;
    int peer;
    int chunk;  // in this rank's buffer; from `inbox` on, in its inbox
    int count;
    int first_guard = 0, last_guard = 0;  // the sends in `guards` that must be over before a receive writes
    int ready = 0;                        // a receive may be announced once this many steps are done
    int slot = 0;                         // which scratch buffer a receive_reduce uses
    int other = 0;                        // attach and detach of each other, the expose of a settle
    int first_load = 0, first_store = 0, last_store = 0;  // of a fold, in `peers`

    constexpr bool receives() const {
      return act == Act::receive || act == Act::receive_reduce || act == Act::attach;
    }
    constexpr bool whole() const { return act >= Act::expose && act != Act::fold; }
  };
  std::string_view name;
  const char* kind;
  schedule::Goal goal;
  int blocks = 1, segments = 1, root = 0, rank = 0;
  std::vector<Step> steps;
  std::vector<int> guards;
  std::vector<int> peers;
  bool reduces = true;
  bool copied = false;  // peers read copies

  static constexpr int slots = 8;

  /// The first chunk that lies in the inbox, which has a slot for each rank, each as long as this rank's own
  /// block.
  int inbox() const { return blocks * segments; }

  template <schedule::Schedule S>
  Program(const S& s, int my_rank, int size, int root_rank)
      : name(S::name),
        kind(&detail::kind<S>),
        goal(S::goal),
        segments(s.segments),
        root(root_rank),
        rank(my_rank) {
    const auto place = [&](int chunk) {
      if constexpr (requires { s.places(size); })
        return s.place(chunk / segments, rank, size) * segments + chunk % segments;
      else
        return chunk;
    };
    int all = s.blocks(size);
    blocks = all;
    if constexpr (requires { s.places(size); }) {
      blocks = s.places(size);
      all = blocks + size;
    }
    History history(static_cast<std::size_t>(all * segments));
    s.steps(rank, size, [&](schedule::Step step) {
      step.chunk = place(step.chunk);
      add(step, history);
    });
  }

  template <schedule::SharedSchedule S>
  Program(const S& s, int my_rank, int size, int root_rank)
      : name(S::name),
        kind(&detail::kind<S>),
        goal(S::goal),
        blocks(s.blocks(size)),
        root(root_rank),
        rank(my_rank),
        reduces(S::goal == schedule::Goal::all_reduce || S::goal == schedule::Goal::reduce_scatter),
        copied(schedule::detail::copied<S>()) {
    const auto others = [&](Act act) {
      for (int k = 1; k < size; ++k) steps.push_back({act, false, (rank + k) % size, 0, 1});
    };
    others(copied ? Act::post : Act::expose);
    others(Act::attach);
    bool storing = true;
    s.accesses(rank, size, [&](schedule::Access a) {
      const int at = static_cast<int>(peers.size());
      if (a.kind == schedule::Access::load && (storing || steps.back().chunk != a.chunk)) {
        Step fold{Act::fold, reduces, rank, a.chunk, 1};
        fold.first_load = fold.first_store = fold.last_store = at;
        steps.push_back(fold);
      }
      storing = a.kind == schedule::Access::store;
      peers.push_back(a.peer);
      if (!storing) steps.back().first_store = at + 1;
      steps.back().last_store = at + 1;
    });
    const int first_detach = static_cast<int>(steps.size());
    others(Act::detach);
    const int first_settle = static_cast<int>(steps.size());
    if (!copied) others(Act::settle);
    for (int k = 0; k < size - 1; ++k) {
      const int expose = k, attach = size - 1 + k, detach = first_detach + k, settle = first_settle + k;
      steps[static_cast<std::size_t>(attach)].other = detach;
      steps[static_cast<std::size_t>(detach)].other = attach;
      if (!copied) steps[static_cast<std::size_t>(settle)].other = expose;
    }
  }

 private:
  // What the steps so far did to each chunk.
  struct History {
    explicit History(std::size_t chunks) : reads(chunks), last_touch(chunks, -1) {}
    std::vector<std::vector<int>> reads;  // the sends of a chunk since it was last written
    std::vector<int> last_touch;
    std::vector<int> reduced;
  };
  void add(const schedule::Step& step, History& history);
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void Program::add(const schedule::Step& step, History& history) {
  const int index = static_cast<int>(steps.size());
  const int guard = static_cast<int>(guards.size());
  const Act act = step.action == schedule::Action::send      ? Act::send
                  : step.action == schedule::Action::receive ? Act::receive
                                                             : Act::receive_reduce;
  Step made{act, step.completes, step.peer, step.chunk, step.count, guard, guard};
  for (int c = made.chunk; c < made.chunk + made.count; ++c) {
    const auto chunk = static_cast<std::size_t>(c);
    made.ready = std::max(made.ready, history.last_touch[chunk] + 1);
    history.last_touch[chunk] = index;
    if (act == Act::send) {
      history.reads[chunk].push_back(index);
    } else {
      for (int read : history.reads[chunk])
        if (std::find(guards.begin() + guard, guards.end(), read) == guards.end()) guards.push_back(read);
      history.reads[chunk].clear();
    }
  }
  made.last_guard = static_cast<int>(guards.size());
  if (act == Act::receive_reduce) {
    const int number = static_cast<int>(history.reduced.size());
    made.slot = number % slots;
    made.ready = number < slots ? 0 : history.reduced[static_cast<std::size_t>(number - slots)] + 1;
    history.reduced.push_back(index);
  }
  steps.push_back(made);
}
#endif

}  // namespace detail

}  // namespace convoy::comm
