// The engine: executes schedules on a transport, several at a time, without ever waiting except where it is
// told to.
//
// Each exchange in flight goes through its program as far as messages allow (Transfer).
// Exchanges on the same lane go one after the other, those on different lanes independently: while one bucket
// waits for a message, the others go on. Lane 0 is for operations that a caller waits for; buckets take turns
// on the others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/comm/engine/inboxes.hpp>
#include <convoy/comm/engine/program.hpp>
#include <convoy/comm/engine/transfer.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/schedule/view.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/comm/transport/culprit.hpp>
#include <convoy/comm/transport/wait.hpp>
#include <convoy/core/call.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/buffer.hpp>

namespace convoy::comm {

/// Executes schedules on one transport for one rank. Not movable: arenas hold its address.
class Engine {
  using Transfer = detail::Transfer;

 public:
  /// Throws ConfigError for options that do not fit the transport.
  Engine(const transport::Any& where, const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return port_.rank(); }
  int size() const { return port_.size(); }
  const Options& options() const { return options_; }
  /// The engine's own handle, isolated from the one that it was made with.
  transport::Any& transport() { return port_.transport; }
  Traffic traffic() const { return port_.traffic; }
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

  /// A schedule made ready for this rank, kept for as long as the engine: there is one for each type of
  /// schedule, number of segments and root. `schedule` must mean the same whenever these are the same.
  const detail::Program& program(const schedule::View& schedule, int segments = 1, int root = 0);

  // --- operations that the caller waits for

  /// Executes a program over a buffer and returns when it may be written again.
  void run(const detail::Program& program, void* data, std::int64_t count, const Reduction& reduction,
           void* inbox = nullptr);

  // --- slots: exchanges of the same ranges again and again

  /// What a slot does. Slots of a lane must be begun in the same order on all ranks; lane 0 is taken.
  using Slot = detail::Cargo;

  /// Makes room for `count` slots; nothing is allocated for them afterwards.
  void resize(int count);
  void assign(int slot, const Slot& what);
  bool begun(int slot) { return !at(slot).idle(); }
  /// Whether the slot's result is there. It may still be being read by others.
  bool complete(int slot) { return at(slot).complete(); }
  /// Whether, beyond that, nobody is reading what this rank sent any more.
  bool over(int slot) { return at(slot).quiet(port_); }
  void begin(int slot);
  /// Goes on with whatever can go on; true if anything did.
  bool poll();
  /// Returns when `done()`. Between looks it calls `also()`, which returns whether it moved anything;
  /// `elsewhere` says that it must be called often.
  void await(Call<bool()> done, Call<bool()> also, bool elsewhere = false);
  void await(Call<bool()> done) {
    await(done, [] { return false; });
  }
  /// Returns when no slot is in flight and all may be begun again.
  void drain();

  /// Gives up whatever is in transfer. After that the engine only throws, unless nothing was.
  void settle() noexcept;

  /// For one of the levels of an exchange: its ranks are known by `names` in errors, their numbers in `all`,
  /// whose ranks know whom everyone waits for.
  void belong_to(Engine& all, const std::vector<int>& names) {
    jury_ = all.transport();
    port_.names = names;
  }
  /// Gives up because of what happened at another level.
  [[gnu::cold]] void surrender(const CommError& error) noexcept;

 private:
  // Exchanges waiting for their turn, in order of their beginning: a ring buffer.
  struct Lane {
    std::vector<Transfer*> queue = std::vector<Transfer*>(2, nullptr);
    std::size_t head = 0, tail = 0;
    Buffer<std::byte> scratch;

    bool empty() const { return head == tail; }
    void push(Transfer* transfer) {
      queue[tail] = transfer;
      tail = (tail + 1) % queue.size();
    }
    void pop() { head = (head + 1) % queue.size(); }
  };

  class Arenas : public std::pmr::memory_resource {
   public:
    explicit Arenas(Engine& engine) : engine_(engine) {}

   private:
    CONVOY_FUNCTION void* do_allocate(std::size_t bytes, std::size_t align) override;
    CONVOY_FUNCTION void do_deallocate(void* data, std::size_t bytes, std::size_t align) override;
    CONVOY_FUNCTION bool do_is_equal(const memory_resource& other) const noexcept override {
      return this == &other;
    }
    Engine& engine_;
  };

  Transfer& at(int slot) {
    if (slot < 0 || static_cast<std::size_t>(slot) >= slots_.size())
      detail::refuse_bucket(slot, slots_.size());
    return slots_[static_cast<std::size_t>(slot)];
  }
  Lane& lane_of(const Transfer& transfer) { return lanes_[static_cast<std::size_t>(transfer.lane())]; }
  int name() const { return port_.name_of(rank()); }

