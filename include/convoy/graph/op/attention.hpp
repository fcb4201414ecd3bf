// Multi-head scaled dot-product attention (Vaswani et al., 2017).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct AttentionOptions {
  int heads = 0;        ///< the features are split into this many equal, consecutive parts
  bool causal = false;  ///< the query at position i reads only the keys at positions 0 to i
  float dropout = 0;    ///< the probability in [0, 1) of dropping an attention weight in training; the others
                        ///< are divided by 1 - dropout, as with PyTorch's dropout_p
  std::string_view name = {};
};

struct Attention {
  static constexpr std::string_view name = "attention";
  enum Fault : int {
    does_not_pair,
    heads_do_not_divide,
    does_not_pack,
    lengths_are_no_number,
    dropout_is_wrong
  };
  struct Attributes {
    int heads = 0;
    int causal = 0;
    float dropout = 0;
  };

  /// The sizes of an attention and the places of its operands. Array index 0 stands for the queries, 1 for
  /// the keys, 2 for the values.
  struct Extents {
    int heads = 0;
    int queries = 0, keys = 0;  ///< positions
    int key_features = 0;       ///< per head, of a query and of a key
    int value_features = 0;     ///< per head, of a value
    bool causal = false;
    float dropout = 0;
    int input[3] = {0, 1, 2};     ///< the input of the node that holds the operand
    int first[3] = {0, 0, 0};     ///< the operand's first feature in that input
    int features[3] = {0, 0, 0};  ///< the number of features of that input
    int lengths = -1;             ///< the input that holds the lengths; -1: none
    constexpr bool is_packed() const { return input[2] == 0; }
    /// The number of pairs of a query and a key that the query may read, lengths aside.
    constexpr std::int64_t pairs() const {
      if (!causal) return std::int64_t{queries} * keys;
      const std::int64_t rising = queries < keys ? queries : keys;
      return rising * (rising + 1) / 2 + (queries - rising) * keys;
    }
  };
  static constexpr Extents extents(const Graph& g, int n) {
    const auto [heads, causal, dropout] = g.attributes<Attention>(n);
    const int inputs = g.nodes[n].inputs;
    Extents e;
    e.heads = heads;
    e.causal = causal != 0;
    e.dropout = dropout;
    if (inputs % 2 == 0) e.lengths = inputs - 1;
    for (int part = 0; part < 3; ++part) {
      if (inputs < 3) {
        e.input[part] = 0;
        e.first[part] = part * (g.shape_of_input(n, 0)[1] / 3);
      }
      e.features[part] = g.shape_of_input(n, e.input[part])[1];
    }
    e.queries = g.shape_of_input(n, 0)[0];
    e.keys = g.shape_of_input(n, e.input[1])[0];
    e.key_features = e.features[0] / (e.is_packed() ? 3 : 1) / heads;
    e.value_features = g.nodes[n].shape[1] / heads;
    return e;
  }

  template <class G>
  struct Verb {
    /// softmax(q k^T / sqrt(features per head)) v for each head, as
    /// torch.nn.functional.scaled_dot_product_attention. The inputs are sequences (positions, features): keys
    /// have as many features as queries, and there are as many keys as values. The result has the positions
    /// of q and the features of v.
    constexpr Tensor attention(Tensor q, Tensor k, Tensor v, AttentionOptions o) {
      return of_three(q, k, v, nullptr, o);
    }
    /// The same with `lengths`, an i32 input of one number per row: keys at positions from this length on are
    /// padding, which no query reads. A row of length 0 yields zeros.
    constexpr Tensor attention(Tensor q, Tensor k, Tensor v, Tensor lengths, AttentionOptions o) {
      return of_three(q, k, v, &lengths, o);
    }
    /// The same for one sequence (positions, 3 * features) that holds queries, keys and values side by side,
    /// as produced by one linear layer (PyTorch's in_proj, GPT-2's c_attn).
    constexpr Tensor attention(Tensor qkv, AttentionOptions o) { return of_packed(qkv, nullptr, o); }
    constexpr Tensor attention(Tensor qkv, Tensor lengths, AttentionOptions o) {
      return of_packed(qkv, &lengths, o);
    }

