// EXPECT: static.assert.*convoy: this operation needs an input of another element type
// EXPECT: custom\.0.*\{5[,}]
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Same {
  static constexpr Shape shape(Shape x) { return x; }
  template <class T>
  static void forward(View<const T>, View<T>) {}
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T>, View<T>) {}
};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.custom(Same{}, g.input("tokens", {5}, {.dtype = DType::i32}));
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
