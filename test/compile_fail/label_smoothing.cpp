// EXPECT: static.assert.*convoy: the smoothing of labels is at least 0 and below 1
// EXPECT: loss.*\{6[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("features", {6});
    g.loss(g.cross_entropy(x, g.label("label", 6), {.smoothing = 1, .name = "loss"}));
  }
};
constexpr const auto& plan = plan_of<Net>;
