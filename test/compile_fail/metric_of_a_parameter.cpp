// EXPECT: static.assert.*convoy: a metric takes its values first, .* and no parameters
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Norm {
  static double measure(View<const float> x, View<const float>) { return static_cast<double>(x[0]); }
};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("features", {5});
    auto weight = g.parameter("weight", {5, 5});
    x = g.linear(x, weight);
    g.metric("norm", Norm{}, x, weight);
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
