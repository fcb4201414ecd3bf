// Price: the multiplications and bytes of an operation for one sample, forward and backward. Each operation
// defines its own.
#pragma once

#include <cstdint>

#include <convoy/graph/node.hpp>

namespace convoy::graph {

/// For one sample. A multiply-accumulate is two FLOPs; bytes are f32 reads and writes of the plain layouts.
struct Price {
  std::int64_t macs = 0;  ///< multiply-accumulates of the textbook operation, padding included, as published
                          ///< tables count them
  std::int64_t live_macs = 0;  ///< only those that meet input rather than padding
  std::int64_t forward_flops = 0, backward_flops = 0;
  std::int64_t forward_bytes = 0, backward_bytes = 0;
  /// The part of these bytes that belongs to parameters and their gradients, moved once per batch of any
  /// size.
  std::int64_t forward_bytes_once = 0, backward_bytes_once = 0;

  constexpr Price& operator+=(const Price& other) {
    macs += other.macs;
    live_macs += other.live_macs;
    forward_flops += other.forward_flops;
    backward_flops += other.backward_flops;
    forward_bytes += other.forward_bytes;
    backward_bytes += other.backward_bytes;
    forward_bytes_once += other.forward_bytes_once;
    backward_bytes_once += other.backward_bytes_once;
    return *this;
  }
};

/// Whether the first input of node `n` is supplied by a data set, so that backward computes no gradient for
/// it.
constexpr bool is_first_layer(const Graph& g, int n) { return g.nodes[g.input(n, 0)].given; }

/// The number of elements of all inputs of node `n`.
constexpr std::int64_t elements_read(const Graph& g, int n) {
  std::int64_t read = 0;
  for (int i = 0; i < g.nodes[n].inputs; ++i) read += g.shape_of_input(n, i).size();
  return read;
}

/// The price of an operation that reads its inputs and parameters once and writes its output once: bytes, no
/// FLOPs.
constexpr Price priced_bytes(const Graph& g, int n) {
  const std::int64_t read = elements_read(g, n), out = g.nodes[n].shape.size();
  std::int64_t parameters = 0;
  for (int k = 0; k < g.nodes[n].uses; ++k) parameters += g.parameters[g.parameter(n, k)].shape.size();
  const auto element = static_cast<std::int64_t>(sizeof(float));
  Price price;
  price.forward_bytes = (read + parameters + out) * element;
  price.backward_bytes = ((is_first_layer(g, n) ? 1 : 2) * read + 2 * parameters + out) * element;
  price.forward_bytes_once = parameters * element;
  price.backward_bytes_once = 2 * parameters * element;
  return price;
}

/// The price of an elementwise operation with these FLOPs per element of its output.
constexpr Price priced_elementwise(const Graph& g, int n, std::int64_t forward = 1,
                                   std::int64_t backward = 1) {
  Price price = priced_bytes(g, n);
  price.forward_flops = forward * g.nodes[n].shape.size();
  price.backward_flops = backward * g.nodes[n].shape.size();
  return price;
}

/// The price of a matrix product or convolution. A first layer computes no gradient for its input and so
/// costs less backward.
constexpr Price priced_products(const Graph& g, int n, std::int64_t macs, std::int64_t live_macs) {
  Price price = priced_bytes(g, n);
  price.macs = macs;
  price.live_macs = live_macs;
  price.forward_flops = 2 * live_macs;
  price.backward_flops = (is_first_layer(g, n) ? 2 : 4) * live_macs;
  return price;
}

}  // namespace convoy::graph
