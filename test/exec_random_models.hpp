// Custom operations, and random models of images that use them. The same seed gives the same model.
//
//     exec_compare::Model model{seed};
//     CHECK(exec_compare::difference<exec::Host<f32>>(model.plan(), {.seed = seed}) == "");
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <convoy/core/philox.hpp>
#include <convoy/graph/dynamic.hpp>

namespace exec_compare {

using namespace convoy;

// ---- custom operations, losses and metrics

/// y = x * sigmoid(x), a custom operation of one input.
struct Swish {
  static constexpr Shape shape(Shape x) { return x; }
  template <class T>
  static void forward(View<const T> x, View<T> y) {
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] / (T(1) + std::exp(-x[i]));
  }
  template <class T>
  static void backward(View<const T> x, View<const T> y, View<const T> dy, View<T> dx) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const T s = T(1) / (T(1) + std::exp(-x[i]));
      dx[i] = dy[i] * (s + y[i] * (T(1) - s));
    }
  }
};

/// z = a * b, a custom operation of two inputs.
struct Product {
  static constexpr Shape shape(Shape a, Shape) { return a; }
  template <class T>
  static void forward(View<const T> a, View<const T> b, View<T> z) {
    for (std::size_t i = 0; i < a.size(); ++i) z[i] = a[i] * b[i];
  }
  template <class T>
  static void backward(View<const T> a, View<const T> b, View<const T>, View<const T> dz, View<T> da,
                       View<T> db) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      da[i] = dz[i] * b[i];
      db[i] = dz[i] * a[i];
    }
  }
};

/// y = x, a custom operation that throws when told to.
struct Faulty {
  static inline bool throws = false;
  static constexpr Shape shape(Shape x) { return x; }
  template <class T>
  static void forward(View<const T> x, View<T> y) {
    if (throws) fail<Error>("faulty");
    std::copy(x.begin(), x.end(), y.begin());
  }
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T> dy, View<T> dx) {
    std::copy(dy.begin(), dy.end(), dx.begin());
  }
};

/// Half the mean of squares of a row: a custom loss without a label.
struct Energy {
  template <class T>
  static void forward(View<const T> x, View<T> y) {
    for (int r = 0; r < x.rows; ++r) {
      T sum = 0;
      for (const T value : x.row(r)) sum += value * value;
      y[static_cast<std::size_t>(r)] = sum / (T(2) * static_cast<T>(x.shape.size()));
    }
  }
  template <class T>
  static void backward(View<const T> x, View<const T>, View<const T> dy, View<T> dx) {
    const auto n = static_cast<std::size_t>(x.shape.size());
    for (std::size_t i = 0; i < x.size(); ++i) dx[i] = dy[i / n] * x[i] / static_cast<T>(n);
  }
};

/// Multi-class hinge, sum over k != label of max(0, 1 + x[k] - x[label]) squared: a custom loss with a label.
struct SquaredHinge {
  template <class T>
  static void forward(View<const T> x, View<const i32> label, View<T> y) {
    for (int r = 0; r < x.rows; ++r) {
      const auto row = x.row(r);
      const auto right = static_cast<std::size_t>(label[static_cast<std::size_t>(r)]);
      T sum = 0;
      for (std::size_t k = 0; k < row.size(); ++k)
        if (const T margin = T(1) + row[k] - row[right]; k != right && margin > 0) sum += margin * margin;
      y[static_cast<std::size_t>(r)] = sum;
    }
  }
  template <class T>
  static void backward(View<const T> x, View<const i32> label, View<const T>, View<const T> dy, View<T> dx) {
    std::fill(dx.begin(), dx.end(), T(0));
    for (int r = 0; r < x.rows; ++r) {
      const auto row = x.row(r), to = View<const T>(dx).row(r);
      T* out = dx.row(r).data();
      const auto right = static_cast<std::size_t>(label[static_cast<std::size_t>(r)]);
      for (std::size_t k = 0; k < to.size(); ++k) {
        const T margin = T(1) + row[k] - row[right];
        if (k == right || margin <= 0) continue;
        const T slope = T(2) * margin * dy[static_cast<std::size_t>(r)];
        out[k] += slope;
        out[right] -= slope;
      }
    }
  }
};

