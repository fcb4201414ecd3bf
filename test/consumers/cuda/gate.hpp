// A user's operation with its own kernels, and a model with it. All sources share this one type.
#pragma once

#include <cstddef>

#include <convoy/graph/plan.hpp>

/// y = x w, element by element of each row; w is a parameter.
struct Gate {
  static constexpr convoy::Shape shape(convoy::Shape x, convoy::Shape) { return x; }
  template <class T>
  static void forward(convoy::View<const T> x, convoy::View<const T> w, convoy::View<T> y) {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * w[i % w.size()];
  }
  template <class T>
  static void backward(convoy::View<const T> x, convoy::View<const T> w, convoy::View<const T>,
                       convoy::View<const T> dy, convoy::View<T> dx, convoy::View<T> dw) {
    for (T& slope : dw) slope = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = dy[i] * w[i % w.size()];
      dw[i % w.size()] += dy[i] * x[i];
    }
  }
  // In gate.cu.
  static void forward(CUstream_st* stream, convoy::View<const float> x, convoy::View<const float> w,
                      convoy::View<float> y);
  static void backward(CUstream_st* stream, convoy::View<const float> x, convoy::View<const float> w,
                       convoy::View<const float> y, convoy::View<const float> dy, convoy::View<float> dx,
                       convoy::View<float> dw);
};

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.flatten(g.max_pool(g.input("image", convoy::Image{1, 28, 28}), {.kernel = 4}));
    x = g.custom(Gate{}, g.relu(g.linear(x, {.features = 32})), g.parameter("gate", {32}));
    g.loss(g.cross_entropy(g.linear(x, {.features = 10}), g.label("label", 10)));
  }
};

/// Trains the model on a few digits, and returns the loss of the epoch.
template <class Trainer, class Digits>
double trained(const Digits& digits) {
  Trainer trainer{{.batch = 16}};
  return trainer.fit(digits.train, {.epochs = 1, .log = nullptr}).loss;
}

// In train.cu.
bool has_gpu();
double trained_on_gpu();
