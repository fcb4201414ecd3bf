// Transfer: one exchange in flight. It advances through the instructions of its program as far as messages
// allow, and never waits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/engine/program.hpp>
#include <convoy/comm/engine/purpose.hpp>
#include <convoy/comm/engine/tuning.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/buffer.hpp>

namespace convoy::comm::detail {

/// What all transfers of a rank share.
struct Port {
  transport::Any transport;
  Traffic traffic;
  std::vector<int> names;  ///< the ranks' numbers in errors; empty: their own
  int buckets = 0;         ///< number of buckets seen so far

  int rank() const { return transport.rank(); }
  int size() const { return transport.size(); }
  int name_of(int rank) const {
    return names.empty() || rank < 0 ? rank : names[static_cast<std::size_t>(rank)];
  }
};

/// What is exchanged, and how.
struct Cargo {
  const Program* program = nullptr;
  void* data = nullptr;
  std::int64_t count = 0;
  Reduction reduction{};
  int lane = 1;
  int bucket = 0;         ///< for observers and errors
  void* inbox = nullptr;  ///< where schedules with an inbox receive messages (Program::inbox)
  std::span<const std::int64_t> cuts = {};  ///< where unequal blocks begin, as in schedule::Blocks
};

/// Only `prepare` allocates.
class Transfer {
 public:
  /// Returns the bytes of scratch memory that its receives need.
  std::size_t prepare(Port& port, const Cargo& cargo);

  int lane() const { return lane_; }
  int bucket() const { return bucket_; }
  bool idle() const { return state_ == State::idle; }
  /// Whether the result is there. Peers may still be reading what this rank sent.
  bool complete() const { return state_ == State::complete; }
  Clock::time_point began() const { return begin_; }

  void start(Clock::time_point now) {
    begin_ = now;
    at_ = posted_ = confirmed_ = 0;
    state_ = State::under_way;
    if (outside_ != nullptr) std::memcpy(data_, outside_, data_bytes());
  }
  /// Executes instructions until one has to wait; true if any was executed.
  bool advance(Port& port, std::byte* scratch);
  /// Whether all instructions are done.
  bool landed() const { return at_ >= program_->instructions.size(); }
  void end() {
    state_ = State::complete;
    if (outside_ != nullptr) std::memcpy(outside_, data_, data_bytes());
  }
  /// Whether it is complete and no peer is still reading what this rank sent.
  bool quiet(Port& port);
  void rest() { state_ = State::idle; }
  /// Whether the operation reads or writes any of these bytes.
  bool touches(const void* data, std::size_t bytes) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(data), end = begin + bytes;
    const auto meets = [&](const void* other, std::size_t length) {
      const auto at = reinterpret_cast<std::uintptr_t>(other);
      return at < end && at + length > begin;
    };
    const std::size_t own = data_bytes();
    return meets(data_, own) || (outside_ != nullptr && meets(outside_, own)) ||
           (inbox_ != nullptr && meets(inbox_, 1));
  }

  /// The instruction that waits for a peer, or the number of instructions if none does.
  std::size_t blocked_at(Port& port);
  bool is_instruction(std::size_t instruction) const { return instruction < program_->instructions.size(); }
  int peer_of(std::size_t instruction) const { return program_->instructions[instruction].peer; }
  /// The message of an instruction, as fields of an error.
  [[gnu::cold]] CommError::Fields describe(const Port& port, std::size_t instruction, double elapsed) const;

  /// Cancels all outstanding sends and receives.
  void cancel(Port& port) noexcept;

 private:
  enum class State : unsigned char { idle, under_way, complete };

  std::size_t data_bytes() const { return static_cast<std::size_t>(count_) * element_; }
  // Makes `data_` memory that peers can reach.
  void bring_within_reach(Port& port, const Cargo& cargo);
  // Sets the size of a scratch buffer, and returns the bytes of all.
  std::size_t size_scratch();
  // The elements of an instruction: a range of the buffer or, for a chunk in the inbox, of the inbox.
  Range elements_of(const Program::Instruction& instruction, const schedule::Blocks& buffer) const;
  // The same, cached: computing the range takes divisions, which cost more than a short message.
  const Range& range(std::size_t instruction) const { return ranges_[instruction]; }
  std::size_t bytes_of(const Range& r) const { return static_cast<std::size_t>(r.size()) * element_; }
  std::byte* address(const Program::Instruction& instruction, const Range& r) const {
    const bool inside = instruction.of_buffer() || instruction.chunk < program_->inbox();
    return (inside ? data_ : inbox_) + static_cast<std::size_t>(r.begin) * element_;
  }
  // The unfinished send that keeps a receive from writing, or -1.
  int unreleased(Port& port, const Program::Instruction& instruction);
  // Announces receives before their instruction is reached, if the memory they write to is already free.
  void announce(Port& port, std::byte* scratch);
  // Executes one instruction on a non-empty range; false if it has to wait.
  bool execute(Port& port, const Program::Instruction& instruction, const Range& r);
  void fold(Port& port, const Program::Instruction& instruction, const Range& r);