/// The distance of each row's mean from its label, summed over the rows: a metric.
struct Distance {
  static double measure(View<const float> x, View<const i32> label) {
    double sum = 0;
    for (int r = 0; r < x.rows; ++r) {
      double mean = 0;
      for (const float value : x.row(r))
        mean += static_cast<double>(value) / static_cast<double>(x.shape.size());
      sum += std::abs(mean - label[static_cast<std::size_t>(r)]);
    }
    return sum;
  }
};

/// The mean absolute value of each row, summed over the rows: a metric.
struct Magnitude {
  static double measure(View<const float> x) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += std::abs(static_cast<double>(x[i]));
    return sum / static_cast<double>(x.shape.size());
  }
};

/// The custom operations and losses of the models. An Exec that needs more (device functions) derives its own
/// and passes them in place of these.
struct Customs {
  using Swish = exec_compare::Swish;
  using Product = exec_compare::Product;
  using Energy = exec_compare::Energy;
  using SquaredHinge = exec_compare::SquaredHinge;
};

// ---- random models

struct ModelOptions {
  bool frozen = true;   ///< some parameters frozen
  int largest_map = 9;  ///< of the input
  int operations = 6;
};

/// A random model of convolutions, norms, poolings, additions, residual blocks and custom operations, with
/// one to three losses, values with several consumers and extra outputs. The same seed gives the same model.
template <class Custom = Customs>
class ModelOf {
 public:
  explicit ModelOf(std::uint64_t seed, const ModelOptions& options = {})
      : plan_(
            [&](auto& g) {
              define(g, Philox{seed, 77}, options);
            },
            {.first = 256, .others = 1024}) {}

  const Plan& plan() const { return plan_; }

  /// A description of the model for a test's message.
  std::string text() const { return describe(plan_); }

  static std::string describe(const Plan& plan) {
    std::string text;
    for (const auto& node : plan.nodes) {
      text += concat(node.name, " = ", graph::name_of(node), '(');
      for (int i = 0; i < node.inputs; ++i)
        text += concat(i > 0 ? ", " : "", plan.node(plan.graph.edges[node.input + i]).name);
      for (int k = 0; k < node.uses; ++k)
        text += concat("; ", plan.parameter(plan.graph.uses[node.use + k]).name);
      text += concat(") ", node.shape);
      const int n = static_cast<int>(&node - plan.nodes.data());
      graph::Window w;
      if (graph::is<graph::Conv2d>(node)) w = plan.graph.attributes<graph::Conv2d>(n);
      if (graph::is<graph::MaxPool>(node)) w = plan.graph.attributes<graph::MaxPool>(n);
      if (graph::is<graph::AvgPool>(node)) w = plan.graph.attributes<graph::AvgPool>(n);
      if (w.height > 0)
        text += concat(" kernel ", w.height, 'x', w.width, " stride ", w.stride, " padding ", w.padding);
      text += "\n";
    }
    return text;
  }

