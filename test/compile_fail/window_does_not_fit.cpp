// EXPECT: static.assert.*convoy: the kernel of this operation is larger than its padded input
// EXPECT: conv2d\.1.*\{6, 5[,}].*\{7, 7[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.conv2d(g.input("image", {3, 4, 3}), {.channels = 4});
    x = g.conv2d(x, {.channels = 4, .kernel = 7, .padding = 1});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 4)));
  }
};
constexpr const auto& plan = plan_of<Net>;