  void usable() const {
    if (failed_) refuse();
  }
  [[noreturn, gnu::cold]] void refuse() const;

  void prepare(Transfer& transfer, const Slot& what);
  void start(Transfer& transfer) {
    transfer.start(observer_.call != nullptr ? Clock::now() : Clock::time_point());
    lane_of(transfer).push(&transfer);
  }
  bool progress();

  [[noreturn, gnu::cold]] void give_up(const CommError& error);
  void abandon() noexcept;

  // A transfer that waits for somebody, and where.
  struct Blocked {
    Transfer* transfer = nullptr;
    std::size_t at = 0;
    std::string_view gone;  // why it will wait for ever
  };
  Blocked blocked();

  detail::Port port_;
  Options options_;
  Arenas arenas_;
  detail::Inboxes inboxes_{port_.transport.in_place()};
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<detail::Program>> programs_;
  std::vector<Transfer> slots_;
  Transfer blocking_;
  Observer observer_;
  Chore chore_;
  transport::Any jury_ = port_.transport;  // the ranks that know whom everyone waits for
  bool failed_ = false;
  std::string reason_;
  int culprit_ = -1;  // of the failure, if one is known
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Engine::Engine(const transport::Any& where, const Options& options)
    : port_{where.isolated(), {}, {}},
      options_(options),
      arenas_(*this),
      lanes_(static_cast<std::size_t>(where.lanes())) {
  port_.transport.expect_sizes();
  const transport::Pacing pacing = port_.transport.pacing();
  if (options_.segment_bytes == 0) options_.segment_bytes = pacing.segment_bytes;
  if (options_.window == 0) options_.window = pacing.window;
  if (options_.segment_bytes < 64 || options_.segment_bytes > (1u << 28))
    fail<ConfigError>("segment_bytes is ", options_.segment_bytes, "; it must be between 64 and 2^28");
  const int most = where.capacity() > 0 ? where.capacity() / 2 : 64;
  if (options_.window < 1 || options_.window > most)
    fail<ConfigError>("window is ", options_.window, "; it must be between 1 and ", most, " on ",
                      where.name());
  if (!(options.deadline.count() > 0))
    fail<ConfigError>("the deadline is ", options.deadline.count(), " s; it must be positive");
}

CONVOY_FUNCTION Engine::~Engine() { settle(); }

CONVOY_FUNCTION void* Engine::Arenas::do_allocate(std::size_t bytes, std::size_t align) {
  return engine_.port_.transport.memory()->allocate(bytes, align);
}
CONVOY_FUNCTION void Engine::Arenas::do_deallocate(void* data, std::size_t bytes, std::size_t align) {
  engine_.settle();
  // Peers may still be reading what they were promised, through a library that cannot be told otherwise.
  if (engine_.failed_ && !engine_.port_.transport.in_place()) return;
  engine_.port_.transport.memory()->deallocate(data, bytes, align);
}

CONVOY_FUNCTION void Engine::refuse() const {
  throw CommError({name(), -1, "exchange", 0, 0, 0, culprit_},
                  concat("this exchange has failed before: ", reason_));
}

CONVOY_FUNCTION void Engine::prepare(Transfer& transfer, const Slot& what) {
  const std::size_t scratch = transfer.prepare(port_, what);
  Lane& lane = lane_of(transfer);
  if (scratch > lane.scratch.size()) lane.scratch = Buffer<std::byte>(scratch, inboxes());
}

CONVOY_FUNCTION void Engine::give_up(const CommError& error) {
  surrender(error);
  throw error;
}

CONVOY_FUNCTION const detail::Program& Engine::program(const schedule::View& schedule, int segments,
                                                       int root) {
  for (const auto& p : programs_)
    if (p->kind == schedule.kind() && p->segments == segments && p->root == root) return *p;
  programs_.push_back(
      std::make_unique<detail::Program>(schedule, segments, options_.window, rank(), size(), root));
  return *programs_.back();
}

CONVOY_FUNCTION void Engine::run(const detail::Program& program, void* data, std::int64_t count,
                                 const Reduction& reduction, void* inbox) {
  usable();
  prepare(blocking_, {&program, data, count, reduction, 0, -1, inbox});
  start(blocking_);
  await([&] { return blocking_.quiet(port_); });
  blocking_.rest();
}

CONVOY_FUNCTION void Engine::resize(int count) {
  settle();
  usable();
  inboxes_.free();
  slots_.clear();
  slots_.resize(static_cast<std::size_t>(count));
  for (Lane& lane : lanes_) lane.queue.assign(static_cast<std::size_t>(std::max(count, 1)) + 1, nullptr);
}

CONVOY_FUNCTION void Engine::assign(int slot, const Slot& what) {
  if (what.lane < 1 || what.lane >= port_.transport.lanes())
    fail("there is no lane ", what.lane, " for buckets; there are 1 to ", port_.transport.lanes() - 1);
  prepare(at(slot), what);
}

CONVOY_FUNCTION void Engine::begin(int slot) {
  usable();
  Transfer& transfer = at(slot);
  if (!transfer.idle()) detail::refuse_second_begin(transfer.bucket());
  start(transfer);
  progress();
}

CONVOY_FUNCTION bool Engine::poll() {
  usable();
  const bool moved = progress();
  if (!port_.transport.in_place()) {
    // A library that only works while it is called may need it for sends, too.
    for (Transfer& transfer : slots_)
      if (transfer.complete() && !transfer.quiet(port_)) break;
  }
  return moved;
}

CONVOY_FUNCTION void Engine::drain() {
  usable();
  for (Transfer& transfer : slots_) {
    if (transfer.idle()) continue;
    await([&] { return transfer.quiet(port_); });
    transfer.rest();
  }
}

CONVOY_FUNCTION void Engine::settle() noexcept {
  bool pending = !blocking_.idle() && !blocking_.quiet(port_);
  for (Transfer& transfer : slots_) pending = pending || (!transfer.idle() && !transfer.quiet(port_));
  if (!pending || failed_) return;
  reason_ = "it was ended with buckets in flight";
  jury_.accuse(name());
  abandon();
}

CONVOY_FUNCTION void Engine::surrender(const CommError& error) noexcept {
  if (failed_) return;
  reason_ = error.what();
  culprit_ = error.culprit;
  jury_.accuse(error.culprit < 0 ? name() : error.culprit);
  abandon();
}

CONVOY_FUNCTION void Engine::abandon() noexcept {
  failed_ = true;
  // Cancel first: a rank that still counts as reading a peer's memory would keep that peer from
  // withdrawing.
  blocking_.cancel(port_);
  for (Transfer& transfer : slots_) transfer.cancel(port_);
  port_.transport.withdraw(reason_);
}

CONVOY_FUNCTION bool Engine::progress() {
  bool moved = false;
  try {
    for (Lane& lane : lanes_)
      while (!lane.empty()) {
        Transfer& transfer = *lane.queue[lane.head];
        moved = transfer.advance(port_, lane.scratch.data()) || moved;
        if (!transfer.landed()) break;
        lane.pop();
        transfer.end();
        if (transfer.bucket() >= 0 && observer_.call != nullptr)
          observer_.call(observer_.context, {transfer.bucket(), transfer.began(), Clock::now()});
        moved = true;
      }
  } catch (const CommError& error) {
    give_up(error);
  } catch (const Error& error) {  // a transport that refuses
    give_up(CommError({name(), -1, "exchange", 0, 0, 0}, error.what()));
  }
  return moved;
}

CONVOY_FUNCTION Engine::Blocked Engine::blocked() {
  Blocked found;
  const auto look = [&](Transfer& transfer) {
    if (!found.gone.empty()) return;
    const std::size_t at = transfer.blocked_at(port_);
    if (!transfer.is_instruction(at)) return;
    found.gone = port_.transport.departed(transfer.peer_of(at));
    if (found.transfer != nullptr && found.gone.empty()) return;
    found.transfer = &transfer;
    found.at = at;
  };
  // What is not over, in order of its lane.
  for (Lane& lane : lanes_)
    if (!lane.empty()) look(*lane.queue[lane.head]);
  if (blocking_.complete() && !blocking_.quiet(port_)) look(blocking_);
  for (Transfer& transfer : slots_)
    if (transfer.complete() && !transfer.quiet(port_)) look(transfer);
  return found;
}

CONVOY_FUNCTION void Engine::await(Call<bool()> done, Call<bool()> also, bool elsewhere) {
  transport::Wait wait(port_.transport, options_.deadline, elsewhere || chore_.call != nullptr);
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
    const Blocked at = blocked();
    const auto fields = [&] {
      if (at.transfer == nullptr) return CommError::Fields{name(), -1, "exchange", 0, 0, wait.elapsed()};
      return at.transfer->describe(port_, at.at, wait.elapsed());
    };
    if (!at.gone.empty()) {
      if (progress()) continue;  // its last message may have come just before it went
      if (done()) return;
      CommError::Fields f = fields();
      const transport::Blame blame = transport::blame_departed(jury_, f.peer, at.gone, options_.deadline);
      f.culprit = blame.culprit;
      give_up(CommError(f, blame.reason));
    }
    if (wait.late()) {
      CommError::Fields f = fields();
      const transport::Blame blame = transport::blame_late(jury_, f.peer, options_.deadline);
      f.culprit = blame.culprit;
      give_up(CommError(f, blame.reason));
    }
    wait.rest();
  }
}
#endif

}  // namespace convoy::comm
