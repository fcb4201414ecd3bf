// The hyperbolic tangent.
#pragma once

#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Tanh {
  static constexpr std::string_view name = "tanh";

  template <class G>
  struct Verb {
    /// (exp(x) - exp(-x)) / (exp(x) + exp(-x)).
    constexpr Tensor tanh(Tensor x, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Tanh>, o.name);
      node.shape = x.shape;
      node.kind = x.kind;
      g.real(x);
      return g.place(node, x);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 5, 3); }
  static constexpr Saves saves(const Graph&, int) { return {.output = true}; }
};

}  // namespace convoy::graph
