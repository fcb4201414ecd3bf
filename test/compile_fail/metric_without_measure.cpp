// EXPECT: static.assert.*convoy: a metric needs static double measure\(View<const float> x
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Accuracy {};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("features", {5});
    auto label = g.label("label", 5);
    g.metric("accuracy", Accuracy{}, x, label);
    g.loss(g.cross_entropy(x, label));
  }
};
constexpr const auto& plan = plan_of<Net>;
