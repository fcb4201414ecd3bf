// ServerAllReduce: the exchange among servers before a rule decides over the whole gradient, of which each
// server has seen only its own shard.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/buffer.hpp>

namespace convoy::comm::detail {

/// The lane of messages between servers.
inline constexpr int server_lane = 0;

/// One server's end of the exchange among the servers that update anything. Each server sends its numbers to
/// all others and adds up the numbers of all in the order of servers, so that all decide with the same bits.
/// Nothing here blocks: a server polls, because its workers need it meanwhile.
class ServerAllReduce {
 public:
  /// `ranks`: the servers with something to update, this rank among them. `memory`: memory that servers can
  /// read.
  void open(int rank, const std::vector<int>& ranks, std::pmr::memory_resource* memory) {
    rank_ = rank;
    memory_ = memory;
    begun_ = false;
    peers_.clear();
    for (const int r : ranks) peers_.push_back({.rank = r});
  }

  /// Whether the exchange of this step has begun.
  bool begun() const { return begun_; }
  /// Begins to send this server's numbers to the others; those of the step before must be `delivered`.
  void begin(std::int64_t step, std::span<const double> numbers) {
    begun_ = true;
    count_ = numbers.size();
    const std::size_t size = head + count_;
    if (message_.size() != size) message_ = Buffer<double>(size, memory_);
    message_[0] = static_cast<double>(step);
    message_[1] = static_cast<double>(count_);
    std::copy(numbers.begin(), numbers.end(), message_.begin() + head);
    for (Peer& peer : peers_) {
      if (peer.message.size() != size) peer.message = Buffer<double>(size, memory_);
      peer.owed = peer.awaited = peer.rank != rank_;
      if (!peer.awaited) std::copy(message_.begin(), message_.end(), peer.message.begin());
    }
  }

  /// Sends and receives what it can; true if anything moved. Throws CommError for a message that is not
  /// another server's numbers of this step.
  bool progress(transport::Any& transport, Traffic& traffic) {
    bool moved = false;
    for (Peer& peer : peers_)
      moved = send_to(transport, traffic, peer) || receive_from(transport, peer) || moved;
    return moved;
  }
  bool complete() const {
    return begun_ && std::none_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.awaited; });
  }
  /// Gives the sums over all servers; the exchange of the next step may then begin.
  void finish(std::span<double> sums) {
    begun_ = false;
    std::fill(sums.begin(), sums.end(), 0.0);
    for (const Peer& peer : peers_)
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += peer.message[head + i];
  }

  /// Whether the others have received this server's numbers.
  bool delivered(transport::Any& transport) {
    return std::all_of(peers_.begin(), peers_.end(), [&](Peer& peer) {
      if (peer.posted && transport.sent(peer.out)) peer.posted = false;
      return !peer.posted && !peer.owed;
    });
  }
  bool receiving() const {
    return std::any_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.receiving; });
  }
  /// A server whose numbers have not come and for which `which(rank)` holds, or -1.
  template <class Which>
  int waits_for(Which&& which) const {
    for (const Peer& peer : peers_)
      if (begun_ && peer.awaited && which(peer.rank)) return peer.rank;
    return -1;
  }
  void cancel(transport::Any& transport) noexcept {
    for (Peer& peer : peers_)
      if (std::exchange(peer.receiving, false)) transport.cancel(peer.in);
  }

 private:
  static constexpr std::size_t head = 2;  // the step, and how many numbers follow

  struct Peer {
    int rank = 0;
    Buffer<double> message = {};
    transport::Any::Request out{}, in{};
    bool owed = false, posted = false;        // what this server sends to it
    bool awaited = false, receiving = false;  // what it sends to this server
  };

  bool send_to(transport::Any& transport, Traffic& traffic, Peer& peer) {
    const std::size_t bytes = message_.size() * sizeof(double);
    if (!peer.owed || !transport.send(peer.out, peer.rank, server_lane, message_.data(), bytes)) return false;
    peer.owed = false;
    peer.posted = true;
    ++traffic.messages;
    traffic.bytes += static_cast<std::int64_t>(bytes);
    return true;
  }
  bool receive_from(transport::Any& transport, Peer& peer) {
    if (!begun_ || !peer.awaited) return false;
    const std::size_t bytes = peer.message.size() * sizeof(double);
    if (!peer.receiving) transport.receive(peer.in, peer.rank, server_lane, peer.message.data(), bytes);
    peer.receiving = true;
    const transport::Arrival arrival = transport.arrived(peer.in);
    if (arrival.data == nullptr) return false;
    const auto wrong = [&](const auto&... what) {
      throw CommError(
          {transport.rank(), peer.rank, "parameter server", peer.in.sequence, bytes, 0, peer.rank},
          concat("the server on rank ", peer.rank, what...));
    };
    if (arrival.bytes != bytes)
      wrong(" describes its part of the gradient in ", arrival.bytes, " bytes where ", bytes,
            " were expected");
    const auto* numbers = static_cast<const double*>(arrival.data);
    if (numbers != peer.message.data()) std::copy_n(numbers, peer.message.size(), peer.message.begin());
    transport.release(peer.in);
    peer.receiving = peer.awaited = false;
    if (peer.message[0] != message_[0] || peer.message[1] != message_[1])
      wrong(" decides about step ", peer.message[0], " with ", peer.message[1], " numbers where step ",
            message_[0], " with ", message_[1], " was expected");
    return true;
  }

  int rank_ = 0;
  std::pmr::memory_resource* memory_ = nullptr;
  std::vector<Peer> peers_;
  Buffer<double> message_;
  std::size_t count_ = 0;
  bool begun_ = false;
};

}  // namespace convoy::comm::detail
