// EXPECT: static.assert.*convoy: this operation needs two inputs of one shape
// EXPECT: layer1\.shortcut.*\{3, 8, 8\}.*\{4, 4, 4\}
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("image", {3, 8, 8});
    auto in_layer = g.scope("layer1");
    auto y = g.conv2d(x, {.channels = 4, .stride = 2, .name = "conv1"});
    x = g.add(x, y, {.name = "shortcut"});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 192)));
  }
};
constexpr const auto& plan = plan_of<Net>;
