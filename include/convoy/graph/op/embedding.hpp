// Embeddings: a learned vector for each id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct EmbeddingOptions {
  int entries = 0;   ///< ids are in [0, entries)
  int features = 0;  ///< of each vector
  bool frozen = false;
  float deviation = 1;  ///< standard deviation of the normal initialization
  std::string_view name = {};
};

struct Embedding {
  static constexpr std::string_view name = "embedding";
  static constexpr bool looks_up = true;
  enum Fault : int { ids_are_no_row };

  template <class G>
  struct Verb {
    /// The row of a weight [entries, features] for each id of an i32 input. A number yields a row, a row of
    /// ids a sequence.
    constexpr Tensor embedding(Tensor ids, EmbeddingOptions o) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Embedding>, o.name);
      if (!accepts(g, ids) || !g.positive({o.entries, o.features})) return g.abandon(node, stand_in(ids));
      g.own(node, "weight", {o.entries, o.features},
            {.init = Init::normal, .group = decayed(o.frozen), .deviation = o.deviation});
      return finish(g, node, ids, o.features);
    }

    /// The same with an existing weight [entries, features], for example one tied to a decoder.
    constexpr Tensor embedding(Tensor ids, Handle weight, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<Embedding>, o.name);
      if (!accepts(g, ids)) return g.abandon(node, stand_in(ids));
      if (weight.shape.rank != 2) {
        g.report(Common::parameter_does_not_fit, weight.shape, {weight.shape[0], weight.shape.last()});
        return g.abandon(node, stand_in(ids));
      }
      g.use(node, weight);
      return finish(g, node, ids, weight.shape.last());
    }

   private:
    static constexpr bool accepts(G& g, Tensor ids) {
      if (ids.dtype != DType::i32) return g.report(Common::input_is_of_another_dtype, ids.shape), false;
      if (ids.shape.rank > 1) return g.report(G::template index<Embedding>, ids_are_no_row, ids.shape), false;
      return true;
    }
    // A placeholder for the value after a fault.
    static constexpr Tensor stand_in(Tensor ids) {
      ids.dtype = DType::f32;
      return ids;
    }
    static constexpr Tensor finish(G& g, Node& node, Tensor ids, int features) {
      node.shape = ids.shape.rank == 0 ? Shape{features} : Shape{ids.shape[0], features};
      node.kind = ids.shape.rank == 0 ? Kind::row : Kind::sequence;
      return g.place(node, ids);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left>, "convoy: the ids of an embedding are a number or a row of numbers");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape& left, const Shape&) {
    return concat(where, " needs ids that are a number or a row of numbers, not ", left);
  }
  /// Forward moves only the selected vectors; backward also writes the whole gradient of the weight.
  static constexpr Price price(const Graph& g, int n) {
    const auto element = static_cast<std::int64_t>(sizeof(float));
    const std::int64_t out = g.nodes[n].shape.size(), ids = elements_read(g, n);
    Price price;
    price.backward_flops = out;
    price.forward_bytes = (ids + 2 * out) * element;
    price.backward_bytes_once = g.parameters[g.parameter(n, 0)].shape.size() * element;
    price.backward_bytes = (ids + 3 * out) * element + price.backward_bytes_once;
    return price;
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 1}; }
  static constexpr Indices indices(const Graph& g, int n) {
    return {0, 0, g.parameters[g.parameter(n, 0)].shape[0]};
  }
};

}  // namespace convoy::graph
