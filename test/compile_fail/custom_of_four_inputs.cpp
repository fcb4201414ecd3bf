// EXPECT: static.assert.*convoy: a custom operation or loss takes 1 to 3 inputs
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Sum {
  static constexpr Shape shape(Shape x, Shape, Shape, Shape) { return x; }
};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("features", {5});
    g.loss(g.cross_entropy(g.custom(Sum{}, x, x, x, x), g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
