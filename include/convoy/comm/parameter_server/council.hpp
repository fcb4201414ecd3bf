// Council: the exchange among servers before a rule decides over the whole gradient, of which each server has
// seen only its own shard.
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
inline constexpr int council_lane = 0;

/// One server's end of the exchange among the servers that update anything. Each server sends its numbers to
/// all others and adds up the numbers of all in the order of servers, so that all decide with the same bits.
/// Nothing here blocks: a server polls, because its workers need it meanwhile.
class Council {
 public:
  /// `ranks`: the servers with something to update, this rank among them. `memory`: memory that servers can
  /// read.
  void open(int rank, const std::vector<int>& ranks, std::pmr::memory_resource* memory) {
    rank_ = rank;
    memory_ = memory;
    called_ = false;
    seats_.clear();
    for (const int r : ranks) seats_.push_back({.rank = r});
  }

  /// Whether `call` has been called for this step.
  bool called() const { return called_; }
  /// Begins to send this server's numbers to the others; those of the step before must be `delivered`.
  void call(std::int64_t step, std::span<const double> numbers) {
    called_ = true;
    count_ = numbers.size();
    const std::size_t size = head + count_;
    if (told_.size() != size) told_ = Buffer<double>(size, memory_);
    told_[0] = static_cast<double>(step);
    told_[1] = static_cast<double>(count_);
    std::copy(numbers.begin(), numbers.end(), told_.begin() + head);
    for (Seat& seat : seats_) {
      if (seat.heard.size() != size) seat.heard = Buffer<double>(size, memory_);
      seat.owed = seat.awaited = seat.rank != rank_;
      if (!seat.awaited) std::copy(told_.begin(), told_.end(), seat.heard.begin());
    }
  }

  /// Sends and receives what it can; true if anything moved. Throws CommError for a message that is not
  /// another server's numbers of this step.
  bool progress(transport::Any& transport, Traffic& traffic) {
    bool moved = false;
    for (Seat& seat : seats_) moved = tell(transport, traffic, seat) || hear(transport, seat) || moved;
    return moved;
  }
  bool complete() const {
    return called_ && std::none_of(seats_.begin(), seats_.end(), [](const Seat& s) { return s.awaited; });
  }
  /// Gives the sums over all servers; the next step may then be called.
  void conclude(std::span<double> sums) {
    called_ = false;
    std::fill(sums.begin(), sums.end(), 0.0);
    for (const Seat& seat : seats_)
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += seat.heard[head + i];
  }

  /// Whether the others have received this server's numbers.
  bool delivered(transport::Any& transport) {
    return std::all_of(seats_.begin(), seats_.end(), [&](Seat& seat) {
      if (seat.posted && transport.sent(seat.out)) seat.posted = false;
      return !seat.posted && !seat.owed;
    });
  }
  bool receiving() const {
    return std::any_of(seats_.begin(), seats_.end(), [](const Seat& s) { return s.receiving; });
  }
  /// A server whose numbers have not come and for which `which(rank)` holds, or -1.
  template <class Which>
  int waits_for(Which&& which) const {
    for (const Seat& seat : seats_)
      if (called_ && seat.awaited && which(seat.rank)) return seat.rank;
    return -1;
  }
  void cancel(transport::Any& transport) noexcept {
    for (Seat& seat : seats_)
      if (std::exchange(seat.receiving, false)) transport.cancel(seat.in);
  }

 private:
  static constexpr std::size_t head = 2;  // the step, and how many numbers follow

  struct Seat {
    int rank = 0;
    Buffer<double> heard = {};
    transport::Any::Request out{}, in{};
    bool owed = false, posted = false;        // what this server sends to it
    bool awaited = false, receiving = false;  // what it sends to this server
  };

  bool tell(transport::Any& transport, Traffic& traffic, Seat& seat) {
    const std::size_t bytes = told_.size() * sizeof(double);
    if (!seat.owed || !transport.send(seat.out, seat.rank, council_lane, told_.data(), bytes)) return false;
    seat.owed = false;
    seat.posted = true;
    ++traffic.messages;
    traffic.bytes += static_cast<std::int64_t>(bytes);
    return true;
  }
  bool hear(transport::Any& transport, Seat& seat) {
    if (!called_ || !seat.awaited) return false;
    const std::size_t bytes = seat.heard.size() * sizeof(double);
    if (!seat.receiving) transport.receive(seat.in, seat.rank, council_lane, seat.heard.data(), bytes);
    seat.receiving = true;
    const transport::Arrival arrival = transport.arrived(seat.in);
    if (arrival.data == nullptr) return false;
    const auto wrong = [&](const auto&... what) {
      throw CommError(
          {transport.rank(), seat.rank, "parameter server", seat.in.sequence, bytes, 0, seat.rank},
          concat("the server on rank ", seat.rank, what...));
    };
    if (arrival.bytes != bytes)
      wrong(" describes its part of the gradient in ", arrival.bytes, " bytes where ", bytes,
            " were expected");
    const auto* numbers = static_cast<const double*>(arrival.data);
    if (numbers != seat.heard.data()) std::copy_n(numbers, seat.heard.size(), seat.heard.begin());
    transport.release(seat.in);
    seat.receiving = seat.awaited = false;
    if (seat.heard[0] != told_[0] || seat.heard[1] != told_[1])
      wrong(" decides about step ", seat.heard[0], " with ", seat.heard[1], " numbers where step ", told_[0],
            " with ", told_[1], " was expected");
    return true;
  }

  int rank_ = 0;
  std::pmr::memory_resource* memory_ = nullptr;
  std::vector<Seat> seats_;
  Buffer<double> told_;
  std::size_t count_ = 0;
  bool called_ = false;
};

}  // namespace convoy::comm::detail