 private:
  template <class G>
  static void define(G& g, Philox random, const ModelOptions& options) {
    const auto below = [&](int n) { return static_cast<int>(random.below(static_cast<std::uint32_t>(n))); };
    const auto odds = [&](int one_in) { return below(one_in) == 0; };
    const auto map = [&] { return odds(4) ? 1 + below(2) : 1 + below(options.largest_map); };
    const int channels[] = {1, 3, 2, 5, 16, 17};
    auto x = g.input("image", {channels[below(4)], map(), map()});
    std::vector<graph::Tensor> images{x};  // candidates for further use
    graph::Tensor normed = x;              // the result of the last batch norm
    const auto freeze = [&] { return options.frozen && odds(6); };
    const auto fits = [](const Shape& s, int kernel, int padding) {
      return std::min(s[1], s[2]) + 2 * padding >= kernel;
    };
    const auto convolve = [&](graph::Tensor from, int out, int stride, int kernel) {
      int padding = odds(4) ? 0 : (kernel - 1) / 2;
      if (!fits(from.shape, kernel, padding)) padding = (kernel - 1) / 2;
      if (!fits(from.shape, kernel, padding)) kernel = 1, padding = 0;
      return g.conv2d(from, {.channels = out,
                             .kernel = kernel,
                             .stride = stride,
                             .padding = padding,
                             .bias = odds(3),
                             .frozen = freeze()});
    };
    const auto norm = [&](graph::Tensor from) {
      return normed = g.batch_norm(
                 from,
                 {.epsilon = odds(2) ? 1e-5f : 1e-2f, .momentum = odds(2) ? 0.1f : 0.3f, .frozen = freeze()});
    };
    const auto kernel = [&] { return odds(3) ? 1 : odds(4) ? 5 : odds(9) ? 7 : odds(5) ? 2 : 3; };
    const auto pool = [&](graph::Tensor from, bool largest) {
      int extent = 2 + below(2), padding = odds(2) ? 1 : 0;
      if (!fits(from.shape, extent, padding)) extent = 1, padding = 0;
      const int stride = 1 + below(3);
      return largest ? g.max_pool(from, {.kernel = extent, .stride = stride, .padding = padding})
                     : g.avg_pool(from, {.kernel = extent, .stride = stride, .padding = padding});
    };
    for (int i = 0; i < options.operations; ++i) {
      if (odds(5)) x = images[static_cast<std::size_t>(below(static_cast<int>(images.size())))];
      switch (below(10)) {
        case 0:
          x = convolve(x, channels[below(6)], 1 + below(2), kernel());
          break;
        case 1:
          x = norm(convolve(x, channels[below(6)], 1 + below(2), kernel()));
          break;
        case 2:
          x = g.relu(norm(convolve(x, channels[below(6)], 1 + below(2), kernel())));
          break;
        case 3:
          x = g.relu(norm(x));
          break;
        case 4:
          x = pool(x, true);
          break;
        case 5:
          x = pool(x, false);
          break;
        case 6: {  // a residual block with the operands of the addition in either order
          const int out = channels[below(6)], stride = 1 + below(2);
          auto y = g.relu(norm(g.conv2d(x, {.channels = out, .kernel = 3, .stride = stride})));
          y = norm(g.conv2d(y, {.channels = out, .kernel = 3}));
          auto z = x;
          if (!(x.shape == y.shape))
            z = norm(g.conv2d(x, {.channels = out, .kernel = 1, .stride = stride, .padding = 0}));
          y = odds(2) ? g.add(y, z) : g.add(z, y);
          x = odds(4) ? y : g.relu(y);
          break;
        }
        case 7: {
          auto y = odds(2) ? convolve(x, x.shape[0], 1, 1) : x;
          x = y.shape == x.shape ? g.add(x, y) : y;
          if (odds(2)) x = g.relu(x);
          break;
        }
        case 8:
          x = g.custom(typename Custom::Swish{}, x);
          break;
        case 9:
          x = g.custom(typename Custom::Product{}, x, images[0].shape == x.shape ? images[0] : x);
          break;
      }
      images.push_back(x);
      if (odds(6)) g.output(concat("tap", i), x);
    }
    const int classes = 2 + below(11);
    if (odds(2)) x = g.global_avg_pool(x);
    auto features = g.flatten(x);
    if (odds(3))
      features =
          g.relu(g.linear(features, {.features = 1 + below(20), .bias = !odds(4), .frozen = freeze()}));
    auto logits = g.linear(features, {.features = classes, .bias = !odds(4), .frozen = freeze()});
    auto label = g.label("label", classes);
    g.output("logits", logits);
    g.metric("distance", Distance{}, logits, label);
    // Without the metric, this result is not stored if a ReLU follows.
    if (classes % 2 == 0) g.metric("magnitude", Magnitude{}, normed);
    const bool only_custom = odds(8);
    if (only_custom)
      g.loss(g.custom_loss(typename Custom::SquaredHinge{}, logits, label));
    else
      g.loss(g.cross_entropy(logits, label));
    if (odds(4))
      g.loss(g.custom_loss(typename Custom::Energy{},
                           images[static_cast<std::size_t>(below(static_cast<int>(images.size())))]));
    if (odds(6)) {  // a second head with a label of its own
      auto second = g.linear(features, {.features = 3});
      g.loss(g.cross_entropy(second, g.label("second_label", 3)));
    }
  }

  DynamicPlan plan_;
};
using Model = ModelOf<>;

}  // namespace exec_compare
