// EXPECT: static.assert.*convoy: an attention needs keys of as many features as its queries
// EXPECT: attention\.0.*\{6, 4[,}].*\{5, 8[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto memory = g.input("memory", {5, 8});
    auto x = g.attention(g.input("x", {6, 4}), memory, memory, {.heads = 2});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 24)));
  }
};
constexpr const auto& plan = plan_of<Net>;
