// EXPECT: static.assert.*convoy: the label has another number of classes than the logits
// EXPECT: loss.*\{10[,}].*\{12[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.input("features", {5}), {.features = 10});
    g.loss(g.cross_entropy(x, g.label("label", 12), {.name = "loss"}));
  }
};
constexpr const auto& plan = plan_of<Net>;
