// EXPECT: static.assert.*convoy: the kernel of this operation is larger than its padded input
// EXPECT: max_pool\.0.*\{2, 2[,}].*\{3, 3[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.max_pool(g.input("image", {3, 2, 2}), {.kernel = 3});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 3)));
  }
};
constexpr const auto& plan = plan_of<Net>;
