// EXPECT: static.assert.*convoy: the weight of a loss must be positive and finite
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) { g.loss(g.input("number", {}), {.weight = -1}); }
};
constexpr const auto& plan = plan_of<Net>;
