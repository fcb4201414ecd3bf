// EXPECT: static.assert.*convoy: a custom operation or loss takes its values first, then its label, if any,
// EXPECT: if any, as the last input, then its
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Hinge {};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("features", {5});
    g.loss(g.custom_loss(Hinge{}, g.label("label", 5), x));
  }
};
constexpr const auto& plan = plan_of<Net>;
