// Binary cross-entropy of logits against a target.
#pragma once

#include <cstdint>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct BceWithLogits {
  static constexpr std::string_view name = "bce_with_logits";

  template <class G>
  struct Verb {
    /// The mean over each row's elements of -target log s(x) - (1 - target) log (1 - s(x)), where s is the
    /// logistic function, as torch.nn.functional.binary_cross_entropy_with_logits. One number per row.
    constexpr Tensor bce_with_logits(Tensor x, Tensor target, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<BceWithLogits>, o.name);
      g.alike(x, target);
      return g.place(node, x, target);
    }
  };

  static constexpr Price price(const Graph& g, int n) {
    Price price = priced_bytes(g, n);
    const std::int64_t elements = g.shape_of_input(n, 0).size();
    price.forward_flops = 10 * elements;
    price.backward_flops = 5 * elements;
    return price;
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 3}; }
};

}  // namespace convoy::graph
