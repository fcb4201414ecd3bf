// EXPECT: static.assert.*convoy: a metric.s function for a device is static void measure\(cudaStream_t
#include <convoy/graph/plan.hpp>

using namespace convoy;

struct Norm {
  static double measure(View<const float> x) { return static_cast<double>(x[0]); }
  static void measure(CUstream_st*, View<const float>, View<const i32>, View<float>) {}
};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("features", {5});
    g.metric("norm", Norm{}, x);
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  }
};
constexpr const auto& plan = plan_of<Net>;
