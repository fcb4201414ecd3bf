// Queues: a stream's work in order, which runs when somebody asks for it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "device_memory.hpp"

namespace emulation {

class Queue;

/// A position in a queue, behind a piece of its work; passed if the queue is null. `at` is the time at which
/// it was passed, if somebody asked for that.
struct Mark {
  std::shared_ptr<Queue> queue;
  std::uint64_t number = 0;
  std::shared_ptr<std::chrono::steady_clock::time_point> at;

  bool passed() const;
  /// Runs the work before the mark.
  void pass() const;
};

/// Any thread may add work or have it run; one thread at a time runs it, with device memory open. Meanwhile
/// only the queue's own lock is held, since the work may wait for other threads.
class Queue {
 public:
  std::uint64_t add(std::function<void()> work) { return add(Item{std::move(work), {}}); }
  /// Makes the work that is added from now on wait for a mark of another queue.
  void add_wait(Mark mark) { add(Item{{}, std::move(mark)}); }

  std::uint64_t added() {
    const std::lock_guard lock(mutex_);
    return added_;
  }
  bool done(std::uint64_t number) const { return done_ >= number; }

  /// Runs work until `number` pieces are done. An exception of a piece reaches the caller; the piece counts
  /// as done.
  void run_until(std::uint64_t number) {
    if (done(number)) return;
    const std::lock_guard lock(running_);
    while (!done(number)) run_one();
  }
  /// Runs one piece, if there is one.
  void step() {
    const std::lock_guard lock(running_);
    if (!done(added())) run_one();
  }

 private:
  struct Item {
    std::function<void()> work;
    Mark before;
  };
  struct Counted {
    std::atomic<std::uint64_t>& done;
    ~Counted() { ++done; }
  };

  std::uint64_t add(Item item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    return ++added_;
  }
  void run_one() {
    Item item;
    {
      const std::lock_guard lock(mutex_);
      item = std::move(items_.front());
      items_.pop_front();
    }
    const Counted counted{done_};
    item.before.pass();
    if (!item.work) return;
    const DeviceMemory::Open open;
    item.work();
  }

  std::mutex mutex_;
  std::recursive_mutex running_;
  std::deque<Item> items_;
  std::uint64_t added_ = 0;
  std::atomic<std::uint64_t> done_ = 0;
};

inline bool Mark::passed() const { return queue == nullptr || queue->done(number); }
inline void Mark::pass() const {
  if (queue != nullptr) queue->run_until(number);
}

}  // namespace emulation
