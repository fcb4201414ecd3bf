// Threads: the ranks are threads of one process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include <convoy/comm/transport/any.hpp>
#include <convoy/comm/transport/channels.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/call.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

#if CONVOY_DEFINITIONS
#include <exception>
#include <string>
#include <thread>

#include <convoy/comm/error.hpp>
#endif

namespace convoy::transport {

namespace detail {

/// What the threads of a world share. A place is an address.
class ThreadWorld : public std::enable_shared_from_this<ThreadWorld> {
 public:
  explicit ThreadWorld(int size);
  ~ThreadWorld();

  int size() const { return static_cast<int>(ranks_.size()); }
  int patience() const { return patience_; }
  RankRecord<false>& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }

  /// The next message space of a rank. The k-th call of each rank opens the same space.
  int open(int rank);
  void close(int space);
  int spaces() const { return count_.load(std::memory_order_acquire); }

  Channel* existing(int space, int from, int to) {
    return at(space, from, to).load(std::memory_order_acquire);
  }
  /// Made on first use.
  Channel& channel(int space, int from, int to);

  static std::uint64_t place_of(int, const void* data, std::size_t) {
    return reinterpret_cast<std::uintptr_t>(data);
  }
  static void* at(int, int, std::uint64_t place) { return reinterpret_cast<void*>(place); }
  static std::string_view gone(int) { return {}; }
  static bool close_off() { return false; }
  static Seconds limit() { return Seconds(60); }

  void leave(int r, Life life, std::string_view reason);

 private:
  // One channel for each ordered pair.
  struct Space {
    explicit Space(std::size_t pairs) : channels(pairs) {}
    ~Space() {
      for (auto& channel : channels) delete channel.load();
    }
    std::vector<std::atomic<Channel*>> channels;
    int number = 0;  // how many spaces each rank has opened before this one
    int closed = 0;  // ranks that have opened and closed this space
  };
  using Table = std::unique_ptr<std::atomic<Space*>[]>;

  int unused_space();
  // Moves to a larger table. Ranks that still look at an older one find there every space that they know of.
  void grow();
  std::atomic<Channel*>& at(int space, int from, int to) {
    Space* s = table_.load(std::memory_order_acquire)[space].load(std::memory_order_acquire);
    return s->channels[static_cast<std::size_t>(from) * ranks_.size() + static_cast<std::size_t>(to)];
  }

  int patience_;
  std::vector<RankRecord<false>> ranks_;
  std::mutex mutex_;
  std::deque<Space> spaces_;
  std::vector<Table> tables_;  // the last one is in use
  std::size_t room_ = 0;       // capacity of that table
  std::atomic<std::atomic<Space*>*> table_{nullptr};
  std::atomic<int> count_{0};
  std::vector<int> opened_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION ThreadWorld::ThreadWorld(int size)
    : patience_(patience_of(size)), ranks_(static_cast<std::size_t>(size)), opened_(ranks_.size(), 0) {}

CONVOY_FUNCTION ThreadWorld::~ThreadWorld() = default;

CONVOY_FUNCTION int ThreadWorld::open(int rank) {
  const std::lock_guard lock(mutex_);
  const int number = opened_[static_cast<std::size_t>(rank)]++;
  for (int i = 0; i < spaces(); ++i)
    if (spaces_[static_cast<std::size_t>(i)].number == number) return i;
  const int space = unused_space();
  spaces_[static_cast<std::size_t>(space)].number = number;
  return space;
}

CONVOY_FUNCTION void ThreadWorld::close(int space) {
  const std::lock_guard lock(mutex_);
  ++spaces_[static_cast<std::size_t>(space)].closed;
}

CONVOY_FUNCTION int ThreadWorld::unused_space() {
  for (int i = 0; i < spaces(); ++i) {
    Space& space = spaces_[static_cast<std::size_t>(i)];
    if (space.closed < size()) continue;
    for (auto& channel : space.channels)
      if (Channel* c = channel.load(std::memory_order_relaxed); c != nullptr)
        for (ChannelLane& lane : c->lane) lane.reset();
    space.closed = 0;
    return i;
  }
  spaces_.emplace_back(ranks_.size() * ranks_.size());
  if (spaces_.size() > room_) grow();
  table_.load(std::memory_order_relaxed)[spaces_.size() - 1].store(&spaces_.back(),
                                                                   std::memory_order_release);
  count_.store(static_cast<int>(spaces_.size()), std::memory_order_release);
  return spaces() - 1;
}

CONVOY_FUNCTION Channel& ThreadWorld::channel(int space, int from, int to) {
  std::atomic<Channel*>& slot = at(space, from, to);
  Channel* found = slot.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto fresh = std::make_unique<Channel>();
  if (slot.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
  return *found;
}

CONVOY_FUNCTION void ThreadWorld::leave(int r, Life life, std::string_view reason) {
  rank(r).write(rank(r).reason, reason);
  rank(r).life.store(static_cast<int>(life));
  for (auto& other : ranks_) other.bell.ring();
}

CONVOY_FUNCTION void ThreadWorld::grow() {
  const std::atomic<Space*>* before = table_.load(std::memory_order_relaxed);
  const std::size_t larger = room_ > 0 ? 2 * room_ : 64;
  Table& fresh = tables_.emplace_back(std::make_unique<std::atomic<Space*>[]>(larger));
  for (std::size_t i = 0; i < room_; ++i) fresh[i].store(before[i].load(std::memory_order_relaxed));
  room_ = larger;
  table_.store(fresh.get(), std::memory_order_release);
}
#endif

}  // namespace detail

/// One rank's endpoint in a world of threads. A default-constructed one is alone in its world.
class Threads : public detail::Endpoint<detail::ThreadWorld> {
 public:
  class World;

