// EXPECT: static.assert.*convoy: a sequence has more positions than the position embedding
// EXPECT: position_embedding\.0.*\{9, 4[,}].*\{7[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.position_embedding(g.input("tokens", {9, 4}), {.positions = 7});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 36)));
  }
};
constexpr const auto& plan = plan_of<Net>;
