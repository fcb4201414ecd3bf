// EXPECT: static.assert.*convoy: the sequence has no such position to select
// EXPECT: select\.0.*\{9, 4[,}].*\{9[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.select(g.input("tokens", {9, 4}), 9);
    g.loss(g.cross_entropy(x, g.label("label", 4)));
  }
};
constexpr const auto& plan = plan_of<Net>;
