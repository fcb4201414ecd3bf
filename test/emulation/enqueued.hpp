// Records the names of the kernels and library calls that are enqueued on a device, in order.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "symbols.hpp"

namespace emulation {

/// Records the names of this thread's calls during its lifetime; captured work is recorded when it is
/// captured. Only the innermost object of a thread records.
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
  /// Records the kernel's name from its source, without namespaces and template arguments.
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
