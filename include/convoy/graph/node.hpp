// Nodes: a traced model as flat tables. The nodes are in order of definition; their inputs, parameters and
// attributes are in tables of their own, because a node may have any number of each. Shapes are of one
// sample; the batch size is chosen at run time.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <convoy/core/dtype.hpp>
#include <convoy/core/name.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/custom.hpp>

namespace convoy::graph {

/// One use of an operation. A pair such as `input`, `inputs` is the index of the first entry in one of the
/// graph's tables and the number of entries.
struct Node {
  int op = -1;                        ///< its index in graph::Operations
  DType dtype = DType::f32;           ///< of its value
  Kind kind = Kind::number;           ///< of its value
  bool given = false;                 ///< supplied by a data set: an input or a label
  Shape shape;                        ///< of its value, for one sample
  int input = 0, inputs = 0;          ///< in Graph::edges, which holds indices of earlier nodes
  int use = 0, uses = 0;              ///< in Graph::uses, which holds indices of parameters
  int statistic = 0, statistics = 0;  ///< in Graph::statistics
  int word = 0, words = 0;            ///< in Graph::words, which holds the operation's attributes
  int call = -1;                      ///< in Graph::calls, for a custom operation; else -1
  Name name;
};

/// How a parameter is initialized.
enum class Init : unsigned char {
  zeros,
  ones,
  kaiming_normal,  ///< normal, variance 2 / fan_out (He et al., 2015), as torchvision initializes
                   ///< convolutions
  fan_in_uniform,  ///< uniform within 1 / sqrt(fan_in), as PyTorch initializes linear layers
  xavier_uniform,  ///< uniform, variance 2 / (fan_in + fan_out) (Glorot and Bengio, 2010)
  normal,          ///< normal with the parameter's `deviation` as standard deviation
};

/// What the optimizer does with a parameter.
enum class Group : unsigned char {
  decay,     ///< weights: updated, with weight decay
  no_decay,  ///< biases and normalization: updated; decayed only if the trainer's options say so
  frozen,    ///< neither updated nor exchanged
};

/// Alignment of the start of every parameter in the arenas, in elements: 64 bytes of f32.
inline constexpr std::int64_t slot_alignment = 16;

/// A learnable tensor: PyTorch's name and canonical layout (convolution: out, in, height, width; linear: out,
/// in).
struct Parameter {
  Name name;
  Shape shape;
  int fan_in = 1, fan_out = 1;
  Init init = Init::zeros;
  Group group = Group::decay;
  float deviation = 1;  ///< of Init::normal; PyTorch's embeddings have 1
};

/// A running statistic, such as the {channels} running mean of batch normalization. Not trained; averaged
/// over ranks before evaluation.
struct Statistic {
  Name name;
  Shape shape;
  float start = 0;
};

/// A named output of the model.
struct Output {
  Name name;
  int node = -1;
};

/// A loss, which is `weight` times the mean of its node over the rows, or over the labels that count.
struct Loss {
  int node = -1;
  float weight = 1;
  friend constexpr bool operator==(const Loss&, const Loss&) = default;
};

/// A number measured on every batch: the sum over its rows, which a user's `measure` returns.
struct Metric {
  Name name;
  int input = 0, inputs = 0;  ///< in Graph::edges
  MetricCall call = nullptr;
  StreamCall on_stream = nullptr;  ///< the device function, which measures each row; null if there is none
  std::uint64_t identity = 0;      ///< of the type that measures; compared between ranks
};

// Attributes as 32-bit words, so that fingerprints and equality need no code per operation.
template <class A>
struct Words {
  static_assert(sizeof(A) % sizeof(std::uint32_t) == 0 && std::is_trivially_copyable_v<A>,
                "convoy: the attributes of an operation are members of 4 bytes, int or float");
  std::uint32_t word[sizeof(A) / sizeof(std::uint32_t)];
};

/// The sizes of a model's tables.
struct Counts {
  int nodes = 0, edges = 0, uses = 0, words = 0, calls = 0, parameters = 0, statistics = 0, outputs = 0,
      metrics = 0, losses = 0;
  friend constexpr bool operator==(const Counts&, const Counts&) = default;
};

/// A read-only view of a traced model, wherever its tables live.
struct Graph {
  const Node* nodes = nullptr;
  const int* edges = nullptr;
  const int* uses = nullptr;
  const std::uint32_t* words = nullptr;
  const CustomCalls* const* calls = nullptr;
  const Parameter* parameters = nullptr;
  const Statistic* statistics = nullptr;
  const Output* outputs = nullptr;
  const Metric* metrics = nullptr;
  const Loss* losses = nullptr;  ///< their weighted sum is minimized
  Counts count;

  /// The node that is input `i` of node `n`.
  constexpr int input(int n, int i) const { return edges[nodes[n].input + i]; }
  /// The shape of input `i` of node `n`.
  constexpr const Shape& shape_of_input(int n, int i) const { return nodes[input(n, i)].shape; }
  /// The k-th parameter of node `n`.
  constexpr int parameter(int n, int k) const { return uses[nodes[n].use + k]; }
  /// The attributes of node `n`, which must be an `Op`.
  template <class Op>
  constexpr typename Op::Attributes attributes(int n) const {
    using A = typename Op::Attributes;
    Words<A> packed{};
    for (int i = 0; i < nodes[n].words; ++i) packed.word[i] = words[nodes[n].word + i];
    return std::bit_cast<A>(packed);
  }
  /// The functions of the custom operation `n`.
  constexpr const CustomCalls& calls_of(int n) const { return *calls[nodes[n].call]; }
};

/// The input of an operation whose values are indices, each in [begin, end); `input` is -1 if there is none.
struct Indices {
  int input = -1;
  int begin = 0, end = 0;
};

/// The values from forward that an operation's backward reads. They determine the lifetimes of values.
struct Saves {
  unsigned inputs = 0;     ///< a bit for each input whose value backward reads
  bool output = false;     ///< whether backward reads the operation's own value
  std::int64_t bytes = 0;  ///< of further saved data, per row
};

}  // namespace convoy::graph
