// Softmax cross-entropy.
#pragma once

#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  enum Fault : int { classes_differ };
  struct Attributes {
    int classes = 0;
  };

  template <class G>
  struct Verb {
    /// -log softmax(logits)[label]. One number a row; over a sequence, the sum over its positions.
    constexpr Tensor cross_entropy(Tensor logits, Label label, NameOption o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<CrossEntropy>, o.name);
      g.attributes(node, Attributes{label.classes});
      if (g.features(logits)) {
        const bool each = logits.kind == Kind::sequence;
        if (logits.shape.last() != label.classes)
          g.report(G::template index<CrossEntropy>, classes_differ, logits.shape, {label.classes});
        else if (!(label.shape == (each ? Shape{logits.shape[0]} : Shape{})))
          g.report(Common::shapes_differ, logits.shape, label.shape);
      }
      return g.place(node, logits, label);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    static_assert(holds<Where, left, right>,
                  "convoy: the label has another number of classes than the logits");
    return false;
  }
  static std::string explain(int, const Name& where, const Shape& left, const Shape& right) {
    return concat(where, " compares logits of ", left, " with a label of ", right, " classes");
  }
  static constexpr Price price(const Graph& g, int n) {
    Price price = priced_bytes(g, n);
    const std::int64_t read = elements_read(g, n);
    price.forward_flops = 4 * read;
    price.backward_flops = 2 * read;
    return price;
  }
  static constexpr Saves saves(const Graph&, int) { return {.inputs = 3, .bytes = sizeof(float)}; }
  /// What the mean of the loss is over: labels, one a row or one a position.
  static constexpr std::int64_t counted(const Graph& g, int n, const i32*, int rows) {
    return rows * g.shape_of_input(n, 1).size();
  }
};

}  // namespace convoy::graph
