// EXPECT: static.assert.*convoy: a custom operation or loss takes at least one input
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Nothing {};
struct Net {
  static constexpr void define(auto& g) {
    g.output("features", g.input("features", {5}));
    g.loss(g.custom_loss(Nothing{}));
  }
};
constexpr const auto& plan = plan_of<Net>;
