// EXPECT: static.assert.*convoy: the groups of a convolution must divide its channels, of input and output
// EXPECT: conv2d\.0.*\{6, 8[,}].*\{4[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.conv2d(g.input("image", {6, 5, 5}), {.channels = 8, .groups = 4});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 200)));
  }
};
constexpr const auto& plan = plan_of<Net>;