  static constexpr std::string_view name = "threads";

  Threads() : Threads(std::make_shared<detail::ThreadWorld>(1), 0) {}
  Threads isolated() const { return Threads(world_->shared_from_this(), rank()); }

 private:
  Threads(std::shared_ptr<detail::ThreadWorld> world, int rank) : Endpoint(world, rank, world->open(rank)) {}
};

/// Ranks as threads: `World world{4}; world.run([](transport::Threads endpoint) { ... });`
class Threads::World {
 public:
  explicit World(int size) : size_(size) {
    if (size < 1) fail<ConfigError>("a world of threads needs at least 1 rank, not ", size);
  }
  int size() const { return size_; }

  /// Calls `body(Threads)` on `size` threads, one for each rank, and returns when all have ended. If a body
  /// throws, the others' waits for that rank end at once with a CommError. `run` then rethrows the first
  /// exception that is not a CommError, or else the first of all: the cause rather than its consequences. If
  /// the system refuses a thread, no thread calls `body`, and `run` throws an Error that says so.
  void run(Call<void(Threads)> body);

 private:
  int size_;
};

static_assert(Transport<Threads>);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void Threads::World::run(Call<void(Threads)> body) {
  const auto world = std::make_shared<detail::ThreadWorld>(size_);
  // Each rank keeps its exception until all have ended, so that no rank destroys another rank's exception.
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size_));
  int cause = -1;
  bool certain = false;
  std::mutex mutex;
  const auto caught = [&](int rank, bool is_cause) {
    thrown[static_cast<std::size_t>(rank)] = std::current_exception();
    const std::lock_guard lock(mutex);
    if (cause >= 0 && (certain || !is_cause)) return;
    cause = rank;
    certain = is_cause;
  };
  enum Gate : int { closed, open, given_up };
  std::atomic<int> gate{closed};
  const auto rank_main = [&](int rank) {
    gate.wait(closed);
    if (gate == given_up) return;
    try {
      body(Threads(world, rank));
      world->leave(rank, detail::Life::ended, {});
    } catch (const std::exception& e) {
      const auto* const passed_on = dynamic_cast<const CommError*>(&e);
      caught(rank, passed_on == nullptr);
      world->leave(rank, detail::Life::failed,
                   concat("that rank has failed: ", passed_on != nullptr ? passed_on->origin() : e.what()));
    } catch (...) {
      caught(rank, true);
      world->leave(rank, detail::Life::failed, "that rank has failed");
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size_));
  std::string refusal;
  try {
    for (int rank = 0; rank < size_; ++rank) threads.emplace_back(rank_main, rank);
  } catch (const std::exception& e) {
    refusal = e.what();
  }
  const auto started = static_cast<int>(threads.size());
  gate = started == size_ ? open : given_up;
  gate.notify_all();
  for (std::thread& thread : threads) thread.join();
  if (started < size_) fail("the system refuses a thread for rank ", started, " of ", size_, ": ", refusal);
  if (cause >= 0) std::rethrow_exception(thrown[static_cast<std::size_t>(cause)]);
}
#endif

CONVOY_INSTANTIATE(Any::Any(const Threads&));

}  // namespace convoy::transport
