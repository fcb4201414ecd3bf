// Mean-squared error against a target.
#pragma once

#include <cstdint>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct MseLoss {
  static constexpr std::string_view name = "mse_loss";

  template <class G>
  struct Verb {
    /// The mean over each row's elements of (x - target)^2, as torch.nn.functional.mse_loss. One number per
    /// row.
    constexpr Tensor mse_loss(Tensor x, Tensor target, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<MseLoss>, o.name);
      g.alike(x, target);
      return g.place(node, x, target);
    }
  };

  static constexpr Price price(const Graph& g, int n) {
    Price price = priced_bytes(g, n);
    const std::int64_t elements = g.shape_of_input(n, 0).size();
    price.forward_flops = 3 * elements;
    price.backward_flops = 3 * elements;
    return price;
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 3}; }
};

}  // namespace convoy::graph
