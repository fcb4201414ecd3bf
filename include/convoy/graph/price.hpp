// Price: multiplications and bytes of each operation for one sample, forward and backward.
#pragma once

#include <convoy/graph/pass/taps.hpp>

namespace convoy::graph {

/// For one sample. A multiply-accumulate is two FLOPs; bytes are f32 reads and writes of the plain layouts.
struct Price {
  std::int64_t macs = 0;  ///< of the textbook operation, padding included, as published tables count them
  std::int64_t live_macs = 0;  ///< of the multiplications that meet input rather than padding
  std::int64_t forward_flops = 0, backward_flops = 0;
  std::int64_t forward_bytes = 0, backward_bytes = 0;

  constexpr Price& operator+=(const Price& other) {
    macs += other.macs;
    live_macs += other.live_macs;
    forward_flops += other.forward_flops;
    backward_flops += other.backward_flops;
    forward_bytes += other.forward_bytes;
    backward_bytes += other.backward_bytes;
    return *this;
  }
};

/// The price of node `n`. The first layer has no gradient for its input and so costs less backward.
constexpr Price price_of(const Graph& g, int n) {
  const Node& node = g.nodes[n];
  Price price;
  if (node.op == Op::input || node.op == Op::label || node.op == Op::flatten) return price;
  const Shape& in = g.nodes[node.input[0]].shape;
  const std::int64_t out = node.shape.size();
  std::int64_t read = 0, parameters = 0;
  for (int i = 0; i < node.inputs; ++i) read += g.nodes[node.input[i]].shape.size();
  for (int k = 0; k < node.parameters; ++k) parameters += g.parameters[node.parameter + k].shape.size();
  const bool first = g.nodes[node.input[0]].op == Op::input;
  const auto element = static_cast<std::int64_t>(sizeof(float));
  price.forward_bytes = (read + parameters + out) * element;
  price.backward_bytes = ((first ? 1 : 2) * read + 2 * parameters + out) * element;
  switch (node.op) {
    case Op::conv2d: {
      const Window& w = node.window;
      price.macs = out * in[0] * w.height * w.width;
      price.live_macs = static_cast<std::int64_t>(node.shape[0]) * in[0] *
                        meetings(in[1], w.height, w.stride, w.padding, node.shape[1]) *
                        meetings(in[2], w.width, w.stride, w.padding, node.shape[2]);
      break;
    }
    case Op::linear:
      price.macs = price.live_macs = out * in[0];
      break;
    case Op::batch_norm:
      price.forward_flops = 7 * out, price.backward_flops = 11 * out;
      break;
    case Op::max_pool:
    case Op::avg_pool:
      price.forward_flops = out * node.window.height * node.window.width;
      price.backward_flops = price.forward_flops;
      break;
    case Op::cross_entropy:
      price.forward_flops = 4 * read, price.backward_flops = 2 * read;
      break;
    default:
      price.forward_flops = out, price.backward_flops = out;
      break;
  }
  if (price.macs > 0) {
    price.forward_flops = 2 * price.live_macs;
    price.backward_flops = (first ? 2 : 4) * price.live_macs;
  }
  return price;
}

}  // namespace convoy::graph
