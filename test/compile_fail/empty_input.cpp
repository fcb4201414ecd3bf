// EXPECT: static.assert.*convoy: shapes, channels, features, classes, kernel, stride and fans must be
// EXPECT: image.*\{3, 0, 4\}
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.flatten(g.input("image", {3, 0, 4})), {.features = 10});
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
