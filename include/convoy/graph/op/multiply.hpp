// Elementwise multiplication of two values.
#pragma once

#include <string_view>

#include <convoy/graph/op/elementwise.hpp>
#include <convoy/graph/price.hpp>

namespace convoy::graph {

struct Multiply {
  static constexpr std::string_view name = "multiply";

  template <class G>
  struct Verb {
    /// a * b, elementwise; `a` and `b` have the same shape.
    constexpr Tensor multiply(Tensor a, Tensor b, NameOption o = {}) {
      return elementwise(static_cast<G&>(*this), G::template index<Multiply>, a, b, o);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 1, 2); }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 3}; }
};

}  // namespace convoy::graph
