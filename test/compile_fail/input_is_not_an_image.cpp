// EXPECT: static.assert.*convoy: this operation needs an input of \[channels, height, width\]
// EXPECT: batch_norm\.0.*\{48[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.batch_norm(g.flatten(g.input("image", {3, 4, 4})));
    g.loss(g.cross_entropy(x, g.label("label", 48)));
  }
};
constexpr const auto& plan = plan_of<Net>;
