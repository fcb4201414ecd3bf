// GPT-2 (Radford et al., 2019): a causal language model, with the parameter names of Hugging Face's
// GPT2LMHeadModel.
#pragma once

#include <string_view>

#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/builder.hpp>

namespace convoy::models {

/// The sizes of a Gpt2, by default those of GPT-2 small. `define_gpt2` accepts sizes known only at run time.
struct Gpt2Sizes {
  int layers = 12, width = 768, heads = 12;
  int length = 1024;       ///< tokens per row, at most `positions`
  int vocabulary = 50257;  ///< token ids are in [0, vocabulary)
  int positions = 1024;    ///< the number of position embeddings
  float dropout = 0.1f;    ///< after embeddings and sublayers, and of attention probabilities
  bool logits = false;     ///< make the logits an output, stored in full
};

/// Whether Hugging Face's checkpoints store the parameter of this name as [in, out], because it belongs to a
/// Conv1D. convoy stores the weight of every linear layer as [out, in].
constexpr bool gpt2_is_transposed(std::string_view name) {
  for (const std::string_view end : {"c_attn.weight", "c_proj.weight", "c_fc.weight"})
    if (name.size() > end.size() && name.substr(name.size() - end.size()) == end) return true;
  return false;
}

namespace detail {

inline constexpr float gpt2_deviation = 0.02f;

/// The standard deviation of the initial weight of a sublayer's output projection, of which each layer has
/// two: 0.02 / sqrt(2 layers).
constexpr float gpt2_deviation_of_sums(int layers) {
  double root = 1;
  for (int i = 0; i < 64; ++i) root = (root + 2.0 * layers / root) / 2;  // Newton's method
  return static_cast<float>(static_cast<double>(gpt2_deviation) / root);
}

/// x + dropout(c_proj(y)), in the scope of the sublayer.
constexpr graph::Tensor gpt2_sum(graph::Builder& g, graph::Tensor x, graph::Tensor y, const Gpt2Sizes& s) {
  y = g.linear(y, {.features = s.width, .deviation = gpt2_deviation_of_sums(s.layers), .name = "c_proj"});
  if (s.dropout > 0) y = g.dropout(y, {.p = s.dropout, .name = "dropout"});
  return g.add(x, y, {.name = "add"});
}

constexpr graph::Tensor gpt2_layer(graph::Builder& g, graph::Tensor x, const Gpt2Sizes& s) {
  auto y = g.layer_norm(x, {.name = "ln_1"});
  {
    auto in_attention = g.scope("attn");
    y = g.linear(y, {.features = 3 * s.width, .deviation = gpt2_deviation, .name = "c_attn"});
    y = g.attention(y, {.heads = s.heads, .causal = true, .dropout = s.dropout, .name = "attend"});
    x = gpt2_sum(g, x, y, s);
  }
  y = g.layer_norm(x, {.name = "ln_2"});
  auto in_mlp = g.scope("mlp");
  y = g.linear(y, {.features = 4 * s.width, .deviation = gpt2_deviation, .name = "c_fc"});
  return gpt2_sum(g, x, g.gelu(y, {.form = graph::GeluForm::tanh, .name = "act"}), s);
}

}  // namespace detail

/// Input "input_ids" [length] (i32); label "labels" [length], the next token at each position, -100 to ignore
/// the position. (Hugging Face's model shifts the labels itself; here the data set does.) Output, with
/// `logits`: "logits". The head shares the weight of the token embeddings. Linear layers store weights as
/// [out, in]; `gpt2_is_transposed` tells which of them Hugging Face's checkpoints store as [in, out].
constexpr void define_gpt2(graph::Builder& g, const Gpt2Sizes& s) {
  const auto ids = g.input("input_ids", {s.length}, {.dtype = DType::i32});
  graph::Handle tokens;
  graph::Tensor x;
  {
    auto in_transformer = g.scope("transformer");
    const graph::ParameterOptions start{.init = graph::Init::normal, .deviation = detail::gpt2_deviation};
    tokens = g.parameter("wte.weight", {s.vocabulary, s.width}, start);
    x = g.embedding(ids, tokens, {.name = "wte"});
    x = g.position_embedding(x,
                             {.positions = s.positions, .deviation = detail::gpt2_deviation, .name = "wpe"});
    if (s.dropout > 0) x = g.dropout(x, {.p = s.dropout, .name = "drop"});
    {
      auto in_layers = g.scope("h");
      g.expect_repeated(s.layers);
      for (int i = 0; i < s.layers; ++i) {
        auto in_layer = g.scope(i);
        x = detail::gpt2_layer(g, x, s);
      }
    }
    x = g.layer_norm(x, {.name = "ln_f"});
  }
  x = g.linear(x, tokens, {.bias = false, .name = "lm_head"});
  if (s.logits) g.output("logits", x);
  const auto next = g.label("labels", s.vocabulary, {.positions = s.length, .ignore = -100});
  g.loss(g.cross_entropy(x, next, {.name = "loss"}));
}

/// The arguments are the fields of Gpt2Sizes. Dropout is given in percent, so that the template argument is
/// an integer.
template <int Layers, int Width, int Heads, int Length = 1024, int Vocabulary = 50257, int Positions = 1024,
          int DropoutPercent = 10, bool Logits = false>
struct Gpt2 {
  static constexpr void define(graph::Builder& g) {
    define_gpt2(g, {Layers, Width, Heads, Length, Vocabulary, Positions,
                    static_cast<float>(DropoutPercent) / 100, Logits});
  }
};

/// 124,439,808 parameters.
template <int Length = 1024>
struct Gpt2Small : Gpt2<12, 768, 12, Length> {};
/// 354,823,168 parameters.
template <int Length = 1024>
struct Gpt2Medium : Gpt2<24, 1024, 16, Length> {};
/// 774,030,080 parameters.
template <int Length = 1024>
struct Gpt2Large : Gpt2<36, 1280, 20, Length> {};
/// 1,557,611,200 parameters.
template <int Length = 1024>
struct Gpt2Xl : Gpt2<48, 1600, 25, Length> {};

}  // namespace convoy::models
