// Labels: class indices that a data set supplies.
#pragma once

#include <limits>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

/// LabelOptions::ignore where every label takes part.
inline constexpr int no_label = std::numeric_limits<int>::min();

struct LabelOptions {
  int positions = 0;      ///< one label for each of so many positions of a sequence; 0: one a row
  int ignore = no_label;  ///< what stands where there is no label; PyTorch's convention is -100
};

struct LabelInput {
  static constexpr std::string_view name = "label";
  struct Attributes {
    int classes = 0;
    int ignore = no_label;
  };

  template <class G>
  struct Verb {
    /// Class indices in [0, classes), or what is ignored, that a data set supplies, i32.
    constexpr Label label(std::string_view called, int classes, LabelOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<LabelInput>, called);
      node.dtype = DType::i32;
      node.given = true;
      if (o.positions != 0) node.shape = {o.positions}, node.kind = Kind::row;
      g.attributes(node, Attributes{classes, o.ignore});
      g.positive(o.positions != 0 ? Shape{classes, o.positions} : Shape{classes});
      return {g.place(node).node, classes, node.shape};
    }
  };

  static constexpr Price price(const Graph&, int) { return {}; }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
