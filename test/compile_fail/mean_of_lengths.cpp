// EXPECT: static.assert.*convoy: the lengths of a mean are one number a row
// EXPECT: mean\.0.*\{9[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.mean(g.input("tokens", {9, 4}), g.input("lengths", {9}, {.dtype = DType::i32}));
    g.loss(g.cross_entropy(x, g.label("label", 4)));
  }
};
constexpr const auto& plan = plan_of<Net>;
