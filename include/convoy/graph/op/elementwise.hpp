// Shared parts of elementwise operations.
#pragma once

#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

/// Adds a node for operation `op` of `x`.
template <class G>
constexpr Tensor elementwise(G& g, int op, Tensor x, const NameOption& o) {
  Node node = g.begin(op, o.name);
  node.shape = x.shape;
  node.kind = x.kind;
  g.real(x);
  return g.place(node, x);
}

/// Adds a node for operation `op` of `a` and `b`, which must have the same shape.
template <class G>
constexpr Tensor elementwise(G& g, int op, Tensor a, Tensor b, const NameOption& o) {
  Node node = g.begin(op, o.name);
  node.shape = a.shape;
  node.kind = a.kind;
  g.alike(a, b);
  return g.place(node, a, b);
}

}  // namespace convoy::graph
