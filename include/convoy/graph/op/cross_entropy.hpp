// Softmax cross-entropy.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <convoy/graph/op/label.hpp>
#include <convoy/graph/price.hpp>
#include <convoy/graph/tracer.hpp>

namespace convoy::graph {

struct CrossEntropyOptions {
  float smoothing = 0;  ///< in [0, 1): the part of each label that is spread evenly over all classes
  std::string_view name = {};
};

struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  enum Fault : int { classes_differ, smoothing_is_wrong };
  struct Attributes {
    int classes = 0;
    float smoothing = 0;
  };

  template <class G>
  struct Verb {
    /// -log softmax(logits)[label], smoothed as in torch.nn.functional.cross_entropy. One number per row; for
    /// a sequence, the sum over its positions. An ignored label adds nothing.
    constexpr Tensor cross_entropy(Tensor logits, Label label, CrossEntropyOptions o = {}) {
      auto& g = static_cast<G&>(*this);
      Node node = g.begin(G::template index<CrossEntropy>, o.name);
      g.attributes(node, Attributes{label.classes, o.smoothing});
      if (g.features(logits)) {
        const bool each = logits.kind == Kind::sequence;
        if (logits.shape.last() != label.classes)
          g.report(G::template index<CrossEntropy>, classes_differ, logits.shape, {label.classes});
        else if (!(label.shape == (each ? Shape{logits.shape[0]} : Shape{})))
          g.report(Common::shapes_differ, logits.shape, label.shape);
      }
      if (!(o.smoothing >= 0 && o.smoothing < 1))
        g.report(G::template index<CrossEntropy>, smoothing_is_wrong, logits.shape);
      return g.place(node, logits, label);
    }
  };

  template <int which, class Where, Shape left, Shape right>
  static consteval bool refuse() {
    if constexpr (which == classes_differ)
      static_assert(holds<Where, left, right>,
                    "convoy: the label has another number of classes than the logits");
    else
      static_assert(holds<Where, left>, "convoy: the smoothing of labels is at least 0 and below 1");
    return false;
  }
  static std::string explain(int which, const Name& where, const Shape& left, const Shape& right) {
    if (which == smoothing_is_wrong)
      return concat(where, " smooths labels by what is not at least 0 and below 1");
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
  /// The number of labels over which the loss is averaged: those that are not ignored. -1 if this depends on
  /// their values and `labels` is null.
  static constexpr std::int64_t counted(const Graph& g, int n, const i32* labels, int rows) {
    const int ignored = g.attributes<LabelInput>(g.input(n, 1)).ignore;
    const std::int64_t all = rows * g.shape_of_input(n, 1).size();
    if (ignored == no_label) return all;
    if (labels == nullptr) return -1;
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < all; ++i) count += labels[i] != ignored;
    return count;
  }
};

}  // namespace convoy::graph
