// Concatenation of values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct Concat {
  static constexpr std::string_view name = "concat";
  enum Fault : int { does_not_join, joins_nothing };

  template <class G>
  struct Verb {
    /// Concatenates the channels of images of one height and width, the features of rows, or the features of
    /// sequences with the same number of positions.
    constexpr Tensor concat(std::span<const Tensor> parts, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Concat>, o.name);
      if (parts.empty()) {
        g.report(G::template index<Concat>, joins_nothing, {});
        return g.place(node);
      }
      const Tensor& first = parts[0];
      node.shape = first.shape;
      node.kind = first.kind;
      const int axis = first.kind == Kind::image ? 0 : first.shape.rank - 1;
      if (first.kind == Kind::number) g.report(G::template index<Concat>, does_not_join, {}, {});
      for (std::size_t i = 0; i < parts.size(); ++i) {
        g.real(parts[i]);
        if (i > 0 && axis >= 0) {
          Shape expected = parts[i].shape;
          if (expected.rank == first.shape.rank) expected.extent[axis] = first.shape[axis];
          if (parts[i].kind != first.kind || !(expected == first.shape))
            g.report(G::template index<Concat>, does_not_join, first.shape, parts[i].shape);
          else
            node.shape.extent[axis] =
                g.extent(std::int64_t{node.shape[axis]} + parts[i].shape[axis], parts[i].shape);
        }
        g.edge(node, parts[i].node);
      }
      return g.place(node);
    }
    constexpr Tensor concat(std::initializer_list<Tensor> parts, NameOption o = {}) {
      return concat(std::span<const Tensor>(parts.begin(), parts.size()), o);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    if constexpr (which == joins_nothing)
      static_assert(holds<Where>, "convoy: a concatenation needs at least one value");
    else
      static_assert(holds<Where, left, right>,
                    "convoy: a concatenation joins rows, sequences of as many positions, or images of one "
                    "height and width");
    return false;
  }
  static std::string explain(int which, const Name& where, const Shape& left, const Shape& right) {
    if (which == joins_nothing) return convoy::concat(where, " joins nothing");
    return convoy::concat(where, " cannot join ", left, " and ", right);
  }
  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 0, 0); }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
