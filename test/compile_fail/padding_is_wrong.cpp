// EXPECT: static.assert.*convoy: a padding is not negative, and in a pooling at most half the kernel
// EXPECT: max_pool\.0.*\{3, 3[,}].*\{2[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.max_pool(g.input("image", {3, 4, 4}), {.kernel = 3, .padding = 2});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
