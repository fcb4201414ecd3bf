// EXPECT: static.assert.*convoy: this operation needs an input of another element type
// EXPECT: embedding\.0.*\{7[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.embedding(g.input("ids", {7}), {.entries = 9, .features = 4});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 28)));
  }
};
constexpr const auto& plan = plan_of<Net>;
