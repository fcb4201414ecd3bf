// The logistic function.
#pragma once

#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";

  template <class G>
  struct Verb {
    /// 1 / (1 + exp(-x)).
    constexpr Tensor sigmoid(Tensor x, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Sigmoid>, o.name);
      node.shape = x.shape;
      node.kind = x.kind;
      g.real(x);
      return g.place(node, x);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 4, 3); }
  static constexpr Saves saves(const Graph&, int) { return {.output = true}; }
};

}  // namespace convoy::graph
