// The logistic function.
#pragma once

#include <string_view>

#include <convoy/graph/op/elementwise.hpp>
#include <convoy/graph/price.hpp>

namespace convoy::graph {

struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";

  template <class G>
  struct Verb {
    /// 1 / (1 + exp(-x)).
    constexpr Tensor sigmoid(Tensor x, NameOption o = {}) {
      return elementwise(static_cast<G&>(*this), G::template index<Sigmoid>, x, o);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 4, 3); }
  static constexpr Saves saves(const Graph&, int) { return {.output = true}; }
};

}  // namespace convoy::graph
