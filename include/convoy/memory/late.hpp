// Late: what the host wants to know of a space, but need not wait for.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include <convoy/memory/space.hpp>

namespace convoy::memory {

/// Values on their way from memory of a space to the host, in order, `most` of them at a time. A space whose
/// reads need not be waited for specialises it, as memory::Device does.
template <class T, Space S>
class Late {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Late(S& space, std::size_t most) : space_(&space), values_(most) {}

  /// Sends what lies there behind all work so far.
  void send(const T* from) { space_->read(&values_[sent_++ % values_.size()], from, sizeof(T)); }
  /// The oldest that was sent and not taken; waits for it.
  T take() { return values_[taken_++ % values_.size()]; }

 private:
  S* space_;
  std::vector<T> values_;
  std::size_t sent_ = 0, taken_ = 0;
};

}  // namespace convoy::memory
