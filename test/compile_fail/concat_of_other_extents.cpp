// EXPECT: static.assert.*convoy: a concatenation joins rows, sequences of as many positions, or images of one
// height and width EXPECT: concat\.0.*\{6, 4[,}].*\{5, 4[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.concat({g.input("six", {6, 4}), g.input("five", {5, 4})});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 48)));
  }
};
constexpr const auto& plan = plan_of<Net>;
