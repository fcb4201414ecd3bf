// The engine executes schedules on a transport, several at a time. It blocks only in the calls that are
// documented to wait.
//
// Each exchange in flight advances through its program as far as messages allow (Transfer). Exchanges in the
// same lane run one after the other. Exchanges in different lanes are independent: while one bucket waits for
// a message, the others go on. Lane 0 is for blocking operations; buckets take turns in the other lanes.
//
// An engine that has failed never works again. It fails
//
//   in an operation, which throws            if a peer is gone or sent something else, or at the deadline
//   in `fail_with`                           because another part of the same exchange has failed
//   in `stop`, or when an arena is freed     if an exchange was in flight
//
// Then the other ranks learn which rank is to blame (`accuse`), transfers are canceled, no peer reads this
// rank's memory any more (`withdraw`), and every later operation throws the reason again.
//
//   a transfer is   when
//   idle            it may begin
//   under way       it has begun; once all its instructions are done, it has `landed`
//   complete        its result is there
//   quiet           it is complete and no peer is still reading what this rank sent
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/comm/engine/inboxes.hpp>
#include <convoy/comm/engine/program.hpp>
#include <convoy/comm/engine/transfer.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/schedule/verify.hpp>
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
  /// The engine's own handle, isolated from the handle that the engine was made with.
  transport::Any& transport() { return port_.transport; }
  Traffic traffic() const { return port_.traffic; }
  void observe(Observer observer) { observer_ = observer; }

  /// Work that this rank does for others while it waits; returns whether it did any.
  struct Chore {
    bool (*call)(void* context) = nullptr;
    void* context = nullptr;
  };
  void while_waiting(Chore chore) { chore_ = chore; }

  /// The resource for arenas. An arena may be released while it is being exchanged: the engine stops
  /// first.
  std::pmr::memory_resource* memory() { return &arenas_; }

  /// The resource for receive buffers. Peers cannot reach this memory.
  std::pmr::memory_resource* inboxes() { return &inboxes_; }
  /// A receive buffer of at least `bytes` bytes instead of a smaller one. It has at least twice the size,
  /// because the smaller one is kept: so all that are kept together are no larger than the last.
  Buffer<std::byte> grown(const Buffer<std::byte>& smaller, std::size_t bytes) {
    return Buffer<std::byte>(std::max(bytes, 2 * smaller.size()), inboxes());
  }

  /// The program of a schedule for this rank. Programs are kept for the engine's lifetime, one for each type
  /// of schedule, number of segments and root; `schedule` must have the same steps whenever these three are
  /// the same. Throws ConfigError for a schedule that is not one of the library's and does not work for this
  /// number of ranks.
  const detail::Program& program(const schedule::View& schedule, int segments = 1, int root = 0);

  // --- blocking operations

  /// Executes a program over a buffer and returns when the buffer may be written again. `bucket` is -1, or
  /// detail::Purpose::barrier for a barrier.
  void run(const detail::Program& program, void* data, std::int64_t count, const Reduction& reduction,
           void* inbox = nullptr, int bucket = -1);

  // --- slots: exchanges that are repeated on the same ranges

  /// What a slot does. Slots of a lane must be begun in the same order on all ranks. Lane 0 is reserved for
  /// `run`.
  using Slot = detail::Cargo;

  /// Sets the number of slots; beginning them allocates nothing.
  void resize(int count);
  void assign(int slot, const Slot& what);
  bool begun(int slot) { return !at(slot).idle(); }
  /// Whether the slot's result is there. Peers may still be reading what this rank sent.
  bool complete(int slot) { return at(slot).complete(); }
  /// Whether the slot is complete and no peer is still reading what this rank sent.
  bool over(int slot) { return at(slot).quiet(port_); }
  void begin(int slot);
  /// Advances whatever can advance; true if anything did.
  bool poll();
  /// The same; returns `done()`. Throws CommError as `await` does: if a peer is gone, or if nothing has moved
  /// for the deadline. Of the time between two looks at most a second counts, because this rank may have
  /// computed meanwhile.
  bool look(Call<bool()> done);
  /// Returns once `done()` is true. Between looks it calls `also()`, which returns whether it made progress.
  /// `elsewhere`: `also` looks at something that does not wake this rank, so it must be called often.
  void await(Call<bool()> done, Call<bool()> also, bool elsewhere = false);
  void await(Call<bool()> done) {
    await(done, [] { return false; });
  }
  /// Returns when no slot is in flight; all may then be begun again.
  void drain();

  /// Ends what is in flight. If anything was, the engine fails.
  void stop() noexcept;

  /// Makes this engine one level of an exchange. Errors name its ranks by `names`, which are their numbers in
  /// `all`. The ranks of `all` together find out whom everyone waits for. Arenas of this engine may be
  /// released while `all` exchanges them, too.
  void belong_to(Engine& all, const std::vector<int>& names) {
    all_ = &all;
    failure_group_ = all.transport();
    port_.names = names;
  }
  /// Fails because of a failure elsewhere in the exchange, such as at another level.
  [[gnu::cold]] void fail_with(const CommError& error) noexcept;

 private:
  // Transfers waiting for their turn, in the order in which they began: a ring buffer.
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

  void expect_working() const {
    if (failed_) throw_again();
  }
  [[noreturn, gnu::cold]] void throw_again() const;

  // Stops if an exchange in flight reads or writes any of these bytes. Returns whether they may be freed.
  bool stop_using(const void* data, std::size_t bytes) noexcept;
  void prepare(Transfer& transfer, const Slot& what);
  void start(Transfer& transfer) {
    transfer.start(observer_.call != nullptr ? Clock::now() : Clock::time_point());
    lane_of(transfer).push(&transfer);
  }
  bool progress();
  [[gnu::cold]] void prove(const schedule::View& schedule, int segments, int root);

  /// Fails if a transfer waits for a peer that is gone, or if `late`. Returns whether anything has moved
  /// or is done after all.
  [[gnu::cold]] bool fail_if_stuck(bool late, double elapsed, Call<bool()> done);
  [[noreturn, gnu::cold]] void fail_and_throw(const CommError& error);
  void withdraw() noexcept;

  // A transfer that waits for a peer, and the instruction at which it waits.
  struct Blocked {
    Transfer* transfer = nullptr;
    std::size_t at = 0;
    std::string_view gone;  // why that peer will never answer
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
  Engine* all_ = nullptr;                           // of which this engine is one level
  transport::Any failure_group_ = port_.transport;  // its ranks find out together whom everyone waits for
  std::optional<Clock::time_point> looked_;         // the last `look`, if nothing has moved since
  double waited_ = 0, checked_ = 0;  // seconds of such looks; after which peers were checked last
  bool failed_ = false;
  std::string reason_;
  int culprit_ = -1;  // of the failure; -1: unknown
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
  for (const double cost : {options.cost.alpha, options.cost.beta, options.cost.gamma})
    if (!(cost >= 0 && cost < 1e9))
      fail<ConfigError>("a cost is ", cost,
                        "; alpha, beta and gamma must be seconds, at least 0 and below 1e9");
  if (!(options.deadline.count() > 0))
    fail<ConfigError>("the deadline is ", options.deadline.count(), " s; it must be positive");
}

