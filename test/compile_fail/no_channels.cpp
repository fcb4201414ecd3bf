// EXPECT: static.assert.*convoy: shapes, channels, features, classes, kernel, stride and fans must be
// EXPECT: stem.*\{0, 3, 1\}
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.conv2d(g.input("image", {3, 4, 4}), {.name = "stem"});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
