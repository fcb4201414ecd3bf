// EXPECT: static.assert.*convoy: the heads of an attention must be positive and divide its features
// EXPECT: attention\.0.*\{6, 4[,}].*\{3[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.attention(g.input("x", {6, 12}), {.heads = 3});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 24)));
  }
};
constexpr const auto& plan = plan_of<Net>;
