// Network: carries messages through resources, in time order.
//
// A resource serves messages first come, first served, as LogGOPSim does (Hoefler, Schneider and Lumsdaine,
// "LogGOPSim", HPDC 2010), rather than sharing its rate among concurrent messages, as SimGrid does (Casanova
// et al., "Versatile, scalable, and accurate simulation of distributed applications and platforms", JPDC
// 2014). Both keep a resource busy as long as there is something to send, so that both take the same time for
// all messages together. Messages are segments, few of which are in flight between two ranks at a time, so
// that one message waits only briefly for another. A message costs a few operations, whereas shares would
// have to be recomputed for all messages whenever one begins or ends.
//
// Routing is cut-through: a message is on several resources at once, as its packets are, and the slowest
// determines its time. A resource is busy for as long as its own rate takes, even if the message comes in
// more slowly: packets of other messages fill the gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <convoy/sim/moment.hpp>
#include <convoy/sim/places.hpp>
#include <convoy/sim/queue.hpp>

namespace convoy::sim {

/// A message in flight, or one that has arrived and is not yet received.
struct Message {
  Moment head, tail;  ///< when its first and last byte have passed the resources taken so far
  double bytes = 0;
  Way way;
  int hop = 0;
  std::uint32_t tie = 0;
  int receiver = 0;  ///< `receiver` and `to` are set by the sender and not interpreted
  std::int64_t to = 0;
  int next = -1;  ///< the next one in a list
};

class Network {
 public:
  /// Marks the event of a message; the other bits of `what` are the message's number.
  static constexpr std::uint32_t mark = 1u << 31;

  explicit Network(const Places& places) : resources_(places.resources()) {}

  Queue queue;

  /// Sends a message at `now`, which must be the time of the event being handled; returns its number.
  int send(const Moment& now, const Way& way, double bytes, std::uint32_t tie, int receiver,
           std::int64_t to) {
    const int number = make();
    Message& message = messages_[static_cast<std::size_t>(number)];
    message.head = message.tail = now;
    message.bytes = bytes;
    message.way = way;
    message.hop = 0;
    message.tie = tie;
    message.receiver = receiver;
    message.to = to;
    message.next = -1;
    ++sent_;
    bytes_ += bytes;
    if (way.hops == 0) {
      message.head.add(Cause::latency, way.alpha);
      message.tail = message.head;
    } else {
      advance(number);
    }
    return number;
  }
  /// Whether a message has passed its last resource, so that `tail` is its arrival.
  bool through(int number) const {
    const Message& message = messages_[static_cast<std::size_t>(number)];
    return message.hop == message.way.hops;
  }
  /// Takes a message through its next resource.
  void advance(int number) {
    Message& message = messages_[static_cast<std::size_t>(number)];
    const bool first = message.hop == 0;
    Resource& resource =
        resources_[static_cast<std::size_t>(message.way.at[static_cast<std::size_t>(message.hop++)])];
    const double seconds = message.bytes * resource.beta;
    message.head.wait_for(resource.free);
    resource.free = message.head.after(resource.cause, seconds);
    resource.busy += seconds;
    resource.bytes += message.bytes;
    message.tail.wait_for(resource.free);
    if (first) {
      message.head.add(Cause::latency, message.way.alpha);
      message.tail.add(Cause::latency, message.way.alpha);
    }
    if (message.hop < message.way.hops)
      queue.push({message.head.at, message.tie, mark | static_cast<std::uint32_t>(number)});
  }

  Message& message(int number) { return messages_[static_cast<std::size_t>(number)]; }
  void forget(int number) { free_.push_back(number); }

  /// Loads or stores `bytes` along a way without a message, beginning at `now`. A byte takes `share` of the
  /// time that a byte of a message takes. Returns when the access ends.
  Moment access(const Moment& now, const Way& way, double bytes, double share) {
    Moment end = now;
    for (int hop = 0; hop < way.hops; ++hop) {
      Resource& resource = resources_[static_cast<std::size_t>(way.at[static_cast<std::size_t>(hop)])];
      const double seconds = bytes * resource.beta * share;
      resource.free.wait_for(now);
      resource.free.add(resource.cause, seconds);
      resource.busy += seconds;
      resource.bytes += bytes;
      end.wait_for(resource.free);
    }
    bytes_ += bytes;
    return end;
  }

  const std::vector<Resource>& resources() const { return resources_; }
  std::int64_t sent() const { return sent_; }
  double bytes() const { return bytes_; }

 private:
  int make() {
    if (free_.empty()) {
      messages_.emplace_back();
      return static_cast<int>(messages_.size()) - 1;
    }
    const int number = free_.back();
    free_.pop_back();
    return number;
  }

  std::vector<Resource> resources_;
  std::vector<Message> messages_;
  std::vector<int> free_;
  std::int64_t sent_ = 0;
  double bytes_ = 0;
};

}  // namespace convoy::sim
