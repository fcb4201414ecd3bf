// Channels: how ranks that see each other's memory pass messages. A message is where its bytes lie: the
// receiver reads or reduces straight from the sender's memory and then says that it has. Nothing is copied on
// the way, and nothing is allocated per message. A few bytes may be left in the channel itself instead, where
// they do not keep the sender waiting.
//
// Everything in a record or a channel is a plain number or an atomic one, so that it works between processes
// as it does between threads (Threads, Shm); what a place means is the world's affair.
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

/// The messages from one rank to another in one lane: a ring of slots. Each cache line has one writer, and is
/// looked at while waiting by one reader at most: a message costs two lines' way between two cores. Lines of
/// different writers lie apart in pairs, since processors fetch a line's neighbour with it.
struct ChannelLane {
  struct Slot {
    std::atomic<std::uint64_t> published{0};  // this message's number, from 1
    std::uint64_t place = 0;
    std::uint64_t bytes = 0;
    bool copied = false;  // whether they lie in the channel
    std::uint16_t purpose = 0;
  };
  static_assert(sizeof(Slot) == 32);
  alignas(128) Slot slots[channel_capacity];
  alignas(128) std::uint64_t next_send = 0;  // the sender's own
  std::uint64_t known_consumed = 0;  // likewise; its reader's line is looked at only when this is too old
  alignas(128) std::atomic<std::uint64_t> consumed{0};
  alignas(128) std::atomic<std::uint32_t> reading{0};
  std::uint64_t next_receive = 0;  // the receiver's own
};

struct Channel {
  ChannelLane lane[memory_lanes];
  alignas(64) std::byte copies[channel_copies][channel_copy_bytes];  // of messages in lane 0, in turn
};

enum class Life : int { here, ended, failed };

/// What all know of a rank.
template <bool across_processes>
struct RankRecord {
  Bell<across_processes> bell;
  std::atomic<int> life{static_cast<int>(Life::here)};
  std::atomic<bool> withdrawn{false};
  std::atomic<Clock::rep> unwinding_until{0};  // of the monotonic clock: its exception is still on the way
  std::atomic<int> accuses{-1};
  char reason[240] = {};     // written before `life` becomes failed
  char surrender[240] = {};  // written before `withdrawn` becomes true

  static void write(char (&to)[240], std::string_view clause) {
    const std::size_t length = std::min(clause.size(), sizeof to - 1);
    std::copy_n(clause.data(), length, to);  // memcpy may not be given a clause that is no text at all
    to[length] = '\0';
  }
};

/// One rank's end of the channels of a world. `World` has
///   size(), patience(), rank(r) (a RankRecord), channel(space, from, to), spaces(): how many message spaces
///   there are, existing(space, from, to): the channel if it has been used, else null,
///   place_of(rank, data, bytes) and at(rank, peer, place): an address as a place, and a peer's place as an
///   address (null if that memory is gone with the peer), gone(r): why rank r's process or thread cannot
///   answer any more, as a clause, as far as can be seen, close_off(): takes this rank's memory out of its
///   peers' reach, false if that cannot be, limit(): the most that a wait for a peer to end its reading may
///   take.
///
/// How a rank takes its memory back while a peer may be reading it, or storing to it (schedule::Direct):
///   1. It lets go of what it reads itself, so that two who withdraw do not wait for each other.
///   2. It says that it has withdrawn. A reader says that it is reading and then looks whether the owner has
///      withdrawn, in that order for all to see: either it finds out and does not read, or step 3 waits for
///      it.
///   3. It waits until nobody is reading any more, or whoever was is gone.
///   4. A process may have been stopped in the middle of it. After a grace the memory is closed off: at the
///      same addresses the owner goes on with a copy, and what its peers have mapped stays as it was, for as
///      long as they have it mapped. One that is continued then ends its step with what it was promised, and
///      what it stores reaches nobody; with its next step it finds out. Threads cannot be closed off, nor
///      stopped: a thread that keeps a message for good is a mistake in the program, which ends with a
///      sentence.
template <class World>
class Endpoint {
 public:
  static constexpr bool in_place = true;
  static constexpr int capacity = channel_capacity;
  static constexpr int lanes = memory_lanes;
  /// How much `post` takes.
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

  /// Sends a copy in lane 0, so that the sender need not wait until it is `sent`. At most `copy_bytes`.
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
    // The sender may be gone with its memory: it withdraws first, and waits for those who are reading.
    l.reading.store(1, std::memory_order_seq_cst);
    if (world_->rank(request.peer).withdrawn.load(std::memory_order_seq_cst)) {
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
    for (int peer = 0; peer < size(); ++peer)
      if (Channel* c = world_->existing(space_, peer, rank_); c != nullptr)
        for (ChannelLane& l : c->lane) l.reading.store(0, std::memory_order_seq_cst);
    auto& me = world_->rank(rank_);
    if (me.withdrawn.load()) return;
    char clause[240];
    me.write(clause, "that rank has given up: ");
    const std::size_t length = std::strlen(clause),
                      more = std::min(reason.size(), sizeof clause - 1 - length);
    std::memcpy(clause + length, reason.data(), more);
    clause[length + more] = '\0';
    me.write(me.surrender, clause);
    if (std::uncaught_exceptions() > 0)
      me.unwinding_until.store((Clock::now() + wait_tuning.unwinding_grace).time_since_epoch().count(),
                               std::memory_order_relaxed);
    me.withdrawn.store(true, std::memory_order_seq_cst);
    for (int peer = 0; peer < size(); ++peer) world_->rank(peer).bell.ring();
    const Deadline grace(wait_tuning.reading_grace);
    std::optional<comm::Watchdog> watchdog;
    std::string what;
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
        return withdrawn ? other.surrender : "that rank has ended";
      case Life::failed:
        return other.reason;
      case Life::here:
        break;
    }
    // A rank that is unwinding is about to say why.
    if (withdrawn &&
        Clock::now().time_since_epoch().count() >= other.unwinding_until.load(std::memory_order_relaxed))
      return other.surrender;
    return world_->gone(peer);
  }

 protected:
  Endpoint(std::shared_ptr<World> world, int rank, int space)
      : world_(std::move(world)), rank_(rank), space_(space) {}

 private:
  // All but its purpose.
  static void begin(Request& request, ChannelLane& l, std::uint64_t sequence, int peer) {
    request.lane = &l;
    request.sequence = sequence;
    request.peer = peer;
    request.reading = false;
  }
  // Whether fewer than `most` messages of a lane are under way.
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

 protected:
  std::shared_ptr<World> world_;
  int rank_ = 0;
  int space_ = 0;
};

}  // namespace convoy::transport::detail
