// EXPECT: static.assert.*convoy: the ids of an embedding are a number or a row of numbers
// EXPECT: embedding\.0.*\{1, 4, 4[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.embedding(g.input("ids", {1, 4, 4}, {.dtype = DType::i32}), {.entries = 9, .features = 4});
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 16)));
  }
};
constexpr const auto& plan = plan_of<Net>;
