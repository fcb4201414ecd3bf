// Dropout (Srivastava et al., 2014).
#pragma once

#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct DropoutOptions {
  float p = 0.5f;  ///< the probability of dropping an element, in [0, 1)
  std::string_view name = {};
};

struct Dropout {
  static constexpr std::string_view name = "dropout";
  enum Fault : int { rate_is_wrong };
  struct Attributes {
    float p = 0;
  };

  template <class G>
  struct Verb {
    /// In training, zero with probability p, else x / (1 - p); in evaluation, x. The random numbers depend
    /// only on the seed of the pass, the name of the node, the epoch, the row's position in the epoch, and
    /// the element.
    constexpr Tensor dropout(Tensor x, DropoutOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Dropout>, o.name);
      g.attributes(node, Attributes{o.p});
      node.shape = x.shape;
      node.kind = x.kind;
      g.real(x);
      if (!(o.p >= 0 && o.p < 1)) g.report(G::template index<Dropout>, rate_is_wrong, x.shape);
      return g.place(node, x);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left>, "convoy: the probability of a dropout is at least 0 and below 1");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape&, const Shape&) {
    return concat(where, " has a probability that is not at least 0 and below 1");
  }
  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n); }
  /// Backward generates the same random numbers again.
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
