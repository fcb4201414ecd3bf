// Flatten: reshapes any value to a row.
#pragma once

#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Flatten {
  static constexpr std::string_view name = "flatten";
  /// In plain layout, the value shares the memory of its input.
  static constexpr bool view = true;

  template <class G>
  struct Verb {
    /// [a, b, c] to [a * b * c], in canonical order.
    constexpr Tensor flatten(Tensor x, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Flatten>, o.name);
      node.shape = {g.extent(x.shape.size(), x.shape)};
      node.kind = Kind::row;
      g.real(x);
      return g.place(node, x);
    }
  };

  static constexpr Price price(const Graph&, int) { return {}; }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
