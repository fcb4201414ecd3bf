// EXPECT: static.assert.*convoy: this operation needs a row or a sequence of features, so flatten the image
// first EXPECT: fc.*\{3, 4, 4\}
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.input("image", {3, 4, 4}), {.features = 10, .name = "fc"});
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
