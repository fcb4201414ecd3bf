// Rectified linear unit.
#pragma once

#include <string_view>

#include <convoy/graph/op/elementwise.hpp>
#include <convoy/graph/price.hpp>

namespace convoy::graph {

struct Relu {
  static constexpr std::string_view name = "relu";

  template <class G>
  struct Verb {
    /// max(x, 0).
    constexpr Tensor relu(Tensor x, NameOption o = {}) {
      return elementwise(static_cast<G&>(*this), G::template index<Relu>, x, o);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n); }
  static constexpr Saves saves(const Graph&, int) { return {.output = true}; }
};

}  // namespace convoy::graph
