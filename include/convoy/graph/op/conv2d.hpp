// Convolution over images.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/window.hpp>

namespace convoy::graph {

/// Padding that keeps the size at stride 1 if the kernel is odd: dilation * (kernel - 1) / 2.
inline constexpr int same = -1;

struct Conv2dOptions {
  int channels = 0;    ///< of the output
  int kernel = 3;      ///< height and width, in taps
  int stride = 1;      ///< pixels between two windows
  int padding = same;  ///< zeros on every side, in pixels
  int groups = 1;      ///< of channels; a group of output channels reads only its own group of input channels
  int dilation = 1;    ///< distance between adjacent taps, in pixels
  bool bias = false;   ///< adds a number to each output channel; PyTorch's default is true
  bool frozen = false;  ///< the parameters keep their values
  std::string_view name = {};
};

struct Conv2d {
  static constexpr std::string_view name = "conv2d";
  enum Fault : int { groups_do_not_divide };
  struct Attributes : Window {
    int groups = 1;
  };

  template <class G>
  struct Verb {
    /// Cross-correlation over [channels, height, width], as torch.nn.Conv2d.
    constexpr Tensor conv2d(Tensor x, Conv2dOptions o) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Conv2d>, o.name);
      const std::int64_t padding =
          o.padding == same ? o.dilation * (std::int64_t{o.kernel} - 1) / 2 : o.padding;
      const Window window{o.kernel, o.kernel, o.stride, g.extent(padding, {o.kernel, o.dilation}),
                          o.dilation};
      g.attributes(node, Attributes{window, o.groups});
      node.kind = Kind::image;
      if (!g.positive({o.groups, o.dilation}) || !slides(g, x, {o.channels, o.kernel, o.stride}, window))
        return g.abandon(node, x);
      if (x.shape[0] % o.groups != 0 || o.channels % o.groups != 0) {
        g.report(G::template index<Conv2d>, groups_do_not_divide, {x.shape[0], o.channels}, {o.groups});
        return g.abandon(node, x);
      }
      node.shape = {o.channels, window.positions(x.shape[1], o.kernel),
                    window.positions(x.shape[2], o.kernel)};
      const int in = x.shape[0] / o.groups;
      const std::int64_t taps = std::int64_t{o.kernel} * o.kernel;
      const int fan_in = g.extent(in * taps, {in, o.kernel, o.kernel}),
                fan_out = g.extent(o.channels * taps, {o.channels, o.kernel, o.kernel});
      g.own(node, "weight", {o.channels, in, o.kernel, o.kernel},
            {Init::kaiming_normal, fan_in, fan_out, decayed(o.frozen)});
      if (o.bias)
        g.own(node, "bias", {o.channels}, {Init::fan_in_uniform, fan_in, o.channels, undecayed(o.frozen)});
      return g.place(node, x);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left, right>,
                  "convoy: the groups of a convolution must divide its channels, of input and output");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape& left, const Shape& right) {
    return concat(where, " has ", right[0], " groups, which do not divide its channels, ", left[0],
                  " of input and ", left[1], " of output");
  }
  /// The taps of the weight that ever meet the input.
  static constexpr Taps taps(const Graph& g, int n) {
    return live_taps(g.attributes<Conv2d>(n), g.shape_of_input(n, 0), g.nodes[n].shape);
  }
  static constexpr Price price(const Graph& g, int n) {
    const Attributes w = g.attributes<Conv2d>(n);
    const int channels = g.shape_of_input(n, 0)[0] / w.groups;
    const Shape &in = g.shape_of_input(n, 0), &out = g.nodes[n].shape;
    return priced_products(g, n, out.size() * channels * w.height * w.width,
                           static_cast<std::int64_t>(out[0]) * channels *
                               meetings(in[1], w.height, w, out[1]) * meetings(in[2], w.width, w, out[2]));
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 1}; }
};

}  // namespace convoy::graph