  const Program* program_ = nullptr;
  std::byte* data_ = nullptr;
  std::byte* inbox_ = nullptr;
  void* outside_ = nullptr;  // the caller's data, if peers cannot reach it and `bounce_` stands in for it
  Buffer<std::byte> bounce_;
  std::int64_t count_ = 0;
  std::int64_t grain_ = 1;
  std::size_t element_ = 4;
  Reduce reduce_ = nullptr;
  Fold fold_ = nullptr;
  double scale_ = 1;
  bool streams_ = false;
  int lane_ = 0, bucket_ = -1;
  std::uint16_t purpose_ = 0;
  std::vector<void*> peers_, into_;  // the ranks' buffers; destinations of one fold
  std::vector<const void*> from_;
  State state_ = State::idle;
  std::size_t slot_bytes_ = 0;  // size of a scratch buffer
  std::size_t at_ = 0;          // the next instruction to execute
  std::size_t posted_ = 0;      // receives before this instruction are announced
  std::size_t confirmed_ = 0;   // sends before this instruction are over
  std::vector<Range> ranges_;   // the elements of each instruction
  bool equal_ = false;          // whether `ranges_` are of equal blocks
  std::vector<transport::Any::Request> requests_;
  Clock::time_point begin_{};
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::size_t Transfer::prepare(Port& port, const Cargo& cargo) {
  const Program& program = *cargo.program;
  const bool as_before = program_ == &program && count_ == cargo.count && equal_ && cargo.cuts.empty() &&
                         element_ == size_of(cargo.reduction.type);
  equal_ = false;  // until the end: memory may be refused meanwhile, and `ranges_` be those of other cargo
  program_ = &program;
  data_ = static_cast<std::byte*>(cargo.data);
  inbox_ = static_cast<std::byte*>(cargo.inbox);
  count_ = cargo.count;
  element_ = size_of(cargo.reduction.type);
  grain_ = schedule::grain_of(static_cast<std::int64_t>(element_));
  reduce_ = cargo.reduction.loop;
  fold_ = cargo.reduction.fold;
  scale_ = cargo.reduction.op == Op::mean && cargo.reduction.divides ? 1.0 / port.size() : 1;
  bucket_ = cargo.bucket;
  lane_ = cargo.lane;
  port.buckets = std::max(port.buckets, bucket_ + 1);
  purpose_ = Purpose::of(program.goal, cargo.reduction, bucket_, port.name_of(program.root)).number();
  state_ = State::idle;
  bring_within_reach(port, cargo);
  if (requests_.size() < program.instructions.size()) requests_.resize(program.instructions.size());
  if (!as_before) {
    ranges_.clear();
    const schedule::Blocks buffer{count_, program.blocks, grain_, cargo.cuts};
    for (const auto& instruction : program.instructions) ranges_.push_back(elements_of(instruction, buffer));
  }
  equal_ = cargo.cuts.empty();
  if (!program.peers.empty()) {
    const auto n = static_cast<std::size_t>(port.size());
    peers_.assign(n, nullptr);
    into_.assign(n, nullptr);
    from_.assign(n, nullptr);
    peers_[static_cast<std::size_t>(port.rank())] = data_;
    streams_ = static_cast<std::int64_t>(data_bytes() * n) >= tuning.streaming_bytes;
  }
  return port.transport.in_place() ? 0 : size_scratch();
}

CONVOY_FUNCTION void Transfer::bring_within_reach(Port& port, const Cargo& cargo) {
  outside_ = nullptr;
  if (port.size() == 1 || data_bytes() == 0 || program_->copied ||
      port.transport.reaches(cargo.data, data_bytes()))
    return;
  if (bounce_.size() < data_bytes()) {
    bounce_ = {};  // first, so that there are never two
    bounce_ = Buffer<std::byte>(data_bytes(), port.transport.memory());
  }
  outside_ = cargo.data;
  data_ = bounce_.data();
}

CONVOY_FUNCTION std::size_t Transfer::size_scratch() {
  const Program& program = *program_;
  std::size_t longest = 0, reduces = 0;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].act == Act::receive_reduce) {
      longest = std::max(longest, bytes_of(range(i)));
      ++reduces;
    }
  slot_bytes_ =
      (longest + tuning.scratch_alignment - 1) / tuning.scratch_alignment * tuning.scratch_alignment;
  return std::min(reduces, static_cast<std::size_t>(tuning.scratch_slots)) * slot_bytes_;
}

