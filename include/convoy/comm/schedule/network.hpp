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
    if (moved) continue;
    for (int r = 0; r < size; ++r) {
      const int i = at.data[r];
      if (i == begin.data[r + 1] - begin.data[r]) continue;
      const Step& step = steps.data[begin.data[r] + i];
      bool later = false;
      for (int j = begin.data[step.peer] + at.data[step.peer]; j < begin.data[step.peer + 1]; ++j)
        later = later || (steps.data[j].action == Action::send && steps.data[j].peer == r);
      return {true, false, r, i, step.peer, step.action != Action::send && !later};
    }
  }
  for (int a = 0; a < size; ++a)
    for (int b = 0; b < size; ++b)
      if (head.data[a * size + b] != 0) return {false, true, a, -1, b, false};
  return {};
}

}  // namespace convoy::schedule
