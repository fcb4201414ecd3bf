// EXPECT: static.assert.*convoy: the model declares no loss, so nothing can be trained: call g\.loss
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    g.output("logits", g.linear(g.input("features", {5}), {.features = 10}));
  }
};
constexpr const auto& plan = plan_of<Net>;
