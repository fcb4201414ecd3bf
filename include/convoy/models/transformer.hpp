// A Transformer encoder (Vaswani et al., 2017) that classifies sentences: word and position embeddings,
// layers of bidirectional self-attention, the mean over a sentence's words without padding, and a linear
// layer.
#pragma once

#include <string_view>

#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/builder.hpp>

namespace convoy::models {

/// The position of a Transformer's layer norms.
enum class NormPlace : unsigned char {
  before,  ///< before each sublayer and at the end; deep encoders then train from scratch without a warm-up
  after,   ///< after each residual sum, as published in 2017
};

/// The sizes of a Transformer. `define_transformer` accepts sizes known only at run time.
struct TransformerSizes {
  int layers = 0, width = 0, heads = 0;
  int ffn = 0;         ///< features between the two linear layers of a layer
  int length = 0;      ///< words in a padded sentence
  int vocabulary = 0;  ///< word ids are in [0, vocabulary)
  int classes = 0;
  NormPlace norm = NormPlace::before;
  float dropout = 0.1f;  ///< after embeddings, sublayers and GELU, and of attention probabilities
};

namespace detail {

/// x with dropout, or x itself if p is 0.
constexpr graph::Tensor dropped(graph::Builder& g, graph::Tensor x, float p, std::string_view name) {
  return p > 0 ? g.dropout(x, {.p = p, .name = name}) : x;
}

/// The weight and the bias of a linear layer or a norm, named `name.weight` and `name.bias` (for in_proj with
/// an underscore instead of the dot).
struct WeightAndBias {
  graph::Handle weight, bias;
};
constexpr WeightAndBias linear_parameters(graph::Builder& g, std::string_view name, int in, int out) {
  const graph::ParameterOptions start{graph::Init::fan_in_uniform, in, out};
  graph::ParameterOptions bias = start;
  bias.group = graph::Group::no_decay;
  return {g.parameter(Name(name).append(".weight"), {out, in}, start),
          g.parameter(Name(name).append(".bias"), {out}, bias)};
}
constexpr WeightAndBias norm_parameters(graph::Builder& g, std::string_view name, int width) {
  return {g.parameter(Name(name).append(".weight"), {width},
                      {.init = graph::Init::ones, .group = graph::Group::no_decay}),
          g.parameter(Name(name).append(".bias"), {width}, {.group = graph::Group::no_decay})};
}

/// A layer of torch.nn.TransformerEncoder. Its parameters are created in PyTorch's order, which is not the
/// order of their use.
constexpr graph::Tensor encoder_layer(graph::Builder& g, graph::Tensor x, graph::Tensor lengths,
                                      const TransformerSizes& s) {
  const int w = s.width;
  const WeightAndBias packed{
      g.parameter("self_attn.in_proj_weight", {3 * w, w}, {graph::Init::xavier_uniform, w, 3 * w}),
      g.parameter("self_attn.in_proj_bias", {3 * w}, {.group = graph::Group::no_decay})};
  const graph::ParameterOptions start{graph::Init::fan_in_uniform, w, w};
  const WeightAndBias out{g.parameter("self_attn.out_proj.weight", {w, w}, start),
                          g.parameter("self_attn.out_proj.bias", {w}, {.group = graph::Group::no_decay})};
  const WeightAndBias up = linear_parameters(g, "linear1", w, s.ffn),
                      down = linear_parameters(g, "linear2", s.ffn, w);
  const WeightAndBias norm1 = norm_parameters(g, "norm1", w), norm2 = norm_parameters(g, "norm2", w);
  const bool before = s.norm == NormPlace::before;

  auto y = before ? g.layer_norm(x, norm1.weight, norm1.bias, {.name = "norm1"}) : x;
  y = g.linear(y, packed.weight, packed.bias, {.name = "self_attn.in_proj"});
  y = g.attention(y, lengths, {.heads = s.heads, .dropout = s.dropout, .name = "self_attn"});
  y = g.linear(y, out.weight, out.bias, {.name = "self_attn.out_proj"});
  x = g.add(x, dropped(g, y, s.dropout, "dropout1"), {.name = "add1"});
  if (!before) x = g.layer_norm(x, norm1.weight, norm1.bias, {.name = "norm1"});

  y = before ? g.layer_norm(x, norm2.weight, norm2.bias, {.name = "norm2"}) : x;
  y = g.gelu(g.linear(y, up.weight, up.bias, {.name = "linear1"}), {.name = "gelu"});
  y = g.linear(dropped(g, y, s.dropout, "dropout"), down.weight, down.bias, {.name = "linear2"});
  x = g.add(x, dropped(g, y, s.dropout, "dropout2"), {.name = "add2"});
  return before ? x : g.layer_norm(x, norm2.weight, norm2.bias, {.name = "norm2"});
}

}  // namespace detail

/// Inputs "input_ids" (i32 ids of words, padded to `length`) and "lengths" (i32, the words of each sentence,
/// at least 1), label "label", output "logits". Parameters are named as in a PyTorch module whose `encoder`
/// is a torch.nn.TransformerEncoder with activation "gelu", next to `embedding`, `position` and `classifier`.
constexpr void define_transformer(graph::Builder& g, const TransformerSizes& s) {
  const auto tokens = g.input("input_ids", {s.length}, {.dtype = DType::i32});
  const auto lengths = g.input("lengths", {}, {.dtype = DType::i32});
  auto x = g.embedding(
      tokens, {.entries = s.vocabulary, .features = s.width, .deviation = 0.02f, .name = "embedding"});
  x = g.position_embedding(x, {.deviation = 0.02f, .name = "position"});
  x = detail::dropped(g, x, s.dropout, "dropout");
  {
    auto in_encoder = g.scope("encoder");
    {
      auto in_layers = g.scope("layers");
      g.expect_repeated(s.layers);
      for (int i = 0; i < s.layers; ++i) {
        auto in_layer = g.scope(i);
        x = detail::encoder_layer(g, x, lengths, s);
      }
    }
    if (s.norm == NormPlace::before) x = g.layer_norm(x, {.name = "norm"});
  }
  x = g.linear(g.mean(x, lengths, {.name = "mean"}), {.features = s.classes, .name = "classifier"});
  g.output("logits", x);
  g.loss(g.cross_entropy(x, g.label("label", s.classes), {.name = "loss"}));
}

/// The SST-5 workload uses `Transformer<6, 256, 4, 1024, 256, words, 5>`. Dropout is given in percent, so
/// that the template argument is an integer.
template <int Layers, int Width, int Heads, int Ffn, int Length, int Vocabulary, int Classes,
          NormPlace Norm = NormPlace::before, int DropoutPercent = 10>
struct Transformer {
  static constexpr void define(graph::Builder& g) {
    define_transformer(g, {Layers, Width, Heads, Ffn, Length, Vocabulary, Classes, Norm,
                           static_cast<float>(DropoutPercent) / 100});
  }
};

}  // namespace convoy::models
