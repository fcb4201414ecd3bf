// Channels: how ranks that see each other's memory pass messages. A message is the address of its bytes: the
// receiver reads or reduces directly from the sender's memory and then acknowledges. Nothing is copied on the
// way, and nothing is allocated per message. A few bytes may instead be copied into the channel, so that the
// sender need not wait.
//
// A record or a channel consists of plain numbers and atomics, so that it works between processes as well as
// between threads (Threads, Shm). Only the world knows what a place means.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <convoy/comm/transport/bell.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/comm/watchdog.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>

namespace convoy::transport::detail {

inline constexpr int channel_capacity = 32;
inline constexpr int channel_copies = 4;
inline constexpr std::size_t channel_copy_bytes = 2048;

/// The messages from one rank to another in one lane: a ring of slots. Each cache line has one writer and at
/// most one polling reader, so a message costs two transfers of a line between two cores. Lines of different
/// writers lie 128 bytes apart, since processors fetch a line's neighbor with it.
struct ChannelLane {
  struct Slot {
    std::atomic<std::uint64_t> published{0};  // this message's number, from 1
    std::uint64_t place = 0;
    std::uint64_t bytes = 0;
    bool copied = false;  // whether the bytes lie in the channel
    std::uint16_t purpose = 0;
  };
  static_assert(sizeof(Slot) == 32);
  alignas(128) Slot slots[channel_capacity];
  alignas(128) std::uint64_t next_send = 0;  // used by the sender only
  std::uint64_t known_consumed = 0;  // the sender's copy of `consumed`, renewed only when it is too old
  alignas(128) std::atomic<std::uint64_t> consumed{0};
  alignas(128) std::atomic<std::uint32_t> reading{0};
  std::uint64_t next_receive = 0;  // used by the receiver only

  /// Makes the lane as new. No rank uses it any more, but a rank that withdraws may look at `reading`.
  void reset() {
    for (Slot& slot : slots) slot.published.store(0, std::memory_order_relaxed);
    next_send = known_consumed = next_receive = 0;
    consumed.store(0, std::memory_order_relaxed);
  }
};

struct Channel {
  ChannelLane lane[memory_lanes];
  alignas(64) std::byte copies[channel_copies][channel_copy_bytes];  // a ring of the copies sent in lane 0
};

enum class Life : int { here, ended, failed };

/// What all ranks know of a rank.
template <bool across_processes>
struct RankRecord {
  Bell<across_processes> bell;
  std::atomic<int> life{static_cast<int>(Life::here)};
  std::atomic<bool> withdrawn{false};
  std::atomic<Clock::rep> unwinding_until{0};  // monotonic time; until then its exception may be unwinding
  std::atomic<int> accuses{-1};
  char reason[400] = {};      // written before `life` becomes failed
  char withdrawal[400] = {};  // written before `withdrawn` becomes true

  /// Writes a clause and what follows it. What does not fit is left out from the end of a word on.
  static void write(char (&to)[400], std::string_view clause, std::string_view more = {}) {
    constexpr std::string_view cut = " ...";
    std::size_t length = 0;
    for (const std::string_view part : {clause, more}) {
      const std::size_t fits = std::min(part.size(), sizeof to - 1 - length);
      std::copy_n(part.data(), fits,
                  to + length);  // memcpy must not be given the null pointer of an empty part
      length += fits;
    }
    if (clause.size() + more.size() > length) {
      const std::string_view all(to, length - cut.size());
      length = std::min(all.rfind(' '), all.size());
      length += cut.copy(to + length, cut.size());
    }
    to[length] = '\0';
  }
};

/// One rank's end of the channels of a world. `World` has
/// - `size()`, `patience()`, and `rank(r)`, a RankRecord;
/// - `spaces()`: the number of message spaces; `channel(space, from, to)`; `existing(space, from, to)`: the
///   channel if it has been used, else null;
/// - `close(space)`: this rank has no endpoint in the space any more; when no rank has one, it can be reused;
/// - `place_of(rank, data, bytes)`: an address as a place; `at(rank, peer, place)`: a peer's place as an
///   address, null if that memory is gone with the peer;
/// - `gone(r)`: why rank r's process or thread cannot answer any more, as a clause, as far as can be seen;
/// - `close_off()`: takes this rank's memory out of its peers' reach; false if that is impossible;
/// - `limit()`: the longest wait for a peer to finish reading.
///
/// How a rank takes its memory back while a peer may be reading it or storing to it (schedule::Direct):
///   1. The rank stops reading peers' memory for good, in all its message spaces, so that two withdrawing
///      ranks do not wait for each other.
///   2. The rank announces that it has withdrawn. A reader announces that it is reading and then checks
///      whether the owner has withdrawn, both with sequential consistency. So either the reader notices and
///      does not read, or step 3 waits for it.
///   3. The rank waits until no peer is reading any more, or the peers that were reading are gone.
///   4. A peer process may have been stopped while reading. After a grace period the memory is closed off:
///      the owner goes on with a copy at the same addresses, and what peers have mapped stays as it was for
///      as long as they have it mapped. A process that is resumed ends its step with the data that it was
///      promised, its stores reach nobody, and its next step finds out. Threads can be neither closed off nor
///      stopped: a thread that keeps a message for good is a bug in the program, which ends with an error.
template <class World>
class Endpoint {
 public:
  static constexpr bool in_place = true;
  static constexpr int capacity = channel_capacity;
  static constexpr int lanes = memory_lanes;
  /// The most bytes that `post` takes.
  static constexpr std::size_t copy_bytes = channel_copy_bytes;

