// EXPECT: static.assert.*convoy: the probability of a dropout is at least 0 and below 1
// EXPECT: dropout\.0.*\{6[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.dropout(g.input("features", {6}), {.p = 1});
    g.loss(g.cross_entropy(x, g.label("label", 6)));
  }
};
constexpr const auto& plan = plan_of<Net>;
