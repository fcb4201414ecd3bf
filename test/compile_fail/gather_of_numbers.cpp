// EXPECT: static.assert.*convoy: the positions of a gather are a number or a row of numbers
// EXPECT: gather\.0.*\{2, 3[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.gather(g.input("tokens", {9, 4}), g.input("at", {2, 3}, {.dtype = DType::i32}));
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 36)));
  }
};
constexpr const auto& plan = plan_of<Net>;
