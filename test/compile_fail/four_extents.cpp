// EXPECT: static.assert.*convoy: a value has at most three extents
// EXPECT: frames.*\{8, 3, 4, 4\}
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.flatten(g.input("frames", {8, 3, 4, 4}));
    g.loss(g.cross_entropy(g.linear(x, {.features = 10}), g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
