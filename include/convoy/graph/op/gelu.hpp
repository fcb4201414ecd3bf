// Gaussian error linear unit (Hendrycks and Gimpel, 2016).
#pragma once

#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

/// How the normal cumulative distribution function is computed.
enum class GeluForm : int {
  erf,   ///< x / 2 (1 + erf(x / sqrt(2))), the definition
  tanh,  ///< x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the form that GPT-2 and BERT were trained
         ///< with
};

struct GeluOptions {
  GeluForm form = GeluForm::erf;
  std::string_view name = {};
};

struct Gelu {
  static constexpr std::string_view name = "gelu";
  struct Attributes {
    GeluForm form = GeluForm::erf;
  };

  template <class G>
  struct Verb {
    /// x times the standard normal cumulative distribution function at x.
    constexpr Tensor gelu(Tensor x, GeluOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Gelu>, o.name);
      g.attributes(node, Attributes{o.form});
      node.shape = x.shape;
      node.kind = x.kind;
      g.real(x);
      return g.place(node, x);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 8, 12); }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 1}; }
};

}  // namespace convoy::graph