  struct Request {
    ChannelLane* lane = nullptr;
    std::uint64_t sequence = 0;
    int peer = -1;
    bool reading = false;
    std::uint16_t purpose = 0;
  };

  int rank() const { return rank_; }
  int size() const { return world_->size(); }
  int patience() const { return world_->patience(); }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    ChannelLane& l = world_->channel(space_, rank_, peer).lane[lane];
    begin(request, l, l.next_send, peer);
    if (!room(l, capacity)) return false;
    ChannelLane::Slot& slot = l.slots[l.next_send % capacity];
    slot.place = world_->place_of(rank_, data, bytes);
    slot.copied = false;
    publish(l, slot, request, bytes);
    return true;
  }

  /// Sends a copy of at most `copy_bytes` bytes in lane 0, so that the sender need not wait for `sent`.
  bool post(Request& request, int peer, const void* data, std::size_t bytes) {
    Channel& c = world_->channel(space_, rank_, peer);
    ChannelLane& l = c.lane[0];
    begin(request, l, l.next_send, peer);
    if (!room(l, channel_copies)) return false;
    ChannelLane::Slot& slot = l.slots[l.next_send % capacity];
    slot.copied = true;
    std::memcpy(c.copies[l.next_send % channel_copies], data, bytes);
    publish(l, slot, request, bytes);
    return true;
  }

  void receive(Request& request, int peer, int lane, void*, std::size_t) {
    ChannelLane& l = world_->channel(space_, peer, rank_).lane[lane];
    begin(request, l, l.next_receive++, peer);
  }

  bool sent(Request& request) {
    return request.lane->consumed.load(std::memory_order_seq_cst) > request.sequence;
  }

  Arrival arrived(Request& request) {
    ChannelLane& l = *request.lane;
    const ChannelLane::Slot& slot = l.slots[request.sequence % capacity];
    if (slot.published.load(std::memory_order_seq_cst) != request.sequence + 1) return {};
    request.purpose = slot.purpose;
    // The sender's memory may be gone: a sender withdraws first and then waits for readers.
    l.reading.store(1, std::memory_order_seq_cst);
    if (world_->rank(request.peer).withdrawn.load(std::memory_order_seq_cst) ||
        world_->rank(rank_).withdrawn.load(std::memory_order_relaxed)) {
      l.reading.store(0, std::memory_order_release);
      return {};
    }
    request.reading = true;
    const void* data =
        slot.copied ? world_->channel(space_, request.peer, rank_).copies[request.sequence % channel_copies]
                    : world_->at(rank_, request.peer, slot.place);
    if (data == nullptr) cancel(request);
    return {data, static_cast<std::size_t>(slot.bytes)};
  }

  void release(Request& request) {
    request.lane->reading.store(0, std::memory_order_release);
    request.lane->consumed.store(request.sequence + 1, std::memory_order_seq_cst);
    request.reading = false;
    world_->rank(request.peer).bell.ring();
  }

  void cancel(Request& request) noexcept {
    if (request.reading) request.lane->reading.store(0, std::memory_order_seq_cst);
    request.reading = false;
  }

