// OnSpans: collectives on spans, vectors and arrays, by those on memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/core/dtype.hpp>

namespace convoy::comm {

/// CRTP base of a Comm `C` that has `all_reduce(data, count, reduction)` and `broadcast(data, bytes, root)`
/// and names the overloads of this base (`using OnSpans<C>::all_reduce`). `C` may also have
/// `broadcast(data, count, type, root)`, which is then called for elements that have a DType.
template <class C>
class OnSpans {
 public:
  /// Combines the ranks' values of each element; every worker ends with the same values. The workers call it
  /// with the same number of elements, in a span, a vector, an array or a Buffer.
  template <Contiguous R, OperationTag O>
  void all_reduce(R&& range, O op) {
    const auto values = span_of(range);
    self().all_reduce(values.data(), static_cast<std::int64_t>(values.size()), reduction<element_of<R>>(op));
  }
  /// Every worker ends with the root's values.
  template <Contiguous R>
  void broadcast(R&& range, int root) {
    using E = element_of<R>;
    static_assert(std::is_trivially_copyable_v<E>,
                  "convoy: only trivially copyable elements can be broadcast");
    const auto values = span_of(range);
    if constexpr (typed<E>())
      self().broadcast(values.data(), static_cast<std::int64_t>(values.size()), dtype_of<E>, root);
    else
      self().broadcast(static_cast<void*>(values.data()), values.size_bytes(), root);
  }

 private:
  template <class E>
  static consteval bool typed() {
    if constexpr (has_dtype<E>) return requires(C & c, E * data, std::int64_t count) {
        c.broadcast(data, count, dtype_of<E>, 0);
      };
    else
      return false;
  }
  C& self() { return static_cast<C&>(*this); }
};

}  // namespace convoy::comm
