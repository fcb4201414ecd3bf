// Nodes: what a model consists of once it is traced. One flat array of nodes in order of definition, one of
// parameters, one of running statistics. Shapes are of one sample; the batch size is chosen at run time.
#pragma once

#include <cstdint>
#include <string_view>

#include <convoy/core/dtype.hpp>
#include <convoy/core/name.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/custom.hpp>

namespace convoy::graph {

enum class Op : unsigned char {
  input,
  label,
  conv2d,
  batch_norm,
  relu,
  max_pool,
  avg_pool,
  add,
  flatten,
  linear,
  cross_entropy,
  custom,
};
inline constexpr int op_count = 12;

constexpr std::string_view name_of(Op op) {
  constexpr std::string_view names[op_count] = {"input",   "label",    "conv2d",        "batch_norm",
                                                "relu",    "max_pool", "avg_pool",      "add",
                                                "flatten", "linear",   "cross_entropy", "custom"};
  return names[static_cast<int>(op)];
}

/// The sliding window of a convolution or a pooling: extents of the kernel, one stride and one padding for
/// both axes.
struct Window {
  int height = 0, width = 0, stride = 1, padding = 0;

  /// The number of positions along an axis of `extent` with a kernel of `kernel`; 0 or less when none fits.
  constexpr int positions(int extent, int kernel) const {
    const int room = extent + 2 * padding - kernel;
    return room < 0 ? 0 : room / stride + 1;
  }
  friend constexpr bool operator==(const Window&, const Window&) = default;
};

/// One operation. `input` holds indices of earlier nodes.
struct Node {
  static constexpr int max_inputs = 3;
  Op op = Op::input;
  DType dtype = DType::f32;
  int input[max_inputs] = {-1, -1, -1};
  int inputs = 0;
  Shape shape;    ///< of its output, for one sample
  Window window;  ///< conv2d, max_pool, avg_pool
  float epsilon = 0,
        momentum =
            0;  ///< batch_norm: y = (x - mean) / sqrt(var + epsilon); running += momentum * (new - running)
  int classes = 0;     ///< label, cross_entropy
  int parameter = -1;  ///< index of the first parameter: weight, then bias where it has one
  int parameters = 0;
  int statistic = -1;  ///< batch_norm: index of running_mean; running_var follows
  const CustomCalls* custom = nullptr;
  Name name;
};

/// How a parameter starts.
enum class Init : unsigned char {
  zeros,
  ones,
  kaiming_normal,  ///< normal, variance 2 / fan_out (He et al., 2015), as torchvision starts its convolutions
  fan_in_uniform,  ///< uniform within 1 / sqrt(fan_in), as PyTorch starts linear layers
};

/// What the optimizer does with a parameter.
enum class Group : unsigned char {
  decay,     ///< weights: updated, with weight decay
  no_decay,  ///< biases and normalisation: updated; decayed only where the optimizer's options say so
  frozen,    ///< neither updated nor exchanged
};

/// A learnable tensor: PyTorch's name and canonical layout (convolution: out, in, height, width; linear: out,
/// in).
struct Parameter {
  Name name;
  Shape shape;
  int node = -1;
  int fan_in = 1, fan_out = 1;
  Init init = Init::zeros;
  Group group = Group::decay;
};

/// A running statistic of batch normalisation, {channels}; not learnt, averaged over ranks before evaluation.
struct Statistic {
  Name name;
  Shape shape;
  int node = -1;
  float start = 0;
};

/// A value that the model hands out under a name.
struct Output {
  Name name;
  int node = -1;
};

/// A number measured on every batch: the sum over its rows of what a user's `measure` returns.
struct Metric {
  Name name;
  int input[Node::max_inputs] = {-1, -1, -1};
  int inputs = 0;
  MetricCall call = nullptr;
};

/// A read-only view of a traced model, wherever its tables live.
struct Graph {
  const Node* nodes = nullptr;
  const Parameter* parameters = nullptr;
  const Statistic* statistics = nullptr;
  const Output* outputs = nullptr;
  const Metric* metrics = nullptr;
  const int* losses = nullptr;  ///< nodes whose sum, averaged over the batch, is minimised
  int node_count = 0, parameter_count = 0, statistic_count = 0, output_count = 0, metric_count = 0,
      loss_count = 0;
};

}  // namespace convoy::graph