  void withdraw(std::string_view reason) noexcept {
    for (int space = 0; space < world_->spaces(); ++space)
      for (int peer = 0; peer < size(); ++peer)
        if (Channel* c = world_->existing(space, peer, rank_); c != nullptr)
          for (ChannelLane& l : c->lane) l.reading.store(0, std::memory_order_seq_cst);
    auto& me = world_->rank(rank_);
    if (me.withdrawn.load()) return;
    me.write(me.withdrawal, "that rank has given up: ", reason);
    if (std::uncaught_exceptions() > 0)
      me.unwinding_until.store((Clock::now() + wait_tuning.unwinding_grace).time_since_epoch().count(),
                               std::memory_order_relaxed);
    me.withdrawn.store(true, std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer) world_->rank(peer).bell.ring();
    const Deadline grace(wait_tuning.reading_grace);
    std::string what;
    std::optional<comm::Watchdog> watchdog;  // of `what`, which must outlive it
    for (int peer = 0; peer < size(); ++peer)
      while (reads(peer)) {
        nap(0);
        if (watchdog || !grace.expired()) continue;
        if (world_->close_off()) return;
        what = concat("waiting for rank ", peer, ", which keeps a message of this rank,");
        watchdog.emplace(what.c_str(), rank_, world_->limit());
      }
  }

  void accuse(int peer) noexcept { world_->rank(rank_).accuses.store(peer, std::memory_order_release); }
  int accused(int rank) const { return world_->rank(rank).accuses.load(std::memory_order_acquire); }

  std::uint32_t doze() { return world_->rank(rank_).bell.doze(); }
  void stir() { world_->rank(rank_).bell.stir(); }
  void rest(std::uint32_t ticket, int) {
    world_->rank(rank_).bell.sleep(ticket, std::chrono::milliseconds(20));
  }

  std::string_view departed(int peer) const {
    auto& other = world_->rank(peer);
    const bool withdrawn = other.withdrawn.load(std::memory_order_acquire);
    switch (static_cast<Life>(other.life.load(std::memory_order_acquire))) {
      case Life::ended:
        return withdrawn ? other.withdrawal : "that rank has ended";
      case Life::failed:
        return other.reason;
      case Life::here:
        break;
    }
    // A rank whose exception is still unwinding is about to say why.
    if (withdrawn &&
        Clock::now().time_since_epoch().count() >= other.unwinding_until.load(std::memory_order_relaxed))
      return other.withdrawal;
    return world_->gone(peer);
  }

 protected:
  /// `space` is closed when this endpoint and all its copies are gone.
  Endpoint(std::shared_ptr<World> world, int rank, int space) : rank_(rank), space_(space) {
    World* const it = world.get();
    world_ = {std::shared_ptr<Use>(new Use{std::move(world), space}), it};
  }

  std::shared_ptr<World> world_;  // owns the Use that this endpoint and its copies share

 private:
  struct Use {
    std::shared_ptr<World> world;
    int space;
    ~Use() { world->close(space); }
  };

  // Sets everything but the purpose.
  static void begin(Request& request, ChannelLane& l, std::uint64_t sequence, int peer) {
    request.lane = &l;
    request.sequence = sequence;
    request.peer = peer;
    request.reading = false;
  }
  // Whether fewer than `most` messages of a lane are in flight.
  static bool room(ChannelLane& l, std::uint64_t most) {
    if (l.next_send - l.known_consumed < most) return true;
    l.known_consumed = l.consumed.load(std::memory_order_acquire);
    return l.next_send - l.known_consumed < most;
  }
  void publish(ChannelLane& l, ChannelLane::Slot& slot, const Request& request, std::size_t bytes) {
    slot.bytes = bytes;
    slot.purpose = request.purpose;
    slot.published.store(++l.next_send, std::memory_order_seq_cst);
    world_->rank(request.peer).bell.ring();
  }

  // Whether a peer may still be reading this rank's memory.
  bool reads(int peer) const {
    if (static_cast<Life>(world_->rank(peer).life.load(std::memory_order_acquire)) != Life::here)
      return false;
    for (int space = 0; space < world_->spaces(); ++space) {
      Channel* c = world_->existing(space, rank_, peer);
      if (c == nullptr) continue;
      for (ChannelLane& l : c->lane)
        if (l.reading.load(std::memory_order_seq_cst) != 0) return world_->gone(peer).empty();
    }
    return false;
  }

  int rank_;
  int space_;
};

}  // namespace convoy::transport::detail
