// EXPECT: static.assert.*convoy: the epsilon of a norm is at least 0, and the momentum of a batch norm from
// EXPECT: norm.*\{5[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    const auto x = g.layer_norm(g.input("features", {5}), {.epsilon = -1e-5f, .name = "norm"});
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
