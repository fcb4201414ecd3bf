// Linear layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
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

/// The parameters of a node are the weights of the layers that it computes, mostly one, then their biases, if
/// they have any. Weights of several layers lie one after another in the arenas, like one weight of all their
/// features, and so do their biases.
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

    /// Several linear layers of one input, for example the projections of an attention, computed as one.
    /// Their results, each of `o.features`, lie side by side. Layer `name` has the parameters `name.weight`
    /// and `name.bias`; `o.name` is that of the result.
    constexpr Tensor linears(Tensor x, std::span<const std::string_view> names, LinearOptions o) {
      auto& g = static_cast<G&>(*this);
      if (o.features % slot_alignment != 0 && !names.empty()) return apart(g, x, names, o);
      Node node = g.begin(G::template index<Linear>, o.name);
      const auto count = static_cast<int>(names.size());
      if (!accepts(g, node, x, o) || !g.positive({count})) return g.abandon(node, x);
      node.shape.extent[node.shape.rank - 1] =
          g.extent(std::int64_t{count} * o.features, {count, o.features});
      const int in = x.shape.last();
      Handle first{-1, {}};
      for (const std::string_view layer : names) {
        const Handle weight =
            g.parameter_of(layer, "weight", {o.features, in}, start(o, in, decayed(o.frozen)));
        if (first.index < 0) first = weight;
        if (o.bias) g.parameter_of(layer, "bias", {o.features}, start_of_bias(o, in));
      }
      const int step = o.bias ? 2 : 1;
      for (int offset = 0; offset < step; ++offset)
        for (int i = 0; i < count; ++i) g.use(node, {first.index + i * step + offset, {}});
      return g.place(node, x);
    }
    constexpr Tensor linears(Tensor x, std::initializer_list<std::string_view> names, LinearOptions o) {
      return linears(x, std::span<const std::string_view>(names.begin(), names.size()), o);
    }

   private:
    /// The same by a product for each layer, where alignment would leave gaps between the weights.
    static constexpr Tensor apart(G& g, Tensor x, std::span<const std::string_view> names, LinearOptions o) {
      const std::string_view result = o.name;
      Tensor y;
      for (std::size_t i = 0; i < names.size(); ++i) {
        o.name = names[i];
        const Tensor next = g.linear(x, o);
        y = i == 0 ? next : g.concat({y, next}, {i + 1 < names.size() ? std::string_view() : result});
      }
      return y;
    }
    static constexpr bool accepts(G& g, Node& node, Tensor x, const LinearOptions& o) {
      node.shape = x.shape;
      node.kind = x.kind;
      return g.features(x) && g.positive({o.features});
    }
    static constexpr Tensor finish(G& g, Node& node, Tensor x, const LinearOptions& o) {
      node.shape.extent[node.shape.rank - 1] = o.features;
      if (o.bias) g.own(node, "bias", {o.features}, start_of_bias(o, x.shape.last()));
      return g.place(node, x);
    }
    static constexpr ParameterOptions start(const LinearOptions& o, int in, Group group) {
      if (o.deviation != 0) return {Init::normal, in, o.features, group, o.deviation};
      return {Init::fan_in_uniform, in, o.features, group};
    }
    static constexpr ParameterOptions start_of_bias(const LinearOptions& o, int in) {
      ParameterOptions bias = start(o, in, undecayed(o.frozen));
      if (o.deviation != 0) bias.init = Init::zeros;
      return bias;
    }
  };

  /// The number of layers that node `n` computes.
  static constexpr int layers(const Graph& g, int n) {
    int count = 0;
    while (count < g.nodes[n].uses && g.parameters[g.parameter(n, count)].shape.rank == 2) ++count;
    return count;
  }
  /// The bias of the first layer; -1 if the layers have none.
  static constexpr int bias(const Graph& g, int n) {
    const int count = layers(g, n);
    return g.nodes[n].uses > count ? g.parameter(n, count) : -1;
  }

  static constexpr Price price(const Graph& g, int n) {
    const std::int64_t macs = g.nodes[n].shape.size() * g.shape_of_input(n, 0).last();
    return priced_products(g, n, macs, macs);
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 1}; }
};

}  // namespace convoy::graph
