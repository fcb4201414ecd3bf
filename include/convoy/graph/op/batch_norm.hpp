// Batch normalization (Ioffe and Szegedy, 2015).
#pragma once

#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct BatchNormOptions {
  float epsilon = 1e-5f;  ///< added to the variance
  float momentum = 0.1f;  ///< weight of the new batch in the running statistics, as PyTorch's; the running
                          ///< variance is unbiased, as PyTorch's
  bool frozen = false;    ///< weight and bias keep their values; the running statistics do not
  std::string_view name = {};
};

struct BatchNorm {
  static constexpr std::string_view name = "batch_norm";
  /// y = (x - mean) / sqrt(variance + epsilon) * weight + bias; running += momentum * (batch - running).
  struct Attributes {
    float epsilon = 0, momentum = 0;
  };

  template <class G>
  struct Verb {
    /// Normalizes each channel of an image over the batch, height and width.
    constexpr Tensor batch_norm(Tensor x, BatchNormOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<BatchNorm>, o.name);
      g.attributes(node, Attributes{o.epsilon, o.momentum});
      if (!(o.epsilon >= 0 && o.momentum >= 0 && o.momentum <= 1))
        g.report(Common::normalization_is_wrong, x.shape);
      if (!g.image(x)) return g.abandon(node, x);
      node.shape = x.shape;
      node.kind = Kind::image;
      const int channels = x.shape[0];
      g.own(node, "weight", {channels}, {.init = Init::ones, .group = undecayed(o.frozen)});
      g.own(node, "bias", {channels}, {.init = Init::zeros, .group = undecayed(o.frozen)});
      g.statistic(node, "running_mean", {channels}, 0.0f);
      g.statistic(node, "running_var", {channels}, 1.0f);
      return g.place(node, x);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 7, 11); }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 1}; }
};

}  // namespace convoy::graph
