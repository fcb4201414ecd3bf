// Addition of two values.
#pragma once

#include <string_view>

#include <convoy/graph/op/elementwise.hpp>
#include <convoy/graph/price.hpp>

namespace convoy::graph {

struct Add {
  static constexpr std::string_view name = "add";

  template <class G>
  struct Verb {
    /// a + b, elementwise; `a` and `b` have the same shape.
    constexpr Tensor add(Tensor a, Tensor b, NameOption o = {}) {
      return elementwise(static_cast<G&>(*this), G::template index<Add>, a, b, o);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n); }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
