// Convolution: one pass of a convolution and what the same kernel computes before and after it, described by
// numbers alone. One description thus serves a GPU, a test that asks what a GPU would support, and the cache
// of tuned plans.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/graph/plan.hpp>

namespace convoy::exec::cuda {

enum class Direction : int { forward, backward_input, backward_weight };

/// What the kernel of a pass also computes from its result before writing it to memory.
enum class ConvolutionEpilogue : int {
  none,
  statistics,  ///< forward: the sum and sum of squares of each output channel, over rows and positions
  /// backward_input, where a batch norm and a ReLU made the input: the gradient masked by the ReLU, and the
  /// gradients of the batch norm's weight and bias
  batch_norm_backward,
};

/// A tensor in memory: [n, h, w, c], contiguous.
struct Extents {
  DType element = DType::f32;
  std::int64_t n = 1, c = 1, h = 1, w = 1;
  static constexpr bool by_value = false;
  std::size_t bytes() const { return static_cast<std::size_t>(n * c * h * w) * size_of(element); }
};

/// Images are [rows, height, width, channels], weights [output channels, height, width, input channels of a
/// group], each contiguous.
struct Convolution {
  Direction direction = Direction::forward;
  ConvolutionEpilogue epilogue = ConvolutionEpilogue::none;
  /// forward with statistics, and backward_weight: the given image is the input of a batch norm, from which
  /// the kernel computes the image that it convolves: max(0, scale * given + shift) in each channel
  bool normalizes = false;
  bool has_second = false;  ///< batch_norm_backward: a further gradient is added before the mask
  bool has_addend = false;  ///< batch_norm_backward: something was added between batch norm and ReLU
  DType element = DType::f32;
  bool reduced_products = false;  ///< whether tensor cores may round f32 inputs
  int rows = 0, groups = 1;
  int in_channels = 0, in_height = 0, in_width = 0;
  int out_channels = 0, out_height = 0, out_width = 0;
  int height = 0, width = 0, stride = 1, dilation = 1;
  int top = 0, left = 0, bottom = 0, right = 0;  ///< paddings

  friend constexpr bool operator==(const Convolution&, const Convolution&) = default;

