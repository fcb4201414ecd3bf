// The hyperbolic tangent.
#pragma once

#include <string_view>

#include <convoy/graph/op/elementwise.hpp>
#include <convoy/graph/price.hpp>

namespace convoy::graph {

struct Tanh {
  static constexpr std::string_view name = "tanh";

  template <class G>
  struct Verb {
    /// (exp(x) - exp(-x)) / (exp(x) + exp(-x)).
    constexpr Tensor tanh(Tensor x, NameOption o = {}) {
      return elementwise(static_cast<G&>(*this), G::template index<Tanh>, x, o);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 5, 3); }
  static constexpr Saves saves(const Graph&, int) { return {.output = true}; }
};

}  // namespace convoy::graph
