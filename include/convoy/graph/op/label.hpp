// Labels: class indices that a data set supplies.
#pragma once

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct LabelOptions {
  int positions = 0;  ///< one label for each of so many positions of a sequence; 0: one a row
};

struct LabelInput {
  static constexpr std::string_view name = "label";
  struct Attributes {
    int classes = 0;
  };

  template <class G>
  struct Verb {
    /// Class indices in [0, classes) that a data set supplies, i32.
    constexpr Label label(std::string_view name, int classes, LabelOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<LabelInput>, name);
      node.dtype = DType::i32;
      node.given = true;
      if (o.positions != 0) node.shape = {o.positions}, node.kind = Kind::row;
      g.attributes(node, Attributes{classes});
      g.positive(o.positions != 0 ? Shape{classes, o.positions} : Shape{classes});
      return {g.place(node).node, classes, node.shape};
    }
  };

  static constexpr Price price(const Graph&, int) { return {}; }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
