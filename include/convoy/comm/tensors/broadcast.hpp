// What a user's own training loop needs beside its gradients: the same parameters at the start, and the
// figures of all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include <convoy/comm/gather.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/tensors/named_span.hpp>
#include <convoy/comm/tensors/nonblocking.hpp>
#include <convoy/core/compiled.hpp>

namespace convoy::comm {

/// Gives every rank's tensors the root's values, such as initial parameters. All ranks call it with the same
/// names, counts and types; otherwise all throw a ConfigError that names rank and field.
void broadcast(NonblockingExchange& exchange, std::span<const NamedSpan> tensors, int root = 0);
inline void broadcast(NonblockingExchange& exchange, std::initializer_list<NamedSpan> tensors, int root = 0) {
  broadcast(exchange, std::span<const NamedSpan>(tensors.begin(), tensors.size()), root);
}

/// The values of all ranks, in the order of ranks: a loss, a count, a time. E is trivially copyable, and its
/// size is a multiple of 4 bytes.
template <class E>
std::vector<E> all_gather(NonblockingExchange& exchange, E value) {
  return gathered(exchange.rank(), exchange.size(), std::span<const E>(&value, 1),
                  [&](std::span<i32> all) { exchange.all_reduce_async(all, sum).wait(); });
}

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void broadcast(NonblockingExchange& exchange, std::span<const NamedSpan> tensors, int root) {
  exchange.agree_on(detail::registered("tensor", tensors).add("root", root));
  std::array<Handle, 4> flying;  // several, since small ones only wait for the network
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    Handle& handle = flying[i % flying.size()];
    handle.wait();
    handle = exchange.begin(schedule::Goal::broadcast, tensors[i].data,
                            static_cast<std::int64_t>(tensors[i].bytes()), Reduction{}, root);
  }
  for (Handle& handle : flying) handle.wait();
}
#endif

}  // namespace convoy::comm
