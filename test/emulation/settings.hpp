// A test's settings of the emulated device.
#pragma once

#include <cstddef>

namespace emulation {

enum class Order { forward, backward, shuffled };

/// How work runs from now on. Results must not depend on the orders.
struct Settings {
  /// Order of the blocks of a kernel.
  Order blocks = Order::forward;
  /// Order of the threads of a block whenever several could run: forward or backward.
  Order threads = Order::forward;
  /// Order of independent nodes of a graph: forward, as they were captured, or backward.
  Order nodes = Order::forward;
  /// Seed of shuffled orders.
  unsigned seed = 1;
  /// Whether streams fall behind as far as they may: a stream's work runs only when somebody waits for it, or
  /// for work of another stream that waits for it through an event. A missing wait then shows.
  bool late = false;
  /// How many devices there are; 0 is a machine without a driver. The devices share one memory. Ranks that
  /// are threads need one device each: cudaFree waits for all work of a device, and a collective waits for
  /// other ranks.
  int devices = 1;
  /// Multiprocessors of each device.
  int processors = 132;
  /// Bytes of device memory.
  std::size_t bytes = std::size_t{4} << 30;
  /// Whether device memory faults when the host touches it. This costs two system calls for every piece of
  /// work.
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
