// The engine: executes schedules on a transport, several at a time, without ever waiting except where it is
// told to.
//
// Each exchange in flight walks through the steps of its schedule as far as messages allow (`advance`).
// Exchanges on the same lane go one after the other, those on different lanes independently: while one bucket
// waits for a message, the others go on. Lane 0 is for operations that a caller waits for; buckets take turns
// on the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/exchange/program.hpp>
#include <convoy/comm/kernel.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/transport/culprit.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/comm/transport/wait.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/memory.hpp>

namespace convoy::comm {

/// Executes schedules on one transport for one rank. Not movable: arenas hold its address.
template <transport::Transport T>
class Engine {
 public:
  Engine(const T& where, const Options& options);
  ~Engine() {
    settle();
    lanes_.clear();
    if (!failed_) inboxes_.free();
  }
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  const Options& options() const { return options_; }
  T& transport() { return transport_; }
  Traffic traffic() const { return traffic_; }
  void observe(Observer observer) { observer_ = observer; }

  /// What this rank does for others while it waits; returns whether it did anything.
  struct Chore {
    bool (*call)(void* context) = nullptr;
    void* context = nullptr;
  };
  void while_waiting(Chore chore) { chore_ = chore; }

  /// Arenas from here may be released while an exchange is in flight: it is given up first.
  std::pmr::memory_resource* memory() { return &arenas_; }

  /// Where messages are put that are not combined on the way. Peers cannot reach it.
  std::pmr::memory_resource* inboxes() { return &inboxes_; }

  /// A schedule made ready for this rank; kept for as long as the engine.
  template <class Make>
  const detail::Program& program(std::string_view name, int segments, int root, Make&& make) {
    for (const auto& p : programs_)
      if (p->name == name && p->segments == segments && p->root == root) return *p;
    programs_.push_back(std::make_unique<detail::Program>(make(), rank(), size(), root));
    return *programs_.back();
  }

  // --- operations that the caller waits for

  /// Executes a program over a buffer and returns when it may be written again.
  void run(const detail::Program& program, void* data, std::int64_t count, const Reduction& reduction,
           void* inbox = nullptr);

  // --- slots: exchanges of the same ranges again and again

  /// What a slot does. Slots of a lane must be begun in the same order on all ranks; lane 0 is taken.
  struct Slot {
    const detail::Program* program = nullptr;
    void* data = nullptr;
    std::int64_t count = 0;
    Reduction reduction{};
    int lane = 1;
    int bucket = 0;         ///< for observers and for sentences
    void* inbox = nullptr;  ///< where what others send is put if it is not combined on the way
  };

  /// Makes room for `count` slots; nothing is allocated for them afterwards.
  void resize(int count);
  void assign(int slot, const Slot& what);
  bool begun(int slot) { return at(slot).state != State::idle; }
  /// Whether the slot's result is there. It may still be being read by others.
  bool complete(int slot) { return at(slot).state == State::complete; }
  /// Whether, beyond that, nobody is reading what this rank sent any more.
  bool over(int slot) { return quiet_now(at(slot)); }
  void begin(int slot);
  /// Goes on with whatever can go on; true if anything did.
  bool poll();
  /// Returns when `done()`. Between looks it calls `also()`, which returns whether it moved anything;
  /// `elsewhere` says that it must be called often.
  template <class Done, class Also>
  void await(Done done, Also also, bool elsewhere = false);
  /// Returns when no slot is in flight and all may be begun again; `also` as in await.
  template <class Also>
  void drain(Also also);
  void drain() {
    drain([] { return false; });
  }

  /// Gives up whatever is in flight. After that the engine only throws, unless nothing was.
  void settle() noexcept;

  /// For one of the levels of an exchange: its ranks are known by `names` in errors, their numbers in `all`,
  /// whose ranks know whom everyone waits for.
  template <transport::Transport World>
  void belong_to(Engine<World>& all, const std::vector<int>& names) {
    jury_ = transport::Jury::of(all.transport());
    names_ = names;
  }
  /// Gives up because of what happened at another level.
  void surrender(const CommError& error) noexcept;

