// Select: one position of a sequence, the same in every row.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Select {
  static constexpr std::string_view name = "select";
  enum Fault : int { position_is_outside };
  struct Attributes {
    int position = 0;
  };

  template <class G>
  struct Verb {
    /// The features at one position of a sequence, as a row: x[:, position] in PyTorch. For positions that
    /// differ from row to row see `gather`.
    constexpr Tensor select(Tensor x, int position, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Select>, o.name);
      g.attributes(node, Attributes{position});
      if (!g.is_sequence(x)) return g.abandon(node, x);
      if (position < 0 || position >= x.shape[0])
        g.report(G::template index<Select>, position_is_outside, x.shape, {position});
      node.shape = {x.shape[1]};
      node.kind = Kind::row;
      return g.place(node, x);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left, right>, "convoy: the sequence has no such position to select");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape& left, const Shape& right) {
    return concat(where, " selects position ", right[0], " of a sequence of ", left);
  }
  /// Forward moves only the selected position; backward also writes the whole gradient of the sequence.
  static constexpr Price price(const Graph& g, int n) {
    const auto element = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t out = g.nodes[n].shape.size();
    Price price;
    price.forward_bytes = 2 * out * element;
    if (!is_first_layer(g, n)) price.backward_bytes = (out + g.shape_of_input(n, 0).size()) * element;
    return price;
  }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
