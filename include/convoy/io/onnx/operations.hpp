// Operations: how each operation of a model is written in ONNX's operators. Losses and custom operations have
// no form here: a file holds what a trained model computes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/graph/builder.hpp>
#include <convoy/io/onnx/graph_writer.hpp>

#if CONVOY_DEFINITIONS
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <numeric>
#endif

namespace convoy::io::onnx {

/// A node of a model while it is written. Values have the batch as their first axis.
struct Site {
  GraphWriter& file;
  const graph::Graph& graph;
  int n;
  const std::vector<std::string>& values;  ///< the name in the file of the value of each earlier node

  const graph::Node& node() const { return graph.nodes[n]; }
  template <class Op>
  typename Op::Attributes attributes() const {
    return graph.attributes<Op>(n);
  }
  bool has(int i) const { return i < node().inputs; }
  const std::string& x(int i) const { return values[static_cast<std::size_t>(graph.input(n, i))]; }
  const Shape& shape(int i) const { return graph.shape_of_input(n, i); }
  std::string w(int k) const { return std::string(graph.parameters[graph.parameter(n, k)].name.view()); }
  std::string statistic(int k) const {
    return std::string(graph.statistics[node().statistic + k].name.view());
  }

  /// Adds an operator and returns the name of its result.
  std::string add(std::string_view operation, const std::vector<std::string>& inputs,
                  const std::vector<Attribute>& attributes = {}) const {
    return file.node(node().name.view(), operation, inputs, attributes);
  }
};

/// Writes a node and returns the name of its value; null for an operation that has no form in ONNX.
using Form = std::string (*)(const Site&);
/// The forms of all operations, indexed by operation number.
std::vector<Form> forms();

#if CONVOY_DEFINITIONS
namespace detail {

// TensorProto.DataType, as the operator Cast takes it.
constexpr std::int64_t as_f32 = 1, as_i64 = 7;

inline std::string cast(const Site& s, const std::string& x, std::int64_t type) {
  return s.add("Cast", {x}, {{"to", type}});
}
/// Adds an axis of extent 1.
inline std::string unsqueeze(const Site& s, const std::string& x, std::vector<std::int64_t> axes) {
  return s.add("Unsqueeze", {x, s.file.integers(axes)});
}
/// 0 to `count` - 1.
inline std::string counting(const Site& s, int count) {
  std::vector<i32> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return s.file.indices(numbers);
}
/// Several weights, one after another along their first axis; `first` and `end` count the node's parameters.
inline std::string joined(const Site& s, int first, int end) {
  if (end - first == 1) return s.w(first);
  std::vector<std::string> parts;
  for (int k = first; k < end; ++k) parts.push_back(s.w(k));
  return s.add("Concat", parts, {{"axis", 0}});
}

inline std::vector<Attribute> attributes_of(const graph::Window& w) {
  using Numbers = std::vector<std::int64_t>;
  return {{"kernel_shape", Numbers{w.height, w.width}},
          {"strides", Numbers{w.stride, w.stride}},
          {"pads", Numbers{w.padding, w.padding, w.padding, w.padding}}};
}

inline std::string form(graph::Input, const Site& s) {
  const std::string given(s.node().name.view());
  if (s.node().dtype != DType::u8) return given;
  const auto [scale, offset] = s.attributes<graph::Input>();
  const std::string scaled = s.add("Mul", {cast(s, given, as_f32), s.file.number(scale)});
  return s.add("Add", {scaled, s.file.number(offset)});
}

inline std::string form(graph::Conv2d, const Site& s) {
  const auto a = s.attributes<graph::Conv2d>();
  std::vector<std::string> inputs{s.x(0), s.w(0)};
  if (s.node().uses > 1) inputs.push_back(s.w(1));
  std::vector<Attribute> attributes = attributes_of(a);
  attributes.push_back({"dilations", std::vector<std::int64_t>{a.dilation, a.dilation}});
  attributes.push_back({"group", a.groups});
  return s.add("Conv", inputs, attributes);
}

inline std::string form(graph::BatchNorm, const Site& s) {
  return s.add("BatchNormalization", {s.x(0), s.w(0), s.w(1), s.statistic(0), s.statistic(1)},
               {{"epsilon", s.attributes<graph::BatchNorm>().epsilon}});
}

inline std::string form(graph::LayerNorm, const Site& s) {
  std::vector<std::string> inputs{s.x(0), s.w(0)};
  if (s.node().uses > 1) inputs.push_back(s.w(1));
  return s.add("LayerNormalization", inputs,
               {{"axis", -1}, {"epsilon", s.attributes<graph::LayerNorm>().epsilon}});
}

inline std::string form(graph::Linear, const Site& s) {
  const int layers = graph::Linear::layers(s.graph, s.n);
  const std::string weight = joined(s, 0, layers);
  const bool biased = s.node().uses > layers;
  const std::string bias = biased ? joined(s, layers, s.node().uses) : "";
  if (s.node().kind == Kind::row) {
    std::vector<std::string> inputs{s.x(0), weight};
    if (biased) inputs.push_back(bias);
    return s.add("Gemm", inputs, {{"transB", 1}});
  }
  const std::string product = s.add("MatMul", {s.x(0), s.add("Transpose", {weight})});
  return biased ? s.add("Add", {product, bias}) : product;
}

inline std::string form(graph::Embedding, const Site& s) { return s.add("Gather", {s.w(0), s.x(0)}); }

inline std::string form(graph::PositionEmbedding, const Site& s) {
  const int positions = s.shape(0)[0];
  std::string vectors = s.w(0);
  if (s.graph.parameters[s.graph.parameter(s.n, 0)].shape[0] > positions)
    vectors = s.add("Slice", {vectors, s.file.integers({0}), s.file.integers({positions})});
  return s.add("Add", {s.x(0), vectors});
}

/// Which keys each query reads: [rows or 1, 1, queries or 1, keys]; empty if each reads all.
inline std::string readable(const Site& s, const graph::Attention::Extents& e) {
  std::string causal, within;
  const std::string keys = e.causal || e.lengths >= 0 ? counting(s, e.keys) : "";
  if (e.causal) causal = s.add("LessOrEqual", {keys, unsqueeze(s, counting(s, e.queries), {1})});
  if (e.lengths >= 0) within = s.add("Less", {keys, unsqueeze(s, s.x(e.lengths), {1, 2, 3})});
  if (causal.empty() || within.empty()) return causal + within;
  return s.add("And", {causal, within});
}

/// Splits the features among the heads: [rows, positions, heads * n] to [rows, heads, positions, n].
inline std::string apart(const Site& s, const std::string& x, int heads, int features,
                         std::vector<std::int64_t> order) {
  return s.add("Transpose", {s.add("Reshape", {x, s.file.integers({0, 0, heads, features})})},
               {{"perm", order}});
}

inline std::string form(graph::Attention, const Site& s) {
  const auto e = graph::Attention::extents(s.graph, s.n);
  std::string part[3];
  for (int i = 0; i < 3; ++i) {
    part[i] = s.x(e.input[i]);
    const int features = (i < 2 ? e.key_features : e.value_features) * e.heads;
    if (e.is_packed())
      part[i] = s.add("Slice", {part[i], s.file.integers({e.first[i]}),
                                s.file.integers({e.first[i] + features}), s.file.integers({2})});
  }
  const std::string queries = apart(s, part[0], e.heads, e.key_features, {0, 2, 1, 3});
  const std::string keys = apart(s, part[1], e.heads, e.key_features, {0, 2, 3, 1});
  const std::string values = apart(s, part[2], e.heads, e.value_features, {0, 2, 1, 3});
  const float scale = 1 / std::sqrt(static_cast<float>(e.key_features));
  std::string scores = s.add("MatMul", {s.add("Mul", {queries, s.file.number(scale)}), keys});
  const std::string mask = readable(s, e);
  if (!mask.empty())
    scores = s.add("Where", {mask, scores, s.file.number(std::numeric_limits<float>::lowest())});
  std::string weights = s.add("Softmax", {scores}, {{"axis", -1}});
  // A query that reads no key, in a row of length 0, yields zeros.
  if (e.lengths >= 0) weights = s.add("Mul", {weights, cast(s, mask, as_f32)});
  const std::string heads = s.add("Transpose", {s.add("MatMul", {weights, values})},
                                  {{"perm", std::vector<std::int64_t>{0, 2, 1, 3}}});
  return s.add("Reshape", {heads, s.file.integers({0, 0, e.heads * e.value_features})});
}

inline std::string form(graph::MaxPool, const Site& s) {
  return s.add("MaxPool", {s.x(0)}, attributes_of(s.attributes<graph::MaxPool>()));
}

inline std::string form(graph::AvgPool, const Site& s) {
  std::vector<Attribute> attributes = attributes_of(s.attributes<graph::AvgPool>());
  attributes.push_back({"count_include_pad", 1});
  return s.add("AveragePool", {s.x(0)}, attributes);
}

inline std::string form(graph::Relu, const Site& s) { return s.add("Relu", {s.x(0)}); }
inline std::string form(graph::Sigmoid, const Site& s) { return s.add("Sigmoid", {s.x(0)}); }
inline std::string form(graph::Tanh, const Site& s) { return s.add("Tanh", {s.x(0)}); }
inline std::string form(graph::Dropout, const Site& s) { return s.x(0); }

inline std::string form(graph::Gelu, const Site& s) {
  const std::string& x = s.x(0);
  std::string inner;
  if (s.attributes<graph::Gelu>().form == graph::GeluForm::erf) {
    inner = s.add("Erf", {s.add("Mul", {x, s.file.number(std::sqrt(0.5f))})});
  } else {
    // sqrt(2 / pi) (x + 0.044715 x^3) as x (a + b x^2).
    const double a = std::sqrt(2 / std::numbers::pi);
    const std::string square = s.add("Mul", {x, x});
    const std::string cubic = s.add("Mul", {square, s.file.number(static_cast<float>(a * 0.044715))});
    const std::string sum = s.add("Add", {cubic, s.file.number(static_cast<float>(a))});
    inner = s.add("Tanh", {s.add("Mul", {x, sum})});
  }
  const std::string half = s.add("Mul", {x, s.file.number(0.5f)});
  return s.add("Mul", {half, s.add("Add", {inner, s.file.number(1)})});
}

inline std::string form(graph::Add, const Site& s) { return s.add("Add", {s.x(0), s.x(1)}); }
inline std::string form(graph::Multiply, const Site& s) { return s.add("Mul", {s.x(0), s.x(1)}); }

inline std::string form(graph::Concat, const Site& s) {
  std::vector<std::string> parts;
  for (int i = 0; s.has(i); ++i) parts.push_back(s.x(i));
  return s.add("Concat", parts, {{"axis", s.node().kind == Kind::image ? 1 : -1}});
}

inline std::string form(graph::Flatten, const Site& s) { return s.add("Flatten", {s.x(0)}, {{"axis", 1}}); }

inline std::string form(graph::Gather, const Site& s) {
  const std::string positions = cast(s, unsqueeze(s, s.x(1), {-1}), as_i64);
  return s.add("GatherND", {s.x(0), positions}, {{"batch_dims", 1}});
}

inline std::string form(graph::Select, const Site& s) {
  const std::string row =
      s.add("Gather", {s.x(0), s.file.integers({s.attributes<graph::Select>().position})}, {{"axis", 1}});
  return s.add("Squeeze", {row, s.file.integers({1})});
}

inline std::string form(graph::Mean, const Site& s) {
  if (!s.has(1))
    return s.add("ReduceMean", {s.x(0)}, {{"axes", std::vector<std::int64_t>{1}}, {"keepdims", 0}});
  const std::string lengths = unsqueeze(s, s.x(1), {1});
  const std::string within = unsqueeze(s, s.add("Less", {counting(s, s.shape(0)[0]), lengths}), {2});
  const std::string kept = s.add("Where", {within, s.x(0), s.file.number(0)});
  const std::string sum = s.add("ReduceSum", {kept, s.file.integers({1})}, {{"keepdims", 0}});
  return s.add("Div", {sum, cast(s, lengths, as_f32)});
}

template <class Op>
concept HasForm = requires(const Site& s) {
  form(Op{}, s);
};
template <class Op>
Form form_of() {
  if constexpr (HasForm<Op>)
    return [](const Site& s) { return form(Op{}, s); };
  else
    return nullptr;
}
template <class... Ops>
std::vector<Form> forms_of(graph::List<Ops...>) {
  return {form_of<Ops>()...};
}

}  // namespace detail

CONVOY_FUNCTION std::vector<Form> forms() { return detail::forms_of(graph::Operations{}); }
#endif

}  // namespace convoy::io::onnx