 private:
  enum class State : unsigned char { idle, queued, complete };

  struct Work {
    const detail::Program* program = nullptr;
    std::byte* data = nullptr;
    std::int64_t count = 0;
    std::int64_t grain = 1;
    std::size_t element = 4;
    Reduce reduce = nullptr;
    float scale = 1;
    int bucket = -1;
    int lane = 0;
    std::byte* inbox = nullptr;
    void* outside = nullptr;  // the caller's data, if peers cannot reach it: `bounce` stands in for it
    Buffer<std::byte> bounce;
    Fold fold = nullptr;
    bool streams = false;
    std::vector<void*> peers, into;  // the ranks' buffers; of one fold
    std::vector<const void*> from;
    State state = State::idle;
    std::size_t slot_bytes = 0;  // of this exchange's scratch buffers
    std::size_t at = 0;          // the next step to execute
    std::size_t posted = 0;      // receives before this step are announced
    std::size_t confirmed = 0;   // sends before this step are over
    std::vector<typename T::Request> requests;
    Clock::time_point begin{};
  };

  // Exchanges waiting for their turn, in order of their beginning: a ring buffer.
  struct Lane {
    std::vector<Work*> queue = std::vector<Work*>(2, nullptr);
    std::size_t head = 0, tail = 0;
    Buffer<std::byte> scratch;

    bool empty() const { return head == tail; }
    void push(Work* work) {
      queue[tail] = work;
      tail = (tail + 1) % queue.size();
    }
    void pop() { head = (head + 1) % queue.size(); }
  };

  class Arenas : public std::pmr::memory_resource {
   public:
    explicit Arenas(Engine& engine) : engine_(engine) {}

   private:
    void* do_allocate(std::size_t bytes, std::size_t align) override {
      return engine_.upstream()->allocate(bytes, align);
    }
    void do_deallocate(void* data, std::size_t bytes, std::size_t align) override {
      engine_.settle();
      // Peers may still be reading what they were promised, through a library that cannot be told otherwise.
      if (engine_.failed_ && !T::in_place) return;
      engine_.upstream()->deallocate(data, bytes, align);
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
    Engine& engine_;
  };

  // Their owners may be gone before this engine has given up what is in flight; a library may write to them
  // until then, and after a failure for good.
  class Inboxes : public std::pmr::memory_resource {
   public:
    void free() noexcept {
      for (const Block& b : retired_) std::pmr::new_delete_resource()->deallocate(b.data, b.bytes, b.align);
      retired_.clear();
    }

   private:
    struct Block {
      void* data;
      std::size_t bytes, align;
    };
    void* do_allocate(std::size_t bytes, std::size_t align) override {
      return std::pmr::new_delete_resource()->allocate(bytes, align);
    }
    void do_deallocate(void* data, std::size_t bytes, std::size_t align) override {
      retired_.push_back({data, bytes, align});
      if constexpr (T::in_place) free();
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
    std::vector<Block> retired_;
  };

  Work& at(int slot) {
    if (slot < 0 || static_cast<std::size_t>(slot) >= slots_.size())
      fail("there is no bucket ", slot, "; ", slots_.size(), " were opened");
    return slots_[static_cast<std::size_t>(slot)];
  }

  // Where arenas come from.
  std::pmr::memory_resource* upstream() {
    if constexpr (requires { transport_.memory(); })
      return transport_.memory();
    else
      return std::pmr::new_delete_resource();
  }

  void usable() const {
    if (failed_)
      throw CommError({name_of(rank()), -1, "exchange", 0, 0, 0},
                      "this exchange has failed before: " + reason_);
  }

  // As which rank it is known.
  int name_of(int rank) const {
    return names_.empty() || rank < 0 ? rank : names_[static_cast<std::size_t>(rank)];
  }

