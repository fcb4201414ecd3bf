// Position embeddings: a learned vector for each position of a sequence (Gehring et al., 2017, as in BERT and
// GPT).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct PositionEmbeddingOptions {
  int positions = 0;  ///< in the weight; 0: as many as the sequence has
  bool frozen = false;
  float deviation = 1;  ///< standard deviation of the normal initialization
  std::string_view name = {};
};

struct PositionEmbedding {
  static constexpr std::string_view name = "position_embedding";
  static constexpr bool looks_up = true;
  enum Fault : int { sequence_is_too_long };

  template <class G>
  struct Verb {
    /// y[p] = x[p] + weight[p] for each position of a sequence. The weight is [positions, features]; the
    /// sequence may have fewer positions.
    constexpr Tensor position_embedding(Tensor x, PositionEmbeddingOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<PositionEmbedding>, o.name);
      if (!g.is_sequence(x)) return g.abandon(node, x);
      if (o.positions == 0) o.positions = x.shape[0];
      if (!g.positive({o.positions}) || !reaches(g, x, o.positions)) return g.abandon(node, x);
      g.own(node, "weight", {o.positions, x.shape[1]},
            {.init = Init::normal, .group = decayed(o.frozen), .deviation = o.deviation});
      return finish(g, node, x);
    }

    /// The same with an existing weight [positions, features].
    constexpr Tensor position_embedding(Tensor x, Handle weight, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<PositionEmbedding>, o.name);
      if (!g.is_sequence(x)) return g.abandon(node, x);
      const Shape needed{weight.shape[0], x.shape[1]};
      if (!(weight.shape == needed))
        return g.report(Common::parameter_does_not_fit, weight.shape, needed), g.abandon(node, x);
      if (!reaches(g, x, weight.shape[0])) return g.abandon(node, x);
      g.use(node, weight);
      return finish(g, node, x);
    }

   private:
    static constexpr bool reaches(G& g, Tensor x, int positions) {
      if (x.shape[0] <= positions) return true;
      g.report(G::template index<PositionEmbedding>, sequence_is_too_long, x.shape, {positions});
      return false;
    }
    static constexpr Tensor finish(G& g, Node& node, Tensor x) {
      node.shape = x.shape;
      node.kind = x.kind;
      return g.place(node, x);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left, right>,
                  "convoy: a sequence has more positions than the position embedding that is added to it");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape& left, const Shape& right) {
    return concat(where, " has vectors for ", right[0], " positions, not for those of ", left);
  }
  /// Backward writes the whole gradient of the weight.
  static constexpr Price price(const Graph& g, int n) {
    const auto element = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t out = g.nodes[n].shape.size();
    Price price;
    price.forward_flops = out;
    price.backward_flops = out;
    price.forward_bytes = 3 * out * element;
    price.backward_bytes_once = g.parameters[g.parameter(n, 0)].shape.size() * element;
    price.backward_bytes = (3 * out) * element + price.backward_bytes_once;
    return price;
  }
  static constexpr Saves saves(const Graph&, int) { return {}; }
};

}  // namespace convoy::graph
