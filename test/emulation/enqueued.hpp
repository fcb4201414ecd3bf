// What is enqueued on a device: the names of kernels and of what libraries compute, in order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "symbols.hpp"

namespace emulation {

/// Takes the names while it lives, of this thread's calls; captured work counts when it is captured. One at a
/// time.
class Enqueued {
 public:
  Enqueued() : before_(std::exchange(current, this)) {}
  Enqueued(const Enqueued&) = delete;
  Enqueued& operator=(const Enqueued&) = delete;
  ~Enqueued() { current = before_; }

  const std::vector<std::string>& names() const { return names_; }

  static void note(const char* name) {
    if (current != nullptr) current->names_.push_back(name);
  }
  /// A kernel's name as its source has it, without namespaces and template arguments.
  static void note_kernel(const void* kernel) {
    if (current == nullptr) return;
    std::string name = Symbols::of_program().function(kernel);
    name = name.substr(0, name.find_first_of("<("));
    current->names_.push_back(name.substr(name.find_last_of(": ") + 1));
  }

 private:
  static inline thread_local Enqueued* current = nullptr;
  Enqueued* before_;
  std::vector<std::string> names_;
};

}  // namespace emulation
