// EXPECT: static.assert.*convoy: the dropout of an attention is at least 0 and below 1
// EXPECT: attention\.0
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.attention(g.input("x", {6, 12}), {.heads = 2, .dropout = 1});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 24)));
  }
};
constexpr const auto& plan = plan_of<Net>;
