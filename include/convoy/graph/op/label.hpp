// Labels: class indices supplied by a data set.
#pragma once

#include <limits>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

/// The value of LabelOptions::ignore if no label is ignored.
inline constexpr int no_label = std::numeric_limits<int>::min();

struct LabelOptions {
  int positions = 0;      ///< one label for each of this many positions of a sequence; 0: one label per row
  int ignore = no_label;  ///< the value that marks a missing label; PyTorch's convention is -100
};

struct LabelInput {
  static constexpr std::string_view name = "label";
  struct Attributes {
    int classes = 0;
    int ignore = no_label;
  };

  template <class G>
  struct Verb {
    /// i32 class indices supplied by a data set, each in [0, classes) or equal to `ignore`.
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
