// Multiplication of two values, element by element.
#pragma once

#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Multiply {
  static constexpr std::string_view name = "multiply";

  template <class G>
  struct Verb {
    /// Element by element.
    constexpr Tensor multiply(Tensor a, Tensor b, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Multiply>, o.name);
      node.shape = a.shape;
      node.kind = a.kind;
      g.alike(a, b);
      return g.place(node, a, b);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 1, 2); }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 3}; }
};

}  // namespace convoy::graph
