// What a test chooses of the emulated device.
#pragma once

#include <cstddef>

namespace emulation {

enum class Order { forward, backward, shuffled };

/// How work is done from now on. Results must not depend on the orders.
struct Settings {
  /// Of the blocks of a kernel.
  Order blocks = Order::forward;
  /// Of the threads within a block, whenever several could run: forward or backward.
  Order threads = Order::forward;
  /// Of the nodes of a graph that do not depend on one another: forward, as they were captured, or backward.
  Order nodes = Order::forward;
  /// Of a shuffle.
  unsigned seed = 1;
  /// Whether streams fall behind as far as they may: the work of one is done only when somebody waits for it,
  /// or for work of another one that waits for it by an event. Who forgets to wait is seen.
  bool late = false;
  /// How many devices there are; 0 is a machine without a driver. They share their memory. Ranks that are
  /// threads want one each: cudaFree waits for all work of a device, and a collective waits for other ranks.
  int devices = 1;
  /// Of each device.
  int processors = 132;
  /// How much memory they have.
  std::size_t bytes = std::size_t{4} << 30;
  /// Whether device memory faults when the host touches it. Closing and opening it costs a system call each
  /// for every piece of work.
  bool closed_to_host = true;
};
inline Settings settings;

/// Sets `settings` and restores them at the end of a scope.
class With {
 public:
  explicit With(const Settings& now) : before_(settings) { settings = now; }
  With(const With&) = delete;
  With& operator=(const With&) = delete;
  ~With() { settings = before_; }

 private:
  Settings before_;
};

}  // namespace emulation
