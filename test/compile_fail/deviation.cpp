// EXPECT: static.assert.*convoy: the standard deviation of a parameter is at least 0 and finite
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    const auto x = g.linear(g.input("row", Shape{4}), {.features = 2, .deviation = -0.02f});
    g.loss(g.cross_entropy(x, g.label("label", 2)));
  }
};
constexpr const auto& plan = plan_of<Net>;