CONVOY_FUNCTION Range Transfer::elements_of(const Program::Instruction& instruction,
                                            const schedule::Blocks& buffer) const {
  const Program& p = *program_;
  if (instruction.of_buffer()) return {0, count_};
  if (instruction.chunk < p.inbox())
    return schedule::range_of(instruction.chunk, instruction.count, buffer, p.segments);
  const std::int64_t slot = buffer[p.rank].size();
  const int within = instruction.chunk - p.inbox();
  const Range segment = share(slot, within % p.segments, p.segments, grain_);
  const std::int64_t begin = within / p.segments * slot;
  return {begin + segment.begin, begin + segment.end};
}

CONVOY_FUNCTION bool Transfer::advance(Port& port, std::byte* scratch) {
  const std::size_t first = at_;
  while (!landed()) {
    announce(port, scratch);
    const Program::Instruction& instruction = program_->instructions[at_];
    const Range& r = range(at_);
    if (!r.empty() && !execute(port, instruction, r)) break;
    ++at_;
  }
  return at_ != first;
}

CONVOY_FUNCTION void Transfer::announce(Port& port, std::byte* scratch) {
  const std::vector<Program::Instruction>& instructions = program_->instructions;
  const std::size_t limit = std::min(instructions.size(), at_ + tuning.announced_ahead);
  for (; posted_ < limit; ++posted_) {
    const auto& s = instructions[posted_];
    if (!s.receives()) continue;
    const Range& r = range(posted_);
    if (r.empty()) continue;
    void* into = nullptr;
    if (!port.transport.in_place()) {
      if (static_cast<std::size_t>(s.ready) > at_) return;
      if (s.act == Act::receive_reduce) {
        into = scratch + static_cast<std::size_t>(s.slot) * slot_bytes_;
      } else {
        if (unreleased(port, s) >= 0) return;
        into = address(s, r);
      }
    }
    requests_[posted_].purpose = purpose_;
    port.transport.receive(requests_[posted_], s.peer, lane_, into, bytes_of(r));
  }
}

CONVOY_FUNCTION bool Transfer::execute(Port& port, const Program::Instruction& s, const Range& r) {
  auto& request = requests_[at_];
  std::byte* mine = address(s, r);
  const std::size_t bytes = bytes_of(r);
  switch (s.act) {
    case Act::send:
    case Act::expose:
      request.purpose = purpose_;
      if (!port.transport.send(request, s.peer, lane_, mine, bytes)) return false;
      ++port.traffic.messages;
      if (s.act == Act::send) port.traffic.bytes += static_cast<std::int64_t>(bytes);
      return true;
    case Act::post:
      request.purpose = purpose_;
      if (!port.transport.post(request, s.peer, mine, bytes)) return false;
      ++port.traffic.messages;
      return true;
    case Act::fold:
      fold(port, s, r);
      return true;
    case Act::detach:
      port.transport.release(requests_[static_cast<std::size_t>(s.other)]);
      return true;
    case Act::settle:
      return port.transport.sent(requests_[static_cast<std::size_t>(s.other)]);
    case Act::receive:
    case Act::receive_reduce:
    case Act::attach:
      break;
  }
  if (posted_ <= at_ || unreleased(port, s) >= 0) return false;
  const transport::Arrival arrival = port.transport.arrived(request);
  if (request.purpose != purpose_)
    throw CommError(describe(port, at_, 0),
                    contrast(port.name_of(s.peer), request.purpose, port.name_of(port.rank()), purpose_,
                             bucket_, port.buckets));
  if (arrival.data == nullptr) return false;
  if (arrival.bytes != bytes)
    throw CommError(describe(port, at_, 0),
                    concat("rank ", port.name_of(s.peer), " sent ", arrival.bytes, " bytes where rank ",
                           port.name_of(port.rank()), " expects ", bytes));
  if (s.act == Act::attach) {
    peers_[static_cast<std::size_t>(s.peer)] = const_cast<void*>(arrival.data);  // the peer grants access
    return true;
  }
  if (s.act == Act::receive_reduce)
    reduce_(mine, arrival.data, r.size(), s.completes ? scale_ : 1);
  else if (arrival.data != mine)
    std::memcpy(mine, arrival.data, bytes);
  port.transport.release(request);
  return true;
}

