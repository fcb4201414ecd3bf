// EXPECT: static.assert.*convoy: a loss must be one number a row
// EXPECT: loss.*\{10[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) { g.loss(g.linear(g.input("features", {5}), {.features = 10})); }
};
constexpr const auto& plan = plan_of<Net>;
