// EXPECT: static.assert.*convoy: this operation needs two inputs of one shape
// EXPECT: loss.*\{6, 10[,}].*\{4[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.input("tokens", {6, 5}), {.features = 10});
    g.loss(g.cross_entropy(x, g.label("label", 10, {.positions = 4}), {.name = "loss"}));
  }
};
constexpr const auto& plan = plan_of<Net>;
