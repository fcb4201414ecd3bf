// Pooling over images: the maximum or the mean of each window.
#pragma once

#include <cstdint>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/window.hpp>

namespace convoy::graph {

struct PoolOptions {
  int kernel = 2;   ///< height and width of a window, in pixels
  int stride = 0;   ///< pixels between two windows; 0: equal to `kernel`
  int padding = 0;  ///< on every side, in pixels; at most half the kernel
  std::string_view name = {};
};

// Shared parts of both poolings.
template <class G>
constexpr Tensor pooled(G& g, int op, Tensor x, const PoolOptions& o) {
  const int stride = o.stride == 0 ? o.kernel : o.stride;
  const Window window{o.kernel, o.kernel, stride, o.padding};
  Node node = g.begin(op, o.name);
  g.attributes(node, window);
  node.kind = Kind::image;
  // A padding of more than half the kernel could give a window of only padding, which has no maximum.
  if (!slides(g, x, {o.kernel, stride}, window, o.kernel / 2)) return g.abandon(node, x);
  node.shape = {x.shape[0], window.positions(x.shape[1], o.kernel), window.positions(x.shape[2], o.kernel)};
  return g.place(node, x);
}
template <class Op>
constexpr Price priced_pooling(const Graph& g, int n) {
  const Window w = g.attributes<Op>(n);
  return priced_elementwise(g, n, w.height * w.width, w.height * w.width);
}

struct MaxPool {
  static constexpr std::string_view name = "max_pool";
  using Attributes = Window;

  template <class G>
  struct Verb {
    /// The maximum of each window; padding counts as minus infinity.
    constexpr Tensor max_pool(Tensor x, PoolOptions o = {}) {
      return pooled(static_cast<G&>(*this), G::template index<MaxPool>, x, o);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_pooling<MaxPool>(g, n); }
  static constexpr Saves saves(const Graph& g, int n) {
    return {.bytes = g.nodes[n].shape.size() * static_cast<std::int64_t>(sizeof(std::int32_t))};
  }
};

struct AvgPool {
  static constexpr std::string_view name = "avg_pool";
  using Attributes = Window;

  template <class G>
  struct Verb {
    /// The mean of each window; padding counts as zeros that are included in the mean, as by default in
    /// PyTorch.
    constexpr Tensor avg_pool(Tensor x, PoolOptions o = {}) {
      return pooled(static_cast<G&>(*this), G::template index<AvgPool>, x, o);
    }

    /// The mean of each channel: [channels, height, width] to [channels, 1, 1].
    constexpr Tensor global_avg_pool(Tensor x, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<AvgPool>, o.name);
      g.attributes(node, Window{x.shape[1], x.shape[2], 1, 0});
      if (!g.image(x)) return g.abandon(node, x);
      node.shape = {x.shape[0], 1, 1};
      node.kind = Kind::image;
      return g.place(node, x);
    }
  };

  static constexpr Price price(const Graph& g, int n) { return priced_pooling<AvgPool>(g, n); }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
