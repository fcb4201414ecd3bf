// EXPECT: static.assert.*convoy: two operations, parameters, statistics, outputs or metrics of the model
// EXPECT: fc\.weight
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto weight = g.parameter("fc.weight", {5, 5});
    auto x = g.linear(g.input("features", {5}), weight, {.name = "tied"});
    x = g.linear(x, {.features = 10, .name = "fc"});
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
