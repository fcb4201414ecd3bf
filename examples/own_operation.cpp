// An operation, a loss and a metric of your own: types with functions over a whole batch.
// docs/own_operation.md explains it.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iostream>

#include "common/arguments.hpp"
#include "common/printed.hpp"
#include <convoy/convoy.hpp>

using namespace convoy;

/// Swish (Ramachandran, Zoph and Le, 2017), x * sigmoid(beta * x), whose beta is a parameter of the model.
struct Swish {
  static constexpr Shape shape(Shape x, Shape) { return x; }
  template <class T>
  static void forward(View<const T> x, View<const T> beta, View<T> y) {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / (1 + std::exp(-beta[0] * x[i]));
  }
  template <class T>
  static void backward(View<const T> x, View<const T> beta, View<const T>, View<const T> dy, View<T> dx,
                       View<T> dbeta) {
    dbeta[0] = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T s = 1 / (1 + std::exp(-beta[0] * x[i])), slope = x[i] * s * (1 - s);
      dx[i] = dy[i] * (s + beta[0] * slope);
      dbeta[0] += dy[i] * x[i] * slope;
    }
  }
};

/// The multiclass hinge loss (Weston and Watkins, 1999): the sum of max(0, 1 + logit - right logit) over
/// wrong classes.
struct Hinge {
  template <class T>
  static void forward(View<const T> x, View<const i32> label, View<T> y) {
    for (int r = 0; r < x.rows; ++r) {
      const auto logits = x.row(r);
      const auto row = static_cast<std::size_t>(r), right = static_cast<std::size_t>(label[row]);
      T sum = -1;  // the right class itself
      for (const T logit : logits) sum += std::max(T(0), 1 + logit - logits[right]);
      y[row] = sum;
    }
  }
  template <class T>
  static void backward(View<const T> x, View<const i32> label, View<const T>, View<const T> dy, View<T> dx) {
    for (int r = 0; r < x.rows; ++r) {
      const auto logits = x.row(r);
      const auto out = dx.row(r);
      const auto row = static_cast<std::size_t>(r), right = static_cast<std::size_t>(label[row]);
      T sum = 0;
      for (std::size_t c = 0; c < out.size(); ++c) {
        out[c] = c != right && 1 + logits[c] > logits[right] ? dy[row] : T(0);
        sum += out[c];
      }
      out[right] = -sum;
    }
  }
};

/// The number of rows whose label is among the three largest logits.
struct TopThree {
  static double measure(View<const float> x, View<const i32> label) {
    double rows = 0;
    for (int r = 0; r < x.rows; ++r) {
      const auto logits = x.row(r);
      const float right = logits[static_cast<std::size_t>(label[static_cast<std::size_t>(r)])];
      rows += std::count_if(logits.begin(), logits.end(), [&](float v) { return v > right; }) < 3 ? 1 : 0;
    }
    return rows;
  }
};

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.flatten(g.input("image", Image{1, 28, 28}));
    x = g.linear(x, {.features = 64});
    const auto beta = g.parameter("swish.beta", {1}, {.init = graph::Init::ones});
    x = g.linear(g.custom(Swish{}, x, beta), {.features = 10});
    g.output("logits", x);
    const auto label = g.label("label", 10);
    g.loss(g.custom_loss(Hinge{}, x, label));
    g.metric("top3", TopThree{}, x, label);
  }
};

int main(int argc, char** argv) try {
  examples::expect_no_arguments(argc, argv);
  const auto digits = data::digits();
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Trainer<Net, optim::Adam, comm::Ring<transport::Threads>> trainer{{.batch = 32}, endpoint};
    const auto report = trainer.fit(digits.train, {.epochs = 5, .validate = &digits.test, .log = nullptr});
    const auto& test = report.epochs.back().test;
    if (trainer.rank() == 0)
      std::cout << "beta: " << trainer.parameters()["swish.beta"].values()[0]
                << "\namong the first three: " << test.metric("top3") << "\ntest loss: " << test.loss << '\n';
  });
  examples::expect_printed();
} catch (const std::exception& error) {
  std::cerr << "own_operation: " << error.what() << '\n';
  return 1;
}
