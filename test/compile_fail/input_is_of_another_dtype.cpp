// EXPECT: static.assert.*convoy: this operation needs an input of another element type
// EXPECT: rectified.*\{7[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.relu(g.input("tokens", {7}, {.dtype = DType::i32}), {.name = "rectified"});
    g.loss(g.cross_entropy(x, g.label("label", 7)));
  }
};
constexpr const auto& plan = plan_of<Net>;
