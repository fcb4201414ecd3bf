// EXPECT: static.assert.*convoy: a concatenation needs at least one value
// EXPECT: concat\.0
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    g.concat({});
    g.loss(g.cross_entropy(g.input("features", {5}), g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