  // The elements of a step; in the inbox, those of its slot.
  Range range(const Work& work, const detail::Program::Step& step) const {
    const detail::Program& p = *work.program;
    if (step.whole()) return {0, work.count};
    if (step.chunk < p.inbox())
      return schedule::range_of(step.chunk, step.count, work.count, p.blocks, p.segments, work.grain);
    const std::int64_t slot = schedule::part(work.count, p.rank, p.blocks, work.grain).size();
    const int within = step.chunk - p.inbox();
    const Range segment = schedule::part(slot, within % p.segments, p.segments, work.grain);
    const std::int64_t begin = within / p.segments * slot;
    return {begin + segment.begin, begin + segment.end};
  }
  std::byte* address(const Work& work, const detail::Program::Step& step, const Range& r) const {
    const bool inside = step.whole() || step.chunk < work.program->inbox();
    return (inside ? work.data : work.inbox) + static_cast<std::size_t>(r.begin) * work.element;
  }

  void prepare(Work& work, const Slot& what);

  void start(Work& work) {
    work.at = work.posted = work.confirmed = 0;
    work.state = State::queued;
    if (work.outside != nullptr)
      std::memcpy(work.data, work.outside, static_cast<std::size_t>(work.count) * work.element);
    lanes_[static_cast<std::size_t>(work.lane)].push(&work);
  }
  void end(Work& work) {
    work.state = State::complete;
    if (work.outside != nullptr)
      std::memcpy(work.outside, work.data, static_cast<std::size_t>(work.count) * work.element);
    if (work.bucket >= 0 && observer_.call != nullptr)
      observer_.call(observer_.context, {work.bucket, work.begin, Clock::now()});
  }

  // The message that a step is about, for a sentence.
  CommError::Fields describe(const Work& work, std::size_t step, double elapsed) const;

  [[noreturn]] void give_up(const CommError& error);

  void abandon() noexcept;

  // The send that keeps a receive from writing, or -1.
  int unreleased(Work& work, const detail::Program::Step& step);

  // Announces receives ahead of their step, where the memory they go to is free already.
  void announce(Work& work);

  // Executes steps until one has to wait. True if any was executed.
  bool advance(Work& work);
  // One step on elements; false if it has to wait.
  bool execute(Work& work, const detail::Program::Step& step, const Range& r);
  void fold(Work& work, const detail::Program::Step& step, const Range& r);

  // Whether nothing of this exchange is in flight any more.
  bool quiet_now(Work& work);
  bool quiet(Work& work) {
    if (!quiet_now(work)) return false;
    if (work.bucket < 0) work.state = State::idle;
    return true;
  }

  bool progress();

  // The step of this exchange that waits for somebody.
  std::size_t blocked_at(Work& work);

  // What is not over, in order of its lane.
  template <class F>
  void each_blocked(F f) {
    for (Lane& lane : lanes_)
      if (!lane.empty()) f(*lane.queue[lane.head]);
    if (blocking_.state == State::complete && !quiet_now(blocking_)) f(blocking_);
    for (Work& work : slots_)
      if (work.state == State::complete && !quiet_now(work)) f(work);
  }

