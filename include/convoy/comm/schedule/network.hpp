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
  // A channel is a linked list of messages: head and tail are message numbers plus one, 0 when empty.
  Table<int> head(n * n), tail(n * n), held(n * n), next(static_cast<std::size_t>(sends)), at(n);
  int message = 0, done = 0;
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
          const int channel = r * size + step.peer;
          if (capacity > 0 && held.data[channel] == capacity) break;
          if (!observer.send(r, i, step, message)) return {};
          ++held.data[channel];
          if (tail.data[channel] == 0)
            head.data[channel] = message + 1;
          else
            next.data[tail.data[channel] - 1] = message + 1;
          tail.data[channel] = ++message;
        } else {
          const int channel = step.peer * size + r;
          const int first = head.data[channel];
          if (first == 0) break;
          if (!observer.receive(r, i, step, first - 1)) return {};
          --held.data[channel];
          head.data[channel] = next.data[first - 1];
          if (head.data[channel] == 0) tail.data[channel] = 0;
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
      if (head.data[a * size + b] != 0) return {.left = true, .rank = a, .peer = b};
  return {};
}

}  // namespace convoy::schedule
