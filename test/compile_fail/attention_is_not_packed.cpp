// EXPECT: static.assert.*convoy: queries, keys and values side by side are three times as many features as
// each EXPECT: attention\.0.*\{6, 13[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.attention(g.input("x", {6, 13}), {.heads = 1});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 24)));
  }
};
constexpr const auto& plan = plan_of<Net>;
