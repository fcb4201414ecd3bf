// EXPECT: static.assert.*convoy: two operations, parameters, statistics, outputs or metrics of the model
// EXPECT: layer1\.fc
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("features", {5});
    auto in_layer = g.scope("layer1");
    x = g.linear(x, {.features = 5, .name = "fc"});
    x = g.linear(x, {.features = 10, .name = "fc"});
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
