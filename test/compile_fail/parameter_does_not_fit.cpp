// EXPECT: static.assert.*convoy: the parameter given to this operation has another shape than the one it
// needs EXPECT: decoder.*\{10, 4[,}].*\{10, 5[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto weight = g.parameter("table", {10, 4});
    auto x = g.linear(g.input("features", {5}), weight, {.name = "decoder"});
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
