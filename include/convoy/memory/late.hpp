// Late: values that the host reads from a space without waiting for each copy.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include <convoy/memory/space.hpp>

namespace convoy::memory {

/// Values on their way from a space to the host, in order, at most `most` at a time. This version waits in
/// `send`; a space with asynchronous reads specializes it, as memory::Device does.
template <class T, Space S>
class Late {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Late(S& space, std::size_t most) : space_(&space), values_(most) {}

  /// Enqueues a read of `*from` after all work so far.
  void send(const T* from) { space_->read(&values_[sent_++ % values_.size()], from, sizeof(T)); }
  /// The oldest value that was sent and not taken; waits for it.
  T take() { return values_[taken_++ % values_.size()]; }

 private:
  S* space_;
  std::vector<T> values_;
  std::size_t sent_ = 0, taken_ = 0;
};

}  // namespace convoy::memory