  /// For error sentences.
  std::string text() const {
    return concat("a convolution of ", out_channels, " x ", in_channels, " channels, ", height, " x ", width,
                  " taps, over ", rows, " images of ", in_height, " x ", in_width, " in ", name_of(element));
  }
  std::int64_t weight_elements() const {
    return std::int64_t{out_channels} * height * width * (in_channels / groups);
  }
  std::uint64_t hash() const {
    std::uint64_t mixed = hash_start;
    for (const int number : {static_cast<int>(direction),
                             static_cast<int>(epilogue),
                             static_cast<int>(normalizes),
                             static_cast<int>(has_second),
                             static_cast<int>(has_addend),
                             static_cast<int>(element),
                             static_cast<int>(reduced_products),
                             rows,
                             groups,
                             in_channels,
                             in_height,
                             in_width,
                             out_channels,
                             out_height,
                             out_width,
                             height,
                             width,
                             stride,
                             dilation,
                             top,
                             left,
                             bottom,
                             right})
      mixed = hash_of(static_cast<std::uint64_t>(number), mixed);
    return mixed;
  }
  /// Whether the kernel also computes a part of a batch norm.
  bool is_fused() const { return epilogue != ConvolutionEpilogue::none || normalizes; }
  /// The workspace worth having, at most `limit` bytes: a fused part saves passes over the output, or over
  /// the image in backward, and a workspace half as large would cost as many.
  std::size_t most_workspace(std::size_t limit) const {
    if (!is_fused()) return limit;
    return std::min(limit, tensors()[direction == Direction::forward ? 2 : 0].bytes() / 2);
  }
  /// Image, weight and output, or their gradients, then what the epilogue reads and writes. statistics: the
  /// sums and the sums of squares. batch_norm_backward: the batch norm's input, mean, 1 / standard deviation,
  /// weight and bias; the second gradient and the addend, if any; the gradients of weight and bias; and three
  /// coefficients that cuDNN always writes. Last the scales and shifts by which an image is normalized.
  std::vector<Extents> tensors() const {
    const Extents image{element, rows, in_channels, in_height, in_width};
    std::vector<Extents> all = {image,
                                {element, out_channels, in_channels / groups, height, width},
                                {element, rows, out_channels, out_height, out_width}};
    const auto add = [&](std::size_t count, const Extents& of) { all.insert(all.end(), count, of); };
    if (epilogue == ConvolutionEpilogue::statistics) add(2, {DType::f32, 1, out_channels});
    if (epilogue == ConvolutionEpilogue::batch_norm_backward) {
      const Extents of_channels{DType::f32, 1, in_channels};
      add(1, image);
      add(4, of_channels);
      add(static_cast<std::size_t>(has_second) + static_cast<std::size_t>(has_addend), image);
      add(5, of_channels);
    }
    if (normalizes) add(2, {element, 1, in_channels});
    return all;
  }
};

/// The channels in memory of a given image: the plan's, or more if only convolutions read the image. Tensor
/// cores need multiples of 8 channels, and cuDNN has special kernels for 4 channels of f16.
inline int given_channels(const Plan& plan, int n, DType element) {
  const int channels = plan.node(n).shape[0], lanes = element == DType::f16 && channels <= 4 ? 4 : 8;
  if (element == DType::f32) return channels;
  for (int m = 0; m < plan.graph.count.nodes; ++m)
    for (int i = 0; i < plan.node(m).inputs; ++i)
      if (plan.graph.input(m, i) == n &&
          (!graph::is<graph::Conv2d>(plan.node(m)) || plan.graph.attributes<graph::Conv2d>(m).groups > 1))
        return channels;
  return (channels + lanes - 1) / lanes * lanes;
}

/// Whether a batch norm reads node `n`.
inline bool feeds_batch_norm(const Plan& plan, int n) {
  for (int m = 0; m < plan.graph.count.nodes; ++m)
    if (graph::is<graph::BatchNorm>(plan.node(m)) && plan.graph.input(m, 0) == n) return true;
  return false;
}

/// The convolution of node `n` of a plan over the live taps of its weight only, which makes the kernel and
/// the paddings smaller.
inline Convolution convolution_of(const Plan& plan, int n, DType element, bool reduced_products, int rows) {
  const graph::Conv2d::Attributes window = plan.graph.attributes<graph::Conv2d>(n);
  const graph::Taps live = plan.live_taps(plan.graph.parameter(n, 0));
  const int from = plan.graph.input(n, 0);
  const Shape &in = plan.node(from).shape, &out = plan.node(n).shape;
  Convolution c;
  c.element = element;
  c.reduced_products = reduced_products;
  c.rows = rows;
  c.groups = window.groups;
  c.in_channels = plan.node(from).given ? given_channels(plan, from, element) : in[0];
  c.in_height = in[1];
  c.in_width = in[2];
  c.out_channels = out[0];
  c.out_height = out[1];
  c.out_width = out[2];
  c.height = live.height();
  c.width = live.width();
  c.stride = window.stride;
  c.dilation = window.dilation;
  c.top = window.padding - live.top * window.dilation;
  c.left = window.padding - live.left * window.dilation;
  // Equal paddings on both sides if they give the same positions, because more kernels support them.
  const auto behind = [&](int before, int extent, int kernel, int positions) {
    const int reach = static_cast<int>(window.reach(kernel));
    if ((extent + 2 * before - reach) / window.stride + 1 == positions) return before;
    const int needed = (positions - 1) * window.stride + reach - before - extent;
    return needed > 0 ? needed : 0;
  };
  c.bottom = behind(c.top, c.in_height, c.height, c.out_height);
  c.right = behind(c.left, c.in_width, c.width, c.out_width);
  return c;
}

}  // namespace convoy::exec::cuda
