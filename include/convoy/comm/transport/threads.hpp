// Threads: the ranks are threads of one process. A message is a pointer: the receiver reads or reduces
// straight from the sender's memory and then says that it has. Nothing is copied on the way, and nothing is
// allocated per message.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <convoy/comm/transport/bell.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>

namespace convoy::transport {

/// One rank's endpoint in a world of threads. A default-constructed one is alone in its world.
class Threads {
 public:
  class World;

  static constexpr std::string_view name = "threads";
  static constexpr bool in_place = true;
  static constexpr int capacity = 16;
  static constexpr int lanes = 5;

 private:
  struct Lane {
    struct Slot {
      const void* data = nullptr;
      std::size_t bytes = 0;
    };
    alignas(64) std::atomic<std::uint64_t> published{0};
    Slot slots[capacity];
    std::uint64_t next_send = 0;  // the sender's own
    alignas(64) std::atomic<std::uint64_t> consumed{0};
    std::atomic<std::uint32_t> reading{0};
    std::uint64_t next_receive = 0;  // the receiver's own
  };
  struct Channel {
    Lane lane[lanes];
  };

  enum class Life : int { here, ended, failed };

  struct Rank {
    Bell bell;
    std::atomic<int> life{static_cast<int>(Life::here)};
    std::atomic<bool> withdrawn{false};
    std::atomic<int> accuses{-1};
    std::string reason;     // written before `life` becomes failed
    std::string surrender;  // written before `withdrawn` becomes true
  };

  // One message space: a channel for each ordered pair, made when first used.
  struct Space {
    explicit Space(int size) : channels(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)) {}
    ~Space() {
      for (auto& channel : channels) delete channel.load();
    }
    std::vector<std::atomic<Channel*>> channels;
  };

  struct State {
    explicit State(int count)
        : size(count), ranks(static_cast<std::size_t>(count)), opened(ranks.size(), 0) {}
    int size;
    int patience = patience_of(size);
    std::vector<Rank> ranks;
    std::mutex mutex;
    std::deque<Space> spaces;
    std::vector<std::size_t> opened;  // per rank: how many spaces it has asked for

    Rank& at(int rank) { return ranks[static_cast<std::size_t>(rank)]; }
    Space* open(int rank) {
      const std::lock_guard lock(mutex);
      const std::size_t wanted = opened[static_cast<std::size_t>(rank)]++;
      while (spaces.size() <= wanted) spaces.emplace_back(size);
      return &spaces[wanted];
    }
    void leave(int rank, Life life, std::string reason) {
      at(rank).reason = std::move(reason);
      at(rank).life.store(static_cast<int>(life), std::memory_order_release);
      for (Rank& other : ranks) other.bell.ring();
    }
  };

 public:
  struct Request {
    Lane* lane = nullptr;
    std::uint64_t sequence = 0;
    int peer = -1;
    bool reading = false;
  };

  Threads() : Threads(std::make_shared<State>(1), 0) {}

  int rank() const { return rank_; }
  int size() const { return state_->size; }

