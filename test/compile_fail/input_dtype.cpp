// EXPECT: static.assert.*convoy: an input is f32, u8 or i32
// EXPECT: features.*\{5[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.input("features", {5}, {.dtype = DType::f64}), {.features = 10});
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