CONVOY_FUNCTION Engine::~Engine() {
  stop();
  // Not every receive can be canceled: a message library may go on writing a message that has come in part.
  if (failed_) inboxes_.keep();
}

CONVOY_FUNCTION void* Engine::Arenas::do_allocate(std::size_t bytes, std::size_t align) {
  return engine_.port_.transport.memory()->allocate(bytes, align);
}
CONVOY_FUNCTION void Engine::Arenas::do_deallocate(void* data, std::size_t bytes, std::size_t align) {
  bool free = engine_.stop_using(data, bytes);
  if (engine_.all_ != nullptr) free = engine_.all_->stop_using(data, bytes) && free;
  if (free) engine_.port_.transport.memory()->deallocate(data, bytes, align);
}

CONVOY_FUNCTION bool Engine::stop_using(const void* data, std::size_t bytes) noexcept {
  const auto uses = [&](Transfer& transfer) {
    return !transfer.idle() && transfer.touches(data, bytes) && !transfer.quiet(port_);
  };
  if (uses(blocking_) || std::any_of(slots_.begin(), slots_.end(), uses)) stop();
  // A message library may still be sending from it, and its sends cannot be canceled.
  return !failed_ || port_.transport.in_place();
}

CONVOY_FUNCTION void Engine::throw_again() const {
  CommError error({name(), -1, "exchange", 0, 0, 0, culprit_},
                  concat("this exchange has failed before: ", reason_));
  if (reason_.starts_with("rank ")) error.root = reason_;
  throw error;
}

CONVOY_FUNCTION void Engine::prepare(Transfer& transfer, const Slot& what) {
  const std::size_t scratch = transfer.prepare(port_, what);
  Lane& lane = lane_of(transfer);
  if (scratch > lane.scratch.size()) lane.scratch = grown(lane.scratch, scratch);
}

CONVOY_FUNCTION void Engine::fail_and_throw(const CommError& error) {
  fail_with(error);
  throw error;
}

CONVOY_FUNCTION const detail::Program& Engine::program(const schedule::View& schedule, int segments,
                                                       int root) {
  for (const auto& p : programs_)
    if (p->kind == schedule.kind() && p->segments == segments && p->root == root) return *p;
  if (!schedule.proved()) prove(schedule, segments, root);
  programs_.push_back(
      std::make_unique<detail::Program>(schedule, segments, options_.window, rank(), size(), root));
  return *programs_.back();
}

// With few segments, whatever the buffer: the time of a proof grows with their number.
CONVOY_FUNCTION void Engine::prove(const schedule::View& schedule, int segments, int root) {
  const auto few = [](int number) { return std::min(number, 3); };
  for (const auto& p : programs_)
    if (p->kind == schedule.kind() && few(p->segments) == few(segments) && p->root == root) return;
  const schedule::Diagnosis found =
      schedule.verify(few(segments), options_.window, size(), port_.transport.capacity());
  if (!found)
    fail<ConfigError>("the schedule ", schedule.name(), " is wrong for ", counted(size(), "rank"), " and ",
                      counted(few(segments), "segment"), ": ", schedule::explain(found));
}

