// EXPECT: static.assert.*convoy: this operation needs a sequence of .positions, features.
// EXPECT: attention\.0.*\{12[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.attention(g.input("row", {12}), {.heads = 2});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 24)));
  }
};
constexpr const auto& plan = plan_of<Net>;
