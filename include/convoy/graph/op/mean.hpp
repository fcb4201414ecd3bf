// Mean over the positions of a sequence.
#pragma once

#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Mean {
  static constexpr std::string_view name = "mean";
  enum Fault : int { lengths_are_no_number };

  template <class G>
  struct Verb {
    /// The mean of a sequence over all of its positions; the result is a row.
    constexpr Tensor mean(Tensor x, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = open(g, x, o);
      if (!g.is_sequence(x)) return g.abandon(node, x);
      return g.place(node, x);
    }

    /// The mean of a sequence over its first positions; `lengths` is an i32 input of one number per row, at
    /// least 1.
    constexpr Tensor mean(Tensor x, Tensor lengths, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = open(g, x, o);
      if (!g.is_sequence(x)) return g.abandon(node, x);
      if (lengths.dtype != DType::i32)
        g.report(Common::input_is_of_another_dtype, lengths.shape);
      else if (lengths.shape.rank != 0)
        g.report(G::template index<Mean>, lengths_are_no_number, lengths.shape);
      return g.place(node, x, lengths);
    }

   private:
    static constexpr Node open(G& g, Tensor x, NameOption o) {
      Node node = g.begin(G::template index<Mean>, o.name);
      node.shape = {x.shape.last()};
      node.kind = Kind::row;
      return node;
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left>, "convoy: the lengths of a mean are one number a row");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape& left, const Shape&) {
    return concat(where, " needs lengths that are one number a row, not ", left);
  }
  static constexpr Price price(const Graph& g, int n) {
    Price price = priced_bytes(g, n);
    price.forward_flops = price.backward_flops = g.shape_of_input(n, 0).size();
    return price;
  }
  static constexpr Saves saves(const Graph& g, int n) { return {.inputs = g.nodes[n].inputs > 1 ? 2u : 0u}; }
  static constexpr Indices indices(const Graph& g, int n) {
    if (g.nodes[n].inputs < 2) return {};
    return {1, 1, g.shape_of_input(n, 0)[0] + 1};
  }
};

}  // namespace convoy::graph