  T transport_;
  Options options_;
  Arenas arenas_;
  Inboxes inboxes_;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<detail::Program>> programs_;
  std::vector<Work> slots_;
  Work blocking_;
  Observer observer_;
  Chore chore_;
  Traffic traffic_;
  transport::Jury jury_ = transport::Jury::of(transport_);
  std::vector<int> names_;
  bool failed_ = false;
  std::string reason_;
};

template <transport::Transport T>
Engine<T>::Engine(const T& where, const Options& options)
    : transport_(where.isolated()),
      options_(options),
      arenas_(*this),
      lanes_(static_cast<std::size_t>(T::lanes)) {
  if constexpr (requires { transport_.expect_sizes(); }) transport_.expect_sizes();
  const transport::Pacing pacing = transport::pacing(transport_);
  if (options_.segment_bytes == 0) options_.segment_bytes = pacing.segment_bytes;
  if (options_.window == 0) options_.window = pacing.window;
  if (options_.segment_bytes < 64 || options_.segment_bytes > (1u << 28))
    fail<ConfigError>("segment_bytes is ", options_.segment_bytes, "; it must be between 64 and 2^28");
  const int most = T::capacity > 0 ? T::capacity / 2 : 64;
  if (options_.window < 1 || options_.window > most)
    fail<ConfigError>("window is ", options_.window, "; it must be between 1 and ", most, " on ", T::name);
  if (options.deadline.count() <= 0)
    fail<ConfigError>("the deadline is ", options.deadline.count(), " s; it must be positive");
}

template <transport::Transport T>
void Engine<T>::run(const detail::Program& program, void* data, std::int64_t count,
                    const Reduction& reduction, void* inbox) {
  usable();
  prepare(blocking_, {&program, data, count, reduction, 0, -1, inbox});
  start(blocking_);
  await([&] { return quiet(blocking_); }, [] { return false; });
}

template <transport::Transport T>
void Engine<T>::resize(int count) {
  settle();
  usable();
  inboxes_.free();
  slots_.clear();
  slots_.resize(static_cast<std::size_t>(count));
  for (Lane& lane : lanes_) lane.queue.assign(static_cast<std::size_t>(std::max(count, 1)) + 1, nullptr);
}

template <transport::Transport T>
void Engine<T>::assign(int slot, const Slot& what) {
  if (what.lane < 1 || what.lane >= T::lanes)
    fail("there is no lane ", what.lane, " for buckets; there are 1 to ", T::lanes - 1);
  prepare(at(slot), what);
}

template <transport::Transport T>
void Engine<T>::begin(int slot) {
  usable();
  Work& work = at(slot);
  if (work.state != State::idle) fail("bucket ", work.bucket, " was begun twice in one step");
  if (observer_.call != nullptr) work.begin = Clock::now();
  start(work);
  progress();
}

template <transport::Transport T>
bool Engine<T>::poll() {
  usable();
  const bool moved = progress();
  if constexpr (!T::in_place) {
    // A library that only works while it is called may need it for sends, too.
    for (Work& work : slots_)
      if (work.state == State::complete && !quiet_now(work)) break;
  }
  return moved;
}

template <transport::Transport T>
template <class Also>
void Engine<T>::drain(Also also) {
  usable();
  for (Work& work : slots_) {
    if (work.state == State::idle) continue;
    await([&] { return quiet(work); }, also);
    work.state = State::idle;
  }
}

template <transport::Transport T>
void Engine<T>::settle() noexcept {
  bool pending = blocking_.state != State::idle && !quiet_now(blocking_);
  for (Work& work : slots_) pending = pending || (work.state != State::idle && !quiet_now(work));
  if (!pending || failed_) return;
  reason_ = "it was ended with buckets in flight";
  jury_.accuse(jury_.transport, name_of(rank()));
  abandon();
}

template <transport::Transport T>
void Engine<T>::prepare(Work& work, const Slot& what) {
  const detail::Program& program = *what.program;
  work.program = &program;
  work.data = static_cast<std::byte*>(what.data);
  work.inbox = static_cast<std::byte*>(what.inbox);
  work.count = what.count;
  work.element = size_of(what.reduction.type);
  work.grain = schedule::grain_of(static_cast<std::int64_t>(work.element));
  work.reduce = what.reduction.loop;
  work.fold = what.reduction.fold;
  work.scale = what.reduction.op == Op::mean ? 1.0f / static_cast<float>(size()) : 1.0f;
  work.bucket = what.bucket;
  work.lane = what.lane;
  work.state = State::idle;
  const std::size_t bytes = static_cast<std::size_t>(what.count) * work.element;
  work.outside = nullptr;
  if constexpr (requires { transport_.reaches(what.data, bytes); }) {
    if (size() > 1 && bytes > 0 && !transport_.reaches(what.data, bytes)) {
      if (work.bounce.size() < bytes) {
        work.bounce = {};
        work.bounce = Buffer<std::byte>(bytes, upstream());
      }
      work.outside = what.data;
      work.data = work.bounce.data();
    }
  }
  if (work.requests.size() < program.steps.size()) work.requests.resize(program.steps.size());
  if (!program.peers.empty()) {
    const auto n = static_cast<std::size_t>(size());
    work.peers.assign(n, nullptr);
    work.into.assign(n, nullptr);
    work.from.assign(n, nullptr);
    work.peers[static_cast<std::size_t>(rank())] = work.data;
    work.streams = static_cast<std::int64_t>(bytes * n) >= detail::streaming_bytes;
  }
  if constexpr (!T::in_place) {
    std::size_t longest = 0, reduces = 0;
    for (const auto& step : program.steps)
      if (step.act == detail::Act::receive_reduce) {
        longest = std::max(longest, static_cast<std::size_t>(range(work, step).size()) * work.element);
        ++reduces;
      }
    Lane& l = lanes_[static_cast<std::size_t>(work.lane)];
    const std::size_t slots = std::min<std::size_t>(reduces, detail::Program::slots);
    work.slot_bytes = (longest + 4095) / 4096 * 4096;
    if (slots * work.slot_bytes > l.scratch.size())
      l.scratch = Buffer<std::byte>(slots * work.slot_bytes, inboxes());
  }
}

template <transport::Transport T>
CommError::Fields Engine<T>::describe(const Work& work, std::size_t step, double elapsed) const {
  CommError::Fields f{name_of(rank()), -1, {}, 0, 0, elapsed};
  f.operation = std::string(work.program->name);
  if (work.bucket >= 0) f.operation += concat(" of bucket ", work.bucket);
  if (step < work.program->steps.size()) {
    const auto& s = work.program->steps[step];
    f.peer = name_of(s.peer);
    f.sequence =
        work.requests[s.act == detail::Act::settle ? static_cast<std::size_t>(s.other) : step].sequence;
    f.bytes = static_cast<std::size_t>(range(work, s).size()) * work.element;
  }
  return f;
}

template <transport::Transport T>
void Engine<T>::give_up(const CommError& error) {
  surrender(error);
  throw error;
}

template <transport::Transport T>
void Engine<T>::surrender(const CommError& error) noexcept {
  if (failed_) return;
  reason_ = error.what();
  jury_.accuse(jury_.transport, error.culprit < 0 ? name_of(rank()) : error.culprit);
  abandon();
}

template <transport::Transport T>
void Engine<T>::abandon() noexcept {
  failed_ = true;
  const auto cancel = [&](Work& work) {
    if (work.state == State::idle) return;
    const auto& steps = work.program->steps;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      using detail::Act;
      const auto& s = steps[i];
      const bool sends = s.act == Act::send || s.act == Act::expose;
      const bool posted =
          sends ? i >= work.confirmed && i < work.at : s.receives() && i >= work.at && i < work.posted;
      const bool attached =
          s.act == Act::attach && i < work.at && static_cast<std::size_t>(s.other) >= work.at;
      if ((posted || attached) && !range(work, s).empty()) transport_.cancel(work.requests[i]);
    }
    work.state = State::idle;
  };
  // Cancel first: a rank that still counts as reading a peer's memory would keep that peer from
  // withdrawing.
  cancel(blocking_);
  for (Work& work : slots_) cancel(work);
  transport_.withdraw(reason_);
}

template <transport::Transport T>
int Engine<T>::unreleased(Work& work, const detail::Program::Step& step) {
  for (int g = step.first_guard; g < step.last_guard; ++g) {
    const int send = work.program->guards[static_cast<std::size_t>(g)];
    if (range(work, work.program->steps[static_cast<std::size_t>(send)]).empty()) continue;  // never posted
    if (!transport_.sent(work.requests[static_cast<std::size_t>(send)])) return send;
  }
  return -1;
}

template <transport::Transport T>
void Engine<T>::announce(Work& work) {
  const auto& steps = work.program->steps;
  const std::size_t limit = std::min(steps.size(), work.at + 2 * detail::Program::slots);
  for (; work.posted < limit; ++work.posted) {
    const auto& s = steps[work.posted];
    if (!s.receives()) continue;
    const Range r = range(work, s);
    if (r.empty()) continue;
    void* into = nullptr;
    if constexpr (!T::in_place) {
      if (static_cast<std::size_t>(s.ready) > work.at) return;
      Lane& lane = lanes_[static_cast<std::size_t>(work.lane)];
      if (s.act == detail::Act::receive_reduce) {
        into = lane.scratch.data() + static_cast<std::size_t>(s.slot) * work.slot_bytes;
      } else {
        if (unreleased(work, s) >= 0) return;
        into = address(work, s, r);
      }
    }
    transport_.receive(work.requests[work.posted], s.peer, work.lane, into,
                       static_cast<std::size_t>(r.size()) * work.element);
  }
}

template <transport::Transport T>
bool Engine<T>::advance(Work& work) {
  const auto& steps = work.program->steps;
  const std::size_t first = work.at;
  while (work.at < steps.size()) {
    announce(work);
    const auto& s = steps[work.at];
    const Range r = range(work, s);
    if (!r.empty() && !execute(work, s, r)) break;
    ++work.at;
  }
  return work.at != first;
}

template <transport::Transport T>
bool Engine<T>::execute(Work& work, const detail::Program::Step& s, const Range& r) {
  using detail::Act;
  auto& request = work.requests[work.at];
  std::byte* mine = address(work, s, r);
  const std::size_t bytes = static_cast<std::size_t>(r.size()) * work.element;
  switch (s.act) {
    case Act::send:
    case Act::expose:
      if (!transport_.send(request, s.peer, work.lane, mine, bytes)) return false;
      ++traffic_.messages;
      if (s.act == Act::send) traffic_.bytes += static_cast<std::int64_t>(bytes);
      return true;
    case Act::fold:
      fold(work, s, r);
      return true;
    case Act::detach:
      transport_.release(work.requests[static_cast<std::size_t>(s.other)]);
      return true;
    case Act::settle:
      return transport_.sent(work.requests[static_cast<std::size_t>(s.other)]);
    case Act::receive:
    case Act::receive_reduce:
    case Act::attach:
      break;
  }
  if (work.posted <= work.at || unreleased(work, s) >= 0) return false;
  const transport::Arrival arrival = transport_.arrived(request);
  if (arrival.data == nullptr) return false;
  if (arrival.bytes != bytes)
    give_up(CommError(describe(work, work.at, 0),
                      concat("rank ", name_of(s.peer), " sent ", arrival.bytes, " bytes where rank ",
                             name_of(rank()), " expects ", bytes)));
  if (s.act == Act::attach) {
    work.peers[static_cast<std::size_t>(s.peer)] = const_cast<void*>(arrival.data);  // it let this rank in
    return true;
  }
  if (s.act == Act::receive_reduce)
    work.reduce(mine, arrival.data, r.size(), s.completes ? work.scale : 1.0f);
  else if (arrival.data != mine)
    std::memcpy(mine, arrival.data, bytes);
  transport_.release(request);
  return true;
}

template <transport::Transport T>
void Engine<T>::fold(Work& work, const detail::Program::Step& s, const Range& r) {
  const auto& peers = work.program->peers;
  const std::size_t offset = static_cast<std::size_t>(r.begin) * work.element;
  const auto buffer = [&](int i) {
    const int peer = peers[static_cast<std::size_t>(i)];
    if (peer != rank()) traffic_.bytes += r.size() * static_cast<std::int64_t>(work.element);
    return static_cast<void*>(static_cast<std::byte*>(work.peers[static_cast<std::size_t>(peer)]) + offset);
  };
  const int sources = s.first_store - s.first_load, places = s.last_store - s.first_store;
  for (int i = 0; i < sources; ++i) work.from[static_cast<std::size_t>(i)] = buffer(s.first_load + i);
  for (int i = 0; i < places; ++i) work.into[static_cast<std::size_t>(i)] = buffer(s.first_store + i);
  work.fold(work.into.data(), places, work.from.data(), sources, r.size(), s.completes ? work.scale : 1.0f,
            work.streams);
}

template <transport::Transport T>
bool Engine<T>::quiet_now(Work& work) {
  if (work.state != State::complete) return false;
  const auto& steps = work.program->steps;
  for (; work.confirmed < steps.size(); ++work.confirmed) {
    const auto& s = steps[work.confirmed];
    if (s.act == detail::Act::send && !range(work, s).empty() &&
        !transport_.sent(work.requests[work.confirmed]))
      return false;
  }
  return true;
}

template <transport::Transport T>
bool Engine<T>::progress() {
  bool moved = false;
  try {
    for (Lane& lane : lanes_)
      while (!lane.empty()) {
        Work& work = *lane.queue[lane.head];
        moved = advance(work) || moved;
        if (work.at < work.program->steps.size()) break;
        lane.pop();
        end(work);
        moved = true;
      }
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {  // a transport that refuses
    give_up(CommError({name_of(rank()), -1, "exchange", 0, 0, 0}, error.what()));
  }
  return moved;
}

template <transport::Transport T>
std::size_t Engine<T>::blocked_at(Work& work) {
  const auto& steps = work.program->steps;
  if (work.at >= steps.size()) return std::min(work.confirmed, steps.size());
  const auto& s = steps[work.at];
  if (s.receives() && work.posted <= work.at)
    if (const int send = unreleased(work, s); send >= 0) return static_cast<std::size_t>(send);
  return work.at;
}

template <transport::Transport T>
template <class Done, class Also>
void Engine<T>::await(Done done, Also also, bool elsewhere) {
  transport::Wait wait(transport_, options_.deadline, elsewhere || chore_.call != nullptr);
  for (;;) {
    bool moved = progress();
    if (chore_.call != nullptr) moved = chore_.call(chore_.context) || moved;
    if (also() || moved) {
      if (done()) return;
      wait.moved();
      continue;
    }
    if (done()) return;
    if (wait.again()) continue;
    Work* blocked = nullptr;
    std::size_t step = 0;
    std::string_view gone;
    each_blocked([&](Work& work) {
      if (!gone.empty()) return;
      const std::size_t at = blocked_at(work);
      if (at >= work.program->steps.size()) return;
      gone = transport_.departed(work.program->steps[at].peer);
      if (blocked != nullptr && gone.empty()) return;
      blocked = &work;
      step = at;
    });
    const auto fields = [&] {
      if (blocked == nullptr) return CommError::Fields{name_of(rank()), -1, "exchange", 0, 0, wait.elapsed()};
      return describe(*blocked, step, wait.elapsed());
    };
    if (!gone.empty()) {
      if (progress()) continue;  // its last message may have come just before it went
      if (done()) return;
      CommError::Fields f = fields();
      const transport::Blame blame = jury_.departed(jury_.transport, f.peer, gone, options_.deadline);
      f.culprit = blame.culprit;
      give_up(CommError(f, blame.reason));
    }
    if (wait.late()) {
      CommError::Fields f = fields();
      const transport::Blame blame = jury_.late(jury_.transport, f.peer, options_.deadline);
      f.culprit = blame.culprit;
      give_up(CommError(f, blame.reason));
    }
    wait.rest();
  }
}

}  // namespace convoy::comm
