// Convolution over images.
#pragma once

#include <convoy/graph/price.hpp>
#include <convoy/graph/window.hpp>

namespace convoy::graph {

/// Padding that keeps the size at stride 1: (kernel - 1) / 2.
inline constexpr int same = -1;

struct Conv2dOptions {
  int channels = 0;  ///< of the output
  int kernel = 3;
  int stride = 1;
  int padding = same;
  bool bias = false;
  bool frozen = false;
  std::string_view name = {};
};

struct Conv2d {
  static constexpr std::string_view name = "conv2d";
  using Attributes = Window;

  template <class G>
  struct Verb {
    /// Cross-correlation over [channels, height, width], as torch.nn.Conv2d without groups.
    constexpr Tensor conv2d(Tensor x, Conv2dOptions o) {
      auto& g = static_cast<G&>(*this);
      const Window window{o.kernel, o.kernel, o.stride, o.padding == same ? (o.kernel - 1) / 2 : o.padding};
      Node node = g.begin(G::template index<Conv2d>, o.name);
      g.attributes(node, window);
      node.kind = Kind::image;
      if (!slides(g, x, {o.channels, o.kernel, o.stride}, window)) return g.abandon(node, x);
      node.shape = {o.channels, window.positions(x.shape[1], o.kernel),
                    window.positions(x.shape[2], o.kernel)};
      const int fan = o.kernel * o.kernel;
      g.own(node, "weight", {o.channels, x.shape[0], o.kernel, o.kernel},
            {Init::kaiming_normal, x.shape[0] * fan, o.channels * fan, decayed(o.frozen)});
      if (o.bias)
        g.own(node, "bias", {o.channels},
              {Init::fan_in_uniform, x.shape[0] * fan, o.channels, undecayed(o.frozen)});
      return g.place(node, x);
    }
  };

  /// The taps of the weight that ever meet the input.
  static constexpr Taps taps(const Graph& g, int n) {
    return live_taps(g.attributes<Conv2d>(n), g.shape_of_input(n, 0), g.nodes[n].shape);
  }
  static constexpr Price price(const Graph& g, int n) {
    const Window w = g.attributes<Conv2d>(n);
    const Shape &in = g.shape_of_input(n, 0), &out = g.nodes[n].shape;
    return priced_products(g, n, out.size() * in[0] * w.height * w.width,
                           static_cast<std::int64_t>(out[0]) * in[0] *
                               meetings(in[1], w.height, w.stride, w.padding, out[1]) *
                               meetings(in[2], w.width, w.stride, w.padding, out[2]));
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 1}; }
};

}  // namespace convoy::graph
