// EXPECT: static.assert.*convoy: a name within its scopes must be of at most 63 characters
// EXPECT: a_scope_of_thirty_characters_x
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto outer = g.scope("a_scope_of_thirty_characters_x");
    auto inner = g.scope("another_scope_of_many_characters");
    auto x = g.linear(g.input("features", {5}), {.features = 10});
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};
constexpr const auto& plan = plan_of<Net>;
