// EXPECT: static.assert.*convoy: exec::Cuda computes a custom operation or loss by its functions for a device
// EXPECT: tail\.custom\.0
// EMULATES
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/optim/device.cuh>
#include <convoy/train/trainer.hpp>

using namespace convoy;

struct Double {
  static constexpr Shape shape(Shape x) { return x; }
  template <class T>
  static void forward(View<const T> x, View<T> y) {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = 2 * x[i];
  }
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T> dy, View<T> dx) {
    for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = 2 * dy[i];
  }
};
/// The same with functions for a device, so that no error names it.
struct Twice : Double {
  using Double::backward;
  using Double::forward;
  static void forward(cudaStream_t stream, View<const float> x, View<float> y);
  static void backward(cudaStream_t stream, View<const float> x, View<const float> y, View<const float> dy,
                       View<float> dx);
};
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.custom(Twice{}, g.flatten(g.input("image", Image{1, 28, 28})));
    auto tail = g.scope("tail");
    x = g.linear(g.custom(Double{}, x), {.features = 10});
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};

int main() {
  const auto digits = data::digits();
  Trainer<Net, optim::Adam, comm::None, exec::Cuda<f32>> trainer{{.batch = 128, .optimizer = {.lr = 1e-3f}}};
  trainer.fit(digits.train, {.epochs = 4, .validate = &digits.test});
}