  Threads isolated() const { return Threads(state_, rank_); }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    Lane& l = channel(rank_, peer).lane[lane];
    const std::uint64_t sequence = l.next_send;
    request = {&l, sequence, peer, false};
    if (sequence - l.consumed.load(std::memory_order_acquire) >= capacity) return false;
    l.slots[sequence % capacity] = {data, bytes};
    l.next_send = sequence + 1;
    l.published.store(sequence + 1, std::memory_order_release);
    state_->at(peer).bell.ring();
    return true;
  }

  void receive(Request& request, int peer, int lane, void*, std::size_t) {
    Lane& l = channel(peer, rank_).lane[lane];
    request = {&l, l.next_receive++, peer, false};
  }

  bool sent(Request& request) {
    return request.lane->consumed.load(std::memory_order_acquire) > request.sequence;
  }

  Arrival arrived(Request& request) {
    Lane& l = *request.lane;
    if (l.published.load(std::memory_order_acquire) <= request.sequence) return {};
    // The sender may be gone with its memory: it withdraws first, and waits for those who are reading.
    l.reading.store(1, std::memory_order_seq_cst);
    if (state_->at(request.peer).withdrawn.load(std::memory_order_seq_cst)) {
      l.reading.store(0, std::memory_order_release);
      return {};
    }
    request.reading = true;
    const Lane::Slot& slot = l.slots[request.sequence % capacity];
    return {slot.data, slot.bytes};
  }

  void release(Request& request) {
    request.lane->consumed.store(request.sequence + 1, std::memory_order_release);
    request.lane->reading.store(0, std::memory_order_seq_cst);
    request.reading = false;
    state_->at(request.peer).bell.ring();
  }

  void cancel(Request& request) noexcept {
    if (request.reading) request.lane->reading.store(0, std::memory_order_seq_cst);
    request.reading = false;
  }

  void withdraw(std::string_view reason) noexcept {
    Rank& me = state_->at(rank_);
    if (me.withdrawn.load()) return;
    me.surrender = "that rank has given up: " + std::string(reason);
    me.withdrawn.store(true, std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer) {
      state_->at(peer).bell.ring();
      for (Space* space : my_spaces()) {
        Channel* c = space->channels[index(rank_, peer)].load(std::memory_order_acquire);
        if (c == nullptr) continue;
        for (Lane& l : c->lane)
          while (l.reading.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
      }
    }
  }

  void accuse(int peer) noexcept { state_->at(rank_).accuses.store(peer, std::memory_order_release); }
  int accused(int rank) const { return state_->at(rank).accuses.load(std::memory_order_acquire); }

  std::uint32_t ticket() const { return state_->at(rank_).bell.count(); }
  void rest(std::uint32_t ticket, int) {
    state_->at(rank_).bell.sleep(ticket, std::chrono::milliseconds(20));
  }

  int patience() const { return state_->patience; }

  std::string_view departed(int peer) const {
    Rank& other = state_->at(peer);
    switch (static_cast<Life>(other.life.load(std::memory_order_acquire))) {
      case Life::ended:
        return "that rank has ended";
      case Life::failed:
        return other.reason;
      case Life::here:
        break;
    }
    if (other.withdrawn.load(std::memory_order_acquire)) return other.surrender;
    return {};
  }

 private:
  Threads(std::shared_ptr<State> state, int rank)
      : state_(std::move(state)), rank_(rank), space_(state_->open(rank)) {}

  std::size_t index(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(size()) + static_cast<std::size_t>(to);
  }
  Channel& channel(int from, int to) {
    std::atomic<Channel*>& slot = space_->channels[index(from, to)];
    Channel* found = slot.load(std::memory_order_acquire);
    if (found != nullptr) return *found;
    auto fresh = std::make_unique<Channel>();
    if (slot.compare_exchange_strong(found, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
    return *found;
  }
  std::vector<Space*> my_spaces() {
    const std::lock_guard lock(state_->mutex);
    std::vector<Space*> all;
    for (Space& space : state_->spaces) all.push_back(&space);
    return all;
  }

  std::shared_ptr<State> state_;
  int rank_ = 0;
  Space* space_ = nullptr;
};

/// Ranks as threads: `World world{4}; world.run([](transport::Threads endpoint) { ... });`
class Threads::World {
 public:
  explicit World(int size) : size_(size) {
    if (size < 1) fail<ConfigError>("a world of threads needs at least 1 rank, not ", size);
  }
  int size() const { return size_; }

  /// Calls `body(Threads)` on `size` threads, one for each rank, and returns when all have ended. If a body
  /// throws, the others' waits for that rank end at once with a CommError; the first exception is thrown
  /// again here.
  template <class Body>
  void run(Body&& body) {
    const auto state = std::make_shared<State>(size_);
    std::exception_ptr first;
    std::mutex mutex;
    const auto rank_main = [&](int rank) {
      try {
        body(Threads(state, rank));
        state->leave(rank, Life::ended, {});
      } catch (...) {
        std::string reason = "that rank has failed";
        {
          const std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
        try {
          throw;
        } catch (const std::exception& e) {
          reason = std::string("that rank has failed: ") + e.what();
        } catch (...) {
        }
        state->leave(rank, Life::failed, std::move(reason));
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(size_));
    for (int rank = 0; rank < size_; ++rank) threads.emplace_back(rank_main, rank);
    for (std::thread& thread : threads) thread.join();
    if (first) std::rethrow_exception(first);
  }

 private:
  int size_;
};

static_assert(Transport<Threads>);

}  // namespace convoy::transport
