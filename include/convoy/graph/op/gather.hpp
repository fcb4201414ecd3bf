// Gather: positions of a sequence by index.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Gather {
  static constexpr std::string_view name = "gather";
  enum Fault : int { positions_are_no_row };

  template <class G>
  struct Verb {
    /// The positions of a sequence that an i32 input selects, in the order of that input. A row of positions
    /// yields a sequence, a single position a row. A position may be selected several times; its gradient is
    /// the sum.
    constexpr Tensor gather(Tensor x, Tensor positions, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Gather>, o.name);
      if (!g.is_sequence(x) || !accepts(g, positions)) return g.abandon(node, x);
      const bool one = positions.shape.rank == 0;
      node.shape = one ? Shape{x.shape[1]} : Shape{positions.shape[0], x.shape[1]};
      node.kind = one ? Kind::row : Kind::sequence;
      return g.place(node, x, positions);
    }

   private:
    static constexpr bool accepts(G& g, Tensor positions) {
      if (positions.dtype != DType::i32)
        return g.report(Common::input_is_of_another_dtype, positions.shape), false;
      if (positions.shape.rank > 1)
        return g.report(G::template index<Gather>, positions_are_no_row, positions.shape), false;
      return true;
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left>, "convoy: the positions of a gather are a number or a row of numbers");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape& left, const Shape&) {
    return concat(where, " needs positions that are a number or a row of numbers, not ", left);
  }
  /// Forward moves only the selected positions; backward also writes the whole gradient of the sequence.
  static constexpr Price price(const Graph& g, int n) {
    const auto element = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t out = g.nodes[n].shape.size(), named = g.shape_of_input(n, 1).size();
    Price price;
    price.forward_bytes = (named + 2 * out) * element;
    if (is_first_layer(g, n)) return price;
    price.backward_flops = out;
    price.backward_bytes = (named + 3 * out + g.shape_of_input(n, 0).size()) * element;
    return price;
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 2}; }
  static constexpr Indices indices(const Graph& g, int n) { return {1, 0, g.shape_of_input(n, 0)[0]}; }
};

}  // namespace convoy::graph
