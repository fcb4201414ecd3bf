// EXPECT: static.assert.*convoy: this operation is given a Tensor, a Label or a Handle that was never
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    graph::Tensor x;
    for (int layers = 0; layers > 0; --layers) x = g.input("features", {5});
    g.loss(g.relu(x));
  }
};
constexpr const auto& plan = plan_of<Net>;
