// Layer normalization (Ba, Kiros and Hinton, 2016).
#pragma once

#include <cstdint>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct LayerNormOptions {
  float epsilon = 1e-5f;
  bool bias = true;
  bool frozen = false;
  std::string_view name = {};
};

struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  /// y = (x - mean) / sqrt(variance + epsilon) * weight + bias.
  struct Attributes {
    float epsilon = 0;
  };

  template <class G>
  struct Verb {
    /// Normalizes the last axis of a row or a sequence, as torch.nn.LayerNorm over that axis.
    constexpr Tensor layer_norm(Tensor x, LayerNormOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = normalizing(g, x, o);
      if (!g.features(x)) return g.abandon(node, x);
      const int features = x.shape.last();
      g.own(node, "weight", {features}, {.init = Init::ones, .group = undecayed(o.frozen)});
      if (o.bias) g.own(node, "bias", {features}, {.init = Init::zeros, .group = undecayed(o.frozen)});
      return g.place(node, x);
    }

    /// The same with an existing weight and bias, both [features]. Only the options `epsilon` and `name` are
    /// used.
    constexpr Tensor layer_norm(Tensor x, Handle weight, Handle bias, LayerNormOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = normalizing(g, x, o);
      if (!g.features(x)) return g.abandon(node, x);
      for (const Handle parameter : {weight, bias}) {
        const Shape needed{x.shape.last()};
        if (!(parameter.shape == needed)) g.report(Common::parameter_does_not_fit, parameter.shape, needed);
        g.use(node, parameter);
      }
      return g.place(node, x);
    }

   private:
    static constexpr Node normalizing(G& g, Tensor x, const LayerNormOptions& o) {
      Node node = g.begin(G::template index<LayerNorm>, o.name);
      g.attributes(node, Attributes{o.epsilon});
      if (!(o.epsilon >= 0)) g.report(Common::normalization_is_wrong, x.shape);
      node.shape = x.shape;
      node.kind = x.kind;
      return node;
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_elementwise(g, n, 8, 14); }
  /// Besides the input, saves the mean and the reciprocal standard deviation of each vector.
  static constexpr Saves saves(const Graph& g, int n) {
    const Shape& shape = g.nodes[n].shape;
    return {.inputs = 1, .bytes = shape.size() / shape.last() * 2 * static_cast<std::int64_t>(sizeof(float))};
  }
};

}  // namespace convoy::graph
