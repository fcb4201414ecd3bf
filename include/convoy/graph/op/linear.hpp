// Linear layers.
#pragma once

#include <cstdint>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct LinearOptions {
  int features = 0;  ///< of the output
  bool bias = true;
  bool frozen = false;
  float deviation = 0;  ///< if positive, weights start normal with this standard deviation and biases start
                        ///< at zero; 0: PyTorch's initialization
  std::string_view name = {};
};

struct Linear {
  static constexpr std::string_view name = "linear";

  template <class G>
  struct Verb {
    /// y = W x + b over the last axis of a row or a sequence.
    constexpr Tensor linear(Tensor x, LinearOptions o) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Linear>, o.name);
      if (!accepts(g, node, x, o)) return g.abandon(node, x);
      const int in = x.shape.last();
      g.own(node, "weight", {o.features, in}, start(o, in, decayed(o.frozen)));
      return finish(g, node, x, o);
    }

    /// The same with an existing weight [features, in], for example a decoder tied to an embedding.
    constexpr Tensor linear(Tensor x, Handle weight, LinearOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      if (o.features == 0) o.features = weight.shape[0];
      Node node = g.begin(G::template index<Linear>, o.name);
      if (!accepts(g, node, x, o)) return g.abandon(node, x);
      const Shape needed{o.features, x.shape.last()};
      if (!(weight.shape == needed))
        return g.report(Common::parameter_does_not_fit, weight.shape, needed), g.abandon(node, x);
      g.use(node, weight);
      return finish(g, node, x, o);
    }

    /// The same with an existing weight and an existing bias [features]. The options `features` and `bias`
    /// are ignored.
    constexpr Tensor linear(Tensor x, Handle weight, Handle bias, LinearOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      o.features = bias.shape.rank == 1 ? bias.shape[0] : weight.shape[0];
      Node node = g.begin(G::template index<Linear>, o.name);
      if (!accepts(g, node, x, o)) return g.abandon(node, x);
      const Shape needed{o.features, x.shape.last()};
      if (bias.shape.rank != 1)
        return g.report(Common::parameter_does_not_fit, bias.shape, {o.features}), g.abandon(node, x);
      if (!(weight.shape == needed))
        return g.report(Common::parameter_does_not_fit, weight.shape, needed), g.abandon(node, x);
      g.use(node, weight);
      g.use(node, bias);
      o.bias = false;
      return finish(g, node, x, o);
    }

   private:
    static constexpr bool accepts(G& g, Node& node, Tensor x, const LinearOptions& o) {
      node.shape = x.shape;
      node.kind = x.kind;
      return g.features(x) && g.positive({o.features});
    }
    static constexpr Tensor finish(G& g, Node& node, Tensor x, const LinearOptions& o) {
      node.shape.extent[node.shape.rank - 1] = o.features;
      if (o.bias) {
        ParameterOptions bias = start(o, x.shape.last(), undecayed(o.frozen));
        if (o.deviation > 0) bias.init = Init::zeros;
        g.own(node, "bias", {o.features}, bias);
      }
      return g.place(node, x);
    }
    static constexpr ParameterOptions start(const LinearOptions& o, int in, Group group) {
      if (o.deviation > 0) return {Init::normal, in, o.features, group, o.deviation};
      return {Init::fan_in_uniform, in, o.features, group};
    }
  };

  static constexpr Price price(const Graph& g, int n) {
    const std::int64_t macs = g.nodes[n].shape.size() * g.shape_of_input(n, 0).last();
    return priced_products(g, n, macs, macs);
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 1}; }
};

}  // namespace convoy::graph
