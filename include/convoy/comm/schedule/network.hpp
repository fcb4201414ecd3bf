// The abstract network on which a schedule runs: FIFO channels between any two ranks, blocking receives, and
// a limit on the messages that a channel holds. This is a Kahn network, because a wait for a full channel or
// for the release of a chunk is also a read from a channel. So all executions have the same outcome.
#pragma once

#include <cstddef>
#include <cstdint>

#include <convoy/comm/schedule/schedule.hpp>

namespace convoy::schedule {

/// A fixed number of value-initialized elements, usable in constant expressions. Access is by raw pointer,
/// which saves the compilers' constexpr budgets.
template <class T>
struct Table {
  T* data = nullptr;
  constexpr explicit Table(std::size_t size) : data(new T[size > 0 ? size : 1]()) {}
  constexpr ~Table() { delete[] data; }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
};

/// Where an execution ended.
struct Outcome {
  bool stuck = false;      ///< no rank can go on, and not all are done
  bool left = false;       ///< a message that no rank receives
  int rank = -1;           ///< a rank that is stuck, or the sender of the message that is left
  int step = -1;           ///< the step at which the rank is stuck
  int peer = -1;           ///< the rank that it waits for, or the receiver of the message
  bool peer_done = false;  ///< stuck at a receive from a peer that has no send to it left
};

namespace detail {

/// The outcome of an execution in which no rank can go on. The steps of rank r are `steps` from `begin[r]` to
/// `begin[r + 1]`, of which it has done `at[r]`.
constexpr Outcome stuck(int size, const int* begin, const Step* steps, const int* at) {
  int rank = 0;
  while (rank + 1 < size && at[rank] == begin[rank + 1] - begin[rank]) ++rank;
  const Step& step = steps[begin[rank] + at[rank]];
  bool later = false;  // whether the peer has a send to this rank left
  for (int i = begin[step.peer] + at[step.peer]; i < begin[step.peer + 1]; ++i)
    later = later || (steps[i].action == Action::send && steps[i].peer == rank);
  return {.stuck = true,
          .rank = rank,
          .step = at[rank],
          .peer = step.peer,
          .peer_done = step.action != Action::send && !later};
}

/// The FIFO channels between any two of `size` ranks. Messages are numbered in the order in which they are
/// sent.
class Channels {
 public:
  constexpr Channels(int size, int sends)
      : size_(size),
        channels_(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)),
        next_(static_cast<std::size_t>(sends)) {}

  /// How many messages a channel holds.
  constexpr int held(int from, int to) { return channel(from, to).held; }
  /// The number of the next message to be sent.
  constexpr int sent() const { return sent_; }
  constexpr void push(int from, int to) {
    Channel& c = channel(from, to);
    (c.held++ == 0 ? c.head : next_.data[c.tail]) = sent_;
    c.tail = sent_++;
  }
  /// The number of the oldest message of a channel that holds one.
  constexpr int front(int from, int to) { return channel(from, to).head; }
  constexpr void pop(int from, int to) {
    Channel& c = channel(from, to);
    c.head = next_.data[c.head];
    --c.held;
  }

 private:
  // A linked list of messages. Head and tail are undefined without messages.
  struct Channel {
    int head = 0, tail = 0, held = 0;
  };
  constexpr Channel& channel(int from, int to) { return channels_.data[from * size_ + to]; }

  int size_, sent_ = 0;
  Table<Channel> channels_;
  Table<int> next_;  // per message: the one behind it in its channel
};

}  // namespace detail

/// Executes a schedule for all `size` ranks. `observer.send(rank, step_index, step, message)` and
/// `observer.receive(rank, step_index, step, message)` are called for each step with the number of its
/// message; returning false stops the execution. `capacity` limits the messages of a channel; 0: no limit.
template <Schedule S, class Observer>
constexpr Outcome execute(const S& schedule, int size, int capacity, Observer& observer) {
  const auto n = static_cast<std::size_t>(size);
  Table<int> begin(n + 1);
  int total = 0, sends = 0;
  for (int r = 0; r < size; ++r) {
    begin.data[r] = total;
    schedule.steps(r, size, [&](Step step) {
      ++total;
      if (step.action == Action::send) ++sends;
    });
  }
  begin.data[size] = total;
  Table<Step> steps(static_cast<std::size_t>(total));
  {
    int at = 0;
    for (int r = 0; r < size; ++r) schedule.steps(r, size, [&](Step step) { steps.data[at++] = step; });
  }
  detail::Channels channels(size, sends);
  Table<int> at(n);
  int done = 0;
  for (int r = 0; r < size; ++r) done += begin.data[r] == begin.data[r + 1];
  while (done < size) {
    bool moved = false;
    for (int r = 0; r < size; ++r) {
      const int count = begin.data[r + 1] - begin.data[r];
      const Step* mine = steps.data + begin.data[r];
      int i = at.data[r];
      if (i == count) continue;
      for (; i < count; ++i) {
        const Step& step = mine[i];
        if (step.action == Action::send) {
          if (capacity > 0 && channels.held(r, step.peer) == capacity) break;
          if (!observer.send(r, i, step, channels.sent())) return {};
          channels.push(r, step.peer);
        } else {
          if (channels.held(step.peer, r) == 0) break;
          if (!observer.receive(r, i, step, channels.front(step.peer, r))) return {};
          channels.pop(step.peer, r);
        }
      }
      if (i != at.data[r]) moved = true;
      at.data[r] = i;
      if (i == count) ++done;
    }
    if (!moved) return detail::stuck(size, begin.data, steps.data, at.data);
  }
  for (int a = 0; a < size; ++a)
    for (int b = 0; b < size; ++b)
      if (channels.held(a, b) > 0) return {.left = true, .rank = a, .peer = b};
  return {};
}

}  // namespace convoy::schedule