   private:
    constexpr Tensor of_three(Tensor q, Tensor k, Tensor v, const Tensor* lengths,
                              const AttentionOptions& o) {
      auto& g = static_cast<G&>(*this);
      Node node = open(g, o);
      if (!g.is_sequence(q) || !g.is_sequence(k) || !g.is_sequence(v)) return g.abandon(node, q);
      if (q.shape[1] != k.shape[1] || k.shape[0] != v.shape[0]) {
        const bool keys = q.shape[1] != k.shape[1];
        g.report(G::template index<Attention>, does_not_pair, keys ? q.shape : k.shape,
                 keys ? k.shape : v.shape);
        return g.abandon(node, q);
      }
      if (!divides(g, o.heads, q.shape) || !divides(g, o.heads, v.shape)) return g.abandon(node, q);
      node.shape = {q.shape[0], v.shape[1]};
      for (const Tensor& x : {q, k, v}) g.edge(node, x.node);
      return finish(g, node, lengths);
    }
    constexpr Tensor of_packed(Tensor qkv, const Tensor* lengths, const AttentionOptions& o) {
      auto& g = static_cast<G&>(*this);
      Node node = open(g, o);
      if (!g.is_sequence(qkv)) return g.abandon(node, qkv);
      if (qkv.shape[1] % 3 != 0) {
        g.report(G::template index<Attention>, does_not_pack, qkv.shape);
        return g.abandon(node, qkv);
      }
      node.shape = {qkv.shape[0], qkv.shape[1] / 3};
      if (!divides(g, o.heads, node.shape)) return g.abandon(node, qkv);
      g.edge(node, qkv.node);
      return finish(g, node, lengths);
    }

    static constexpr Node open(G& g, const AttentionOptions& o) {
      Node node = g.begin(G::template index<Attention>, o.name);
      g.attributes(node, Attributes{o.heads, o.causal, o.dropout});
      if (!(o.dropout >= 0 && o.dropout < 1)) g.report(G::template index<Attention>, dropout_is_wrong, {});
      node.kind = Kind::sequence;
      return node;
    }
    static constexpr bool divides(G& g, int heads, Shape shape) {
      if (heads > 0 && shape[1] % heads == 0) return true;
      g.report(G::template index<Attention>, heads_do_not_divide, shape, {heads});
      return false;
    }
    static constexpr Tensor finish(G& g, Node& node, const Tensor* lengths) {
      if (lengths == nullptr) return g.place(node);
      if (lengths->dtype != DType::i32)
        g.report(Common::input_is_of_another_dtype, lengths->shape);
      else if (lengths->kind != Kind::number)
        g.report(G::template index<Attention>, lengths_are_no_number, lengths->shape);
      return g.place(node, *lengths);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    if constexpr (which == does_not_pair)
      static_assert(holds<Where, left, right>,
                    "convoy: an attention needs keys of as many features as its queries, and as many values "
                    "as keys");
    else if constexpr (which == heads_do_not_divide)
      static_assert(holds<Where, left, right>,
                    "convoy: the heads of an attention must be positive and divide its features");
    else if constexpr (which == does_not_pack)
      static_assert(holds<Where, left>,
                    "convoy: queries, keys and values side by side are three times as many features as each");
    else if constexpr (which == dropout_is_wrong)
      static_assert(holds<Where>, "convoy: the dropout of an attention is at least 0 and below 1");
    else
      static_assert(holds<Where, left>, "convoy: the lengths of an attention are one number a row");
    return false;
  }
  static std::string explain(int which, const Name& where, const Shape& left, const Shape& right) {
    switch (which) {
      case does_not_pair:
        return concat(where,
                      " needs keys of as many features as its queries and as many values as keys, not ", left,
                      " and ", right);
      case heads_do_not_divide:
        return concat(where, " has ", right[0], " heads, which do not divide the features of ", left);
      case does_not_pack:
        return concat(where, " needs queries, keys and values side by side, but the features of ", left,
                      " are no multiple of 3");
      case dropout_is_wrong:
        return concat(where, " has a dropout that is not at least 0 and below 1");
      default:
        return concat(where, " needs lengths that are one number a row, not ", left);
    }
  }

  /// Forward takes two products per pair of a query and a key that it may read. Backward takes five, because
  /// it recomputes the probabilities.
  static constexpr Price price(const Graph& g, int n) {
    const Extents e = extents(g, n);
    const auto element = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t out = g.nodes[n].shape.size(), read = elements_read(g, n), kept = saves(g, n).bytes;
    Price price;
    price.macs = std::int64_t{e.heads} * e.queries * e.keys * (e.key_features + e.value_features);
    price.live_macs = e.heads * e.pairs() * (e.key_features + e.value_features);
    price.forward_flops = 2 * price.live_macs;
    price.backward_flops = 2 * e.heads * e.pairs() * (3 * e.key_features + 2 * e.value_features);
    price.forward_bytes = (read + out) * element + kept;
    price.backward_bytes = (2 * read + 2 * out) * element + kept;
    return price;
  }
  /// Besides inputs and output, saves the log-sum-exp of each query's scores instead of the probabilities
  /// (Dao et al., 2022).
  static constexpr Saves saves(const Graph& g, int n) {
    const Node& node = g.nodes[n];
    return {.inputs = (1u << node.inputs) - 1,
            .output = true,
            .bytes = std::int64_t{g.attributes<Attention>(n).heads} * node.shape[0] *
                     static_cast<std::int64_t>(sizeof(float))};
  }
  static constexpr Indices indices(const Graph& g, int n) {
    const Extents e = extents(g, n);
    return {e.lengths, 0, e.keys + 1};
  }
};

}  // namespace convoy::graph
