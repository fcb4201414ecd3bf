// EXPECT: static.assert.*convoy: a custom operation or loss takes its values first, .* then its parameters
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Scaled {
  static constexpr Shape shape(Shape, Shape x) { return x; }
};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("features", {5});
    x = g.custom(Scaled{}, g.parameter("factor", {1}), x);
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
