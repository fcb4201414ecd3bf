// BERT (Devlin et al., 2018) for pre-training: masked language modeling and next-sentence prediction on one
// encoder, with the parameter names of Hugging Face's BertForPreTraining.
#pragma once

#include <string_view>

#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/builder.hpp>

namespace convoy::models {

/// The sizes of a Bert, by default those of BERT-base. `define_bert` accepts sizes known only at run time.
struct BertSizes {
  int layers = 12, width = 768, heads = 12;
  int ffn = 3072;          ///< features between the two linear layers of a layer
  int length = 128;        ///< tokens of a padded pair of sentences, at most `positions`
  int vocabulary = 30522;  ///< token ids are in [0, vocabulary)
  int predictions = 20;    ///< masked positions per row
  int positions = 512;     ///< the number of position embeddings
  float dropout = 0.1f;    ///< after embeddings and sublayers, and of attention probabilities
  bool logits = false;     ///< make the masked tokens' logits an output, stored in full
};

namespace detail {

inline constexpr float bert_deviation = 0.02f, bert_epsilon = 1e-12f;

constexpr graph::Tensor bert_linear(graph::Builder& g, graph::Tensor x, int features, std::string_view name) {
  return g.linear(x, {.features = features, .deviation = bert_deviation, .name = name});
}

/// The end of a sublayer: LayerNorm(x + dropout(dense(y))).
constexpr graph::Tensor bert_output(graph::Builder& g, graph::Tensor x, graph::Tensor y, float dropout) {
  auto in_output = g.scope("output");
  y = bert_linear(g, y, x.shape.last(), "dense");
  if (dropout > 0) y = g.dropout(y, {.p = dropout, .name = "dropout"});
  return g.layer_norm(g.add(y, x, {.name = "add"}), {.epsilon = bert_epsilon, .name = "LayerNorm"});
}

constexpr graph::Tensor bert_layer(graph::Builder& g, graph::Tensor x, graph::Tensor lengths,
                                   const BertSizes& s) {
  {
    auto in_attention = g.scope("attention");
    graph::Tensor y;
    {
      auto in_self = g.scope("self");
      y = g.linears(x, {"query", "key", "value"},
                    {.features = s.width, .deviation = bert_deviation, .name = "projections"});
      y = g.attention(y, lengths, {.heads = s.heads, .dropout = s.dropout, .name = "attend"});
    }
    x = bert_output(g, x, y, s.dropout);
  }
  auto y = bert_linear(g, x, s.ffn, "intermediate.dense");
  y = g.gelu(y, {.name = "intermediate.gelu"});
  return bert_output(g, x, y, s.dropout);
}

}  // namespace detail

/// Inputs, all i32: "input_ids" and "token_type_ids" [length] (0 or 1: the first or the second sentence),
/// "lengths" (the number of tokens before the padding; Hugging Face's attention_mask has as many ones) and
/// "masked_positions" [predictions]. Labels: "masked_labels" [predictions] (-100 past the last masked token
/// of a row) and "next_sentence_label" (0: the second sentence follows the first). Outputs:
/// "seq_relationship_logits" and, with `logits`, "prediction_logits" of the masked tokens. The loss is the
/// sum of two means, over masked tokens and over rows. The decoder shares the weight of the word embeddings.
constexpr void define_bert(graph::Builder& g, const BertSizes& s) {
  const graph::InputOptions integers{.dtype = DType::i32};
  const auto ids = g.input("input_ids", {s.length}, integers);
  const auto types = g.input("token_type_ids", {s.length}, integers);
  const auto lengths = g.input("lengths", {}, integers);
  const auto masked = g.input("masked_positions", {s.predictions}, integers);
  graph::Handle words;
  graph::Tensor x, pooled;
  {
    auto in_bert = g.scope("bert");
    {
      auto in_embeddings = g.scope("embeddings");
      const graph::ParameterOptions start{.init = graph::Init::normal, .deviation = detail::bert_deviation};
      words = g.parameter("word_embeddings.weight", {s.vocabulary, s.width}, start);
      const auto places = g.parameter("position_embeddings.weight", {s.positions, s.width}, start);
      const auto sentences = g.parameter("token_type_embeddings.weight", {2, s.width}, start);
      x = g.embedding(ids, words, {.name = "word_embeddings"});
      x = g.add(x, g.embedding(types, sentences, {.name = "token_type_embeddings"}), {.name = "add"});
      x = g.position_embedding(x, places, {.name = "position_embeddings"});
      x = g.layer_norm(x, {.epsilon = detail::bert_epsilon, .name = "LayerNorm"});
      if (s.dropout > 0) x = g.dropout(x, {.p = s.dropout, .name = "dropout"});
    }
    {
      auto in_layers = g.scope("encoder.layer");
      g.expect_repeated(s.layers);
      for (int i = 0; i < s.layers; ++i) {
        auto in_layer = g.scope(i);
        x = detail::bert_layer(g, x, lengths, s);
      }
    }
    pooled = detail::bert_linear(g, g.select(x, 0, {.name = "pooler.first"}), s.width, "pooler.dense");
    pooled = g.tanh(pooled, {.name = "pooler.tanh"});
  }
  {
    auto in_heads = g.scope("cls");
    {
      auto in_predictions = g.scope("predictions");
      const auto bias = g.parameter("bias", {s.vocabulary}, {.group = graph::Group::no_decay});
      x = detail::bert_linear(g, g.gather(x, masked, {.name = "masked"}), s.width, "transform.dense");
      x = g.gelu(x, {.name = "transform.gelu"});
      x = g.layer_norm(x, {.epsilon = detail::bert_epsilon, .name = "transform.LayerNorm"});
      x = g.linear(x, words, bias, {.name = "decoder"});
    }
    pooled = detail::bert_linear(g, pooled, 2, "seq_relationship");
  }
  if (s.logits) g.output("prediction_logits", x);
  g.output("seq_relationship_logits", pooled);
  const auto words_label =
      g.label("masked_labels", s.vocabulary, {.positions = s.predictions, .ignore = -100});
  g.loss(g.cross_entropy(x, words_label, {.name = "masked_lm_loss"}));
  g.loss(g.cross_entropy(pooled, g.label("next_sentence_label", 2), {.name = "next_sentence_loss"}));
}

/// The arguments are the fields of BertSizes. Dropout is given in percent, so that the template argument is
/// an integer.
template <int Layers, int Width, int Heads, int Ffn, int Length, int Vocabulary, int Predictions,
          int Positions = 512, int DropoutPercent = 10, bool Logits = false>
struct Bert {
  static constexpr void define(graph::Builder& g) {
    define_bert(g, {Layers, Width, Heads, Ffn, Length, Vocabulary, Predictions, Positions,
                    static_cast<float>(DropoutPercent) / 100, Logits});
  }
};

/// 109,482,240 parameters, and 110,106,428 with both heads. `Length` tokens of a pair of sentences,
/// `Predictions` masked positions of a row.
template <int Length = 128, int Predictions = 20, int Vocabulary = 30522>
struct BertBase : Bert<12, 768, 12, 3072, Length, Vocabulary, Predictions> {};
/// 336,226,108 parameters with both heads.
template <int Length = 128, int Predictions = 20, int Vocabulary = 30522>
struct BertLarge : Bert<24, 1024, 16, 4096, Length, Vocabulary, Predictions> {};

}  // namespace convoy::models