CONVOY_FUNCTION void Transfer::fold(Port& port, const Program::Instruction& s, const Range& r) {
  const std::size_t offset = static_cast<std::size_t>(r.begin) * element_;
  const auto buffer = [&](int i) {
    const int peer = program_->peers[static_cast<std::size_t>(i)];
    if (peer != port.rank()) port.traffic.bytes += static_cast<std::int64_t>(bytes_of(r));
    return static_cast<void*>(static_cast<std::byte*>(peers_[static_cast<std::size_t>(peer)]) + offset);
  };
  const int sources = s.loads.size(), places = s.stores.size();
  for (int i = 0; i < sources; ++i) from_[static_cast<std::size_t>(i)] = buffer(s.loads.begin + i);
  for (int i = 0; i < places; ++i) into_[static_cast<std::size_t>(i)] = buffer(s.stores.begin + i);
  fold_(into_.data(), places, from_.data(), sources, r.size(), s.completes ? scale_ : 1, streams_);
}

CONVOY_FUNCTION int Transfer::unreleased(Port& port, const Program::Instruction& instruction) {
  for (int g = instruction.guards.begin; g < instruction.guards.end; ++g) {
    const int send = program_->guards[static_cast<std::size_t>(g)];
    if (range(static_cast<std::size_t>(send)).empty()) continue;  // never posted
    if (!port.transport.sent(requests_[static_cast<std::size_t>(send)])) return send;
  }
  return -1;
}

CONVOY_FUNCTION bool Transfer::quiet(Port& port) {
  if (state_ != State::complete) return false;
  const std::vector<Program::Instruction>& instructions = program_->instructions;
  for (; confirmed_ < instructions.size(); ++confirmed_) {
    const auto& s = instructions[confirmed_];
    if (s.act == Act::send && !range(confirmed_).empty() && !port.transport.sent(requests_[confirmed_]))
      return false;
  }
  return true;
}

CONVOY_FUNCTION std::size_t Transfer::blocked_at(Port& port) {
  if (landed()) return confirmed_;
  const auto& s = program_->instructions[at_];
  if (s.receives() && posted_ <= at_)
    if (const int send = unreleased(port, s); send >= 0) return static_cast<std::size_t>(send);
  return at_;
}

CONVOY_FUNCTION CommError::Fields Transfer::describe(const Port& port, std::size_t instruction,
                                                     double elapsed) const {
  CommError::Fields f{port.name_of(port.rank()), -1, {}, 0, 0, elapsed};
  f.operation = std::string(program_->name);
  if (bucket_ >= 0) f.operation += concat(" of bucket ", bucket_);
  if (is_instruction(instruction)) {
    const auto& s = program_->instructions[instruction];
    f.peer = port.name_of(s.peer);
    f.sequence = requests_[s.act == Act::settle ? static_cast<std::size_t>(s.other) : instruction].sequence;
    f.bytes = bytes_of(range(instruction));
  }
  return f;
}

CONVOY_FUNCTION void Transfer::cancel(Port& port) noexcept {
  if (idle()) return;
  const std::vector<Program::Instruction>& instructions = program_->instructions;
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const auto& s = instructions[i];
    const bool sends = s.act == Act::send || s.act == Act::expose;
    const bool posted = sends ? i >= confirmed_ && i < at_ : s.receives() && i >= at_ && i < posted_;
    const bool attached = s.act == Act::attach && i < at_ && static_cast<std::size_t>(s.other) >= at_;
    if ((posted || attached) && !range(i).empty()) port.transport.cancel(requests_[i]);
  }
  state_ = State::idle;
}
#endif

}  // namespace convoy::comm::detail
