// EXPECT: static.assert.*convoy: a name must not be empty or end with a dot
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.input("features", {5}), {.features = 10});
    g.output("", x);
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