CONVOY_FUNCTION void Engine::run(const detail::Program& program, void* data, std::int64_t count,
                                 const Reduction& reduction, void* inbox, int bucket) {
  expect_working();
  prepare(blocking_, {&program, data, count, reduction, 0, bucket, inbox});
  start(blocking_);
  await([&] { return blocking_.quiet(port_); });
  blocking_.rest();
}

CONVOY_FUNCTION void Engine::resize(int count) {
  stop();
  expect_working();
  inboxes_.free();
  slots_.clear();
  slots_.resize(static_cast<std::size_t>(count));
  for (Lane& lane : lanes_) {
    lane.queue.assign(static_cast<std::size_t>(std::max(count, 1)) + 1, nullptr);
    lane.head = lane.tail = 0;
  }
}

CONVOY_FUNCTION void Engine::assign(int slot, const Slot& what) {
  if (what.lane < 1 || what.lane >= port_.transport.lanes())
    fail("there is no lane ", what.lane, " for buckets; there are 1 to ", port_.transport.lanes() - 1);
  prepare(at(slot), what);
}

CONVOY_FUNCTION void Engine::begin(int slot) {
  expect_working();
  Transfer& transfer = at(slot);
  if (!transfer.idle()) detail::refuse_second_begin(transfer.bucket());
  looked_.reset();
  start(transfer);
  progress();
}

CONVOY_FUNCTION bool Engine::poll() {
  expect_working();
  const bool moved = progress();
  if (!port_.transport.in_place()) {
    // A library that makes progress only inside its calls may need a call for sends, too.
    for (Transfer& transfer : slots_)
      if (transfer.complete() && !transfer.quiet(port_)) break;
  }
  return moved;
}

CONVOY_FUNCTION void Engine::drain() {
  expect_working();
  for (Transfer& transfer : slots_) {
    if (transfer.idle()) continue;
    await([&] { return transfer.quiet(port_); });
    transfer.rest();
  }
}

CONVOY_FUNCTION void Engine::stop() noexcept {
  bool pending = !blocking_.idle() && !blocking_.quiet(port_);
  for (Transfer& transfer : slots_) pending = pending || (!transfer.idle() && !transfer.quiet(port_));
  if (!pending || failed_) return;
  reason_ = "it was ended with buckets in flight";
  failure_group_.accuse(name());
  withdraw();
}

CONVOY_FUNCTION void Engine::fail_with(const CommError& error) noexcept {
  if (failed_) return;
  reason_ = error.origin();
  culprit_ = error.culprit;
  failure_group_.accuse(error.culprit < 0 ? name() : error.culprit);
  withdraw();
}

CONVOY_FUNCTION void Engine::withdraw() noexcept {
  failed_ = true;
  // Cancel first: while this rank still counts as reading a peer's memory, that peer cannot withdraw.
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
    fail_and_throw(error);
  } catch (const Error& error) {  // a transport that refuses
    fail_and_throw(CommError({name(), -1, "exchange", 0, 0, 0}, error.what()));
  }
  if (moved) looked_.reset();
  return moved;
}

CONVOY_FUNCTION bool Engine::look(Call<bool()> done) {
  constexpr double between_checks = 1e-3;  // a check may cost system calls
  const bool moved = poll();
  if (done()) return true;
  if (moved) return false;
  const auto now = Clock::now();
  if (looked_)
    waited_ += std::min(Seconds(now - *looked_).count(), 1.0);
  else
    waited_ = checked_ = 0;
  looked_ = now;
  if (waited_ - checked_ < between_checks) return false;
  checked_ = waited_;
  return fail_if_stuck(waited_ > options_.deadline.count(), waited_, done) && done();
}

CONVOY_FUNCTION bool Engine::fail_if_stuck(bool late, double elapsed, Call<bool()> done) {
  const Blocked at = blocked();
  if (at.gone.empty() && !late) return false;
  if (!at.gone.empty()) {
    // What the peer did just before it went is seen only now: its last message, and the last that it took.
    if (progress() || done()) return true;
    const Blocked still = blocked();
    if (still.transfer != at.transfer || still.at != at.at) return false;
  }
  CommError::Fields f{name(), -1, "exchange", 0, 0, elapsed};
  if (at.transfer != nullptr) f = at.transfer->describe(port_, at.at, elapsed);
  const transport::Blame blame =
      at.gone.empty() ? transport::blame_late(failure_group_, f.peer, options_.deadline)
                      : transport::blame_departed(failure_group_, f.peer, at.gone, options_.deadline);
  f.culprit = blame.culprit;
  CommError error(f, blame.reason);
  error.root = blame.root;
  fail_and_throw(error);
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
  // Whatever is not over, lane by lane.
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
    if (fail_if_stuck(wait.late(), wait.elapsed(), done)) continue;
    wait.rest();
  }
}
#endif

}  // namespace convoy::comm
