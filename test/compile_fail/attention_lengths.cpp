// EXPECT: static.assert.*convoy: the lengths of an attention are one number a row
// EXPECT: attention\.0.*\{6[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.attention(g.input("x", {6, 12}), g.input("lengths", {6}, {.dtype = DType::i32}), {.heads = 2});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 24)));
  }
};
constexpr const auto& plan = plan_of<Net>;
