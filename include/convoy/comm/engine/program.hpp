// Program: a schedule prepared for execution by one rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/comm/engine/tuning.hpp>
#include <convoy/comm/options.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/view.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

namespace convoy::comm {

/// The number of segments that each block is cut into. A block of no more segments than may be in flight at a
/// time is not cut: there is nothing to pipeline, and one long message is cheaper than several.
constexpr int segments_for(std::int64_t count, std::size_t element, int blocks, const Options& options) {
  if (blocks < 1) return 1;  // of a schedule that its proof refuses
  const std::int64_t bytes = count * static_cast<std::int64_t>(element);
  const std::int64_t block = (bytes + blocks - 1) / blocks;
  const auto limit = static_cast<std::int64_t>(options.segment_bytes);
  if (block <= options.window * limit) return 1;
  return static_cast<int>(std::min<std::int64_t>((block + limit - 1) / limit, detail::tuning.most_segments));
}

namespace detail {

/// The kinds of instruction: the messages of a schedule, or the operations that a schedule over shared memory
/// is broken into.
enum class Act : unsigned char {
  send,
  receive,
  receive_reduce,
  expose,  // give the peer access to the whole buffer: half of the first barrier
  post,    // send the peer a copy of the buffer instead
  attach,  // wait for access to the peer's buffer or copy: the other half
  fold,    // combine and store
  detach,  // tell the peer that this rank is done with its buffer
  settle,  // wait until the peer is done with this rank's buffer: the second barrier
};

/// What one rank does for a schedule, in order, with what execution needs to know in advance.
struct Program {
  /// Consecutive elements of one of the lists below.
  struct Part {
    int begin = 0, end = 0;
    constexpr int size() const { return end - begin; }
  };
  struct Instruction {
    Act act;
    bool completes;
    int peer;
    int chunk;  // in this rank's buffer; from inbox() on, in its inbox
    int count;
    // Of a receive.
    Part guards = {};  // of `guards`: the sends that must be over before the receive writes
    int ready = 0;     // the receive may be announced once this many instructions are done
    int slot = 0;      // which scratch buffer a receive_reduce uses
    // Of attach, detach and settle.
    int other = 0;  // matching instruction: attach <-> detach, settle -> expose
    // Of a fold.
    Part loads = {}, stores = {};  // of `peers`: whose buffers it reads and writes

    constexpr bool receives() const {
      return act == Act::receive || act == Act::receive_reduce || act == Act::attach;
    }
    /// Whether it concerns the buffer as one, not a chunk.
    constexpr bool of_buffer() const { return act >= Act::expose && act != Act::fold; }
  };

  /// `segment_count` and `window` are for schedules of messages, `root_rank` for schedules with a root.
  Program(const schedule::View& schedule, int segment_count, int window, int my_rank, int size,
          int root_rank);

  std::string_view name;
  const void* kind;
  schedule::Goal goal;
  int blocks = 1, segments = 1, root = 0, rank = 0;
  std::vector<Instruction> instructions;
  std::vector<int> guards;
  std::vector<int> peers;
  bool reduces = true;
  bool copied = false;  // peers read copies

  /// The first chunk that lies in the inbox. The inbox has one slot per rank, each as long as this rank's own
  /// block.
  int inbox() const { return blocks * segments; }

 private:
  // What the instructions so far have done to each chunk.
  struct History {
    explicit History(std::size_t chunks) : reads(chunks), last_touch(chunks, -1) {}
    std::vector<std::vector<int>> reads;  // the sends of a chunk since it was last written
    std::vector<int> last_touch;
    std::vector<int> reduced;
  };
  void compile_messages(const schedule::View& schedule, int window, int size);
  void compile_shared(const schedule::View& schedule, int size);
  void add(const schedule::Step& step, History& history);
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Program::Program(const schedule::View& schedule, int segment_count, int window, int my_rank,
                                 int size, int root_rank)
    : name(schedule.name()),
      kind(schedule.kind()),
      goal(schedule.goal()),
      blocks(schedule.blocks(size)),
      segments(segment_count),
      root(root_rank),
      rank(my_rank) {
  if (schedule.shared())
    compile_shared(schedule, size);
  else
    compile_messages(schedule, window, size);
}

CONVOY_FUNCTION void Program::compile_messages(const schedule::View& schedule, int window, int size) {
  const int places = schedule.places(size);
  int all = blocks;
  if (places > 0) {
    blocks = places;
    all = blocks + size;
  }
  History history(static_cast<std::size_t>(all * segments));
  schedule.steps(segments, window, rank, size, [&](schedule::Step step) {
    if (places > 0)
      step.chunk = schedule.place(step.chunk / segments, rank, size) * segments + step.chunk % segments;
    add(step, history);
  });
}

CONVOY_FUNCTION void Program::compile_shared(const schedule::View& schedule, int size) {
  reduces = goal == schedule::Goal::all_reduce || goal == schedule::Goal::reduce_scatter;
  copied = schedule.copied();
  const auto others = [&](Act act) {
    for (int k = 1; k < size; ++k) instructions.push_back({act, false, (rank + k) % size, 0, 1});
  };
  others(copied ? Act::post : Act::expose);
  others(Act::attach);
  bool storing = true;
  schedule.accesses(rank, size, [&](const schedule::Access& a) {
    const int at = static_cast<int>(peers.size());
    if (a.kind == schedule::Access::load && (storing || instructions.back().chunk != a.chunk)) {
      Instruction fold{Act::fold, reduces, rank, a.chunk, 1};
      fold.loads = fold.stores = {at, at};
      instructions.push_back(fold);
    }
    storing = a.kind == schedule::Access::store;
    peers.push_back(a.peer);
    Instruction& fold = instructions.back();
    if (!storing) fold.loads.end = fold.stores.begin = at + 1;
    fold.stores.end = at + 1;
  });
  const int first_detach = static_cast<int>(instructions.size());
  others(Act::detach);
  const int first_settle = static_cast<int>(instructions.size());
  if (!copied) others(Act::settle);
  for (int k = 0; k < size - 1; ++k) {
    const int expose = k, attach = size - 1 + k, detach = first_detach + k, settle = first_settle + k;
    instructions[static_cast<std::size_t>(attach)].other = detach;
    instructions[static_cast<std::size_t>(detach)].other = attach;
    if (!copied) instructions[static_cast<std::size_t>(settle)].other = expose;
  }
}

CONVOY_FUNCTION void Program::add(const schedule::Step& step, History& history) {
  const int index = static_cast<int>(instructions.size());
  const int guard = static_cast<int>(guards.size());
  const Act act = step.action == schedule::Action::send      ? Act::send
                  : step.action == schedule::Action::receive ? Act::receive
                                                             : Act::receive_reduce;
  Instruction made{act, step.completes, step.peer, step.chunk, step.count, {guard, guard}};
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
  made.guards.end = static_cast<int>(guards.size());
  if (act == Act::receive_reduce) {
    const int number = static_cast<int>(history.reduced.size());
    made.slot = number % tuning.scratch_slots;
    made.ready = number < tuning.scratch_slots
                     ? 0
                     : history.reduced[static_cast<std::size_t>(number - tuning.scratch_slots)] + 1;
    history.reduced.push_back(index);
  }
  instructions.push_back(made);
}
#endif

}  // namespace detail

}  // namespace convoy::comm
