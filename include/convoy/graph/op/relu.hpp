// Rectified linear units.
#pragma once

#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Relu {
  static constexpr std::string_view name = "relu";

  template <class G>
  struct Verb {
    /// max(x, 0).
    constexpr Tensor relu(Tensor x, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Relu>, o.name);
      node.shape = x.shape;
      node.kind = x.kind;
      g.real(x);
      return g.place(node, x);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n); }
  static constexpr Saves saves(const Graph&, int) { return {.output = true}; }
};

}  // namespace convoy::graph
