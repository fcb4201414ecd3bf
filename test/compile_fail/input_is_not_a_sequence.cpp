// EXPECT: static.assert.*convoy: this operation needs a sequence of .positions, features.
// EXPECT: position_embedding\.0.*\{9[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.position_embedding(g.input("tokens", {9}), {.positions = 9});
    g.loss(g.cross_entropy(x, g.label("label", 9)));
  }
};
constexpr const auto& plan = plan_of<Net>;
