// EXPECT: static.assert.*convoy: scopes nest at most 15 deep
// EXPECT: 0\.1\.2\.3\.4\.5\.6\.7\.8\.9\.10\.11\.12\.13\.14\.15
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = nest(g, g.input("features", {5}), 0);
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  }
  static constexpr auto nest(auto& g, auto x, int depth) {
    if (depth == 16) return g.relu(x);
    auto in_level = g.scope(depth);
    return nest(g, x, depth + 1);
  }
};
constexpr const auto& plan = plan_of<Net>;
