// EXPECT: static.assert.*convoy: a custom operation or loss needs static void forward.* for T of float and of
// EXPECT: for T of float and of double
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Double {
  static constexpr Shape shape(Shape x) { return x; }
  static void forward(View<const float> x, View<float> y) {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = 2 * x[i];
  }
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T> dy, View<T> dx) {
    for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = 2 * dy[i];
  }
};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.custom(Double{}, g.input("features", {5}));
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
