// EXPECT: static.assert.*convoy: a custom operation or loss has both functions for a device or neither
// EXPECT: with View<const i32> and no dx for a label
#include <convoy/graph/plan.hpp>

using namespace convoy;

/// Its functions for a device take the label as floats, and compute a gradient of it.
struct Distance {
  template <class T>
  static void forward(View<const T> x, View<const i32> label, View<T> y) {
    for (std::size_t r = 0; r < y.size(); ++r) y[r] = x[r] - static_cast<T>(label[r]);
  }
  template <class T>
  static void backward(View<const T>, View<const i32>, View<const T>, View<const T> dy, View<T> dx) {
    for (std::size_t r = 0; r < dy.size(); ++r) dx[r] = dy[r];
  }
  static void forward(CUstream_st* stream, View<const float> x, View<const float> label, View<float> y);
  static void backward(CUstream_st* stream, View<const float> x, View<const float> label, View<const float> y,
                       View<const float> dy, View<float> dx, View<float> dlabel);
};
struct Net {
  static constexpr void define(auto& g) {
    g.loss(g.custom_loss(Distance{}, g.input("features", {1}), g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
