// Compares any Exec with exec::Reference<double> over small random models: loss, outputs, metrics, every
// gradient in canonical layout and running statistics, in training and evaluation, on full and ragged
// batches.
//
//     exec_compare::Model model{seed};
//     CHECK(exec_compare::difference<exec::Host<f32>>(model.plan(), {.seed = seed}) == "");
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/core/philox.hpp>
#include <convoy/exec/initialize.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/graph/dynamic.hpp>

namespace exec_compare {

using namespace convoy;

// ---- custom operations, losses and metrics
// ---------------------------------------------------------------------------

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
// ---------------------------------------------------------------------------------------------------

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

// ---- data
// --------------------------------------------------------------------------------------------------------------

/// Random fields for every input (in [-1, 1)) and label of a plan.
class Batch {
 public:
  Batch(const Plan& plan, int rows, Philox random) : rows_(rows) {
    for (int n = 0; n < static_cast<int>(plan.nodes.size()); ++n) {
      const graph::Node& node = plan.node(n);
      if (!node.given) continue;
      const auto size = static_cast<std::size_t>(rows) * static_cast<std::size_t>(node.shape.size());
      if (node.dtype == DType::i32) {
        const auto [begin, end] = range_of(plan, n);
        auto& values = integers_.emplace_back(size);
        for (i32& value : values)
          value = begin + static_cast<i32>(random.below(static_cast<std::uint32_t>(end - begin)));
        if (graph::is<graph::LabelInput>(node))
          if (const int ignored = plan.graph.attributes<graph::LabelInput>(n).ignore;
              ignored != graph::no_label)
            for (i32& value : values)
              if (random.below(3) == 0) value = ignored;
        fields_.push_back(values.data());
      } else if (node.dtype == DType::u8) {
        auto& values = bytes_.emplace_back(size);
        for (u8& value : values) value = static_cast<u8>(random.below(256));
        fields_.push_back(values.data());
      } else {
        auto& values = values_.emplace_back(size);
        for (float& value : values) value = random.uniform(-1, 1);
        fields_.push_back(values.data());
      }
    }
  }
  exec::BatchView view() const { return {fields_, rows_}; }
  operator exec::BatchView() const { return view(); }

 private:
  // The range [begin, end) of values that are valid for all consumers of node `n`, a label or integer input.
  static std::pair<int, int> range_of(const Plan& plan, int n) {
    const graph::Graph& g = plan.graph;
    if (graph::is<graph::LabelInput>(plan.node(n))) return {0, g.attributes<graph::LabelInput>(n).classes};
    int begin = 0, end = 8;
    for (int user = 0; user < g.count.nodes; ++user) {
      const auto by = graph::operation_indices[static_cast<std::size_t>(g.nodes[user].op)](g, user);
      if (by.input < 0 || g.input(user, by.input) != n) continue;
      begin = std::max(begin, by.begin);
      end = std::min(end, by.end);
    }
    return {begin, end};
  }

  int rows_;
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<i32>> integers_;
  std::vector<std::vector<u8>> bytes_;
  std::vector<const void*> fields_;
};

/// The contents of an arena of an exec, whose space the host may not be able to access.
template <class E, class T>
std::vector<T> fetched(E& e, std::span<T> arena) {
  std::vector<T> values(arena.size());
  e.space().read(values.data(), arena.data(), arena.size_bytes());
  return values;
}

/// Draws an exec's parameters around 0 or 1, depending on their initialization, and its running statistics
/// around their initial values. The values are the same for every Exec.
template <class E>
void randomize(E& e, const Plan& plan, Philox random) {
  using T = typename E::Scalar;
  std::vector<T> values;
  for (std::size_t i = 0; i < plan.parameter_list.size(); ++i) {
    const auto& p = plan.parameter_list[i];
    values.resize(static_cast<std::size_t>(p.shape.size()));
    const float bound = p.shape.rank > 1 ? std::sqrt(3.0f / static_cast<float>(p.fan_in)) : 0.5f;
    const float center = p.init == graph::Init::ones ? 1 : 0;
    for (T& value : values) value = static_cast<T>(center + random.uniform(-bound, bound));
    e.write_parameter(static_cast<int>(i), values);
  }
  const auto ranges = exec::statistic_ranges(plan);
  auto statistics = fetched(e, e.statistics());
  for (std::size_t i = 0; i < ranges.size(); ++i)
    for (auto k = ranges[i].begin; k < ranges[i].end; ++k)
      statistics[static_cast<std::size_t>(k)] =
          static_cast<T>(plan.statistic_list[i].start + random.uniform(-0.3f, 0.3f));
  e.space().write(e.statistics().data(), statistics.data(), e.statistics().size_bytes());
}

/// Runs a forward pass; returns its result, which is valid until the next pass.
template <class E>
exec::Result forward(E& e, const exec::BatchView& batch, exec::Mode mode = exec::Mode::train) {
  e.forward(batch, {.mode = mode});
  return e.result();
}

/// Computes the gradients of `scale` times the sum of all losses.
template <class E, class OnFinal>
void backward(E& e, const Plan& plan, float scale, OnFinal&& on_final) {
  e.backward(std::vector<float>(plan.losses.size(), scale), on_final);
}
template <class E>
void backward(E& e, const Plan& plan, float scale = 1) {
  backward(e, plan, scale, [](std::int64_t) {});
}

/// The gradient of parameter `p` in canonical layout.
template <class E>
std::vector<double> gradient(E& e, const Plan& plan, int p) {
  std::vector<typename E::Scalar> values(static_cast<std::size_t>(plan.parameter(p).shape.size()));
  e.read_gradient(p, values);
  return {values.begin(), values.end()};
}

/// The parameter called `name`, or -1.
inline int parameter_named(const Plan& plan, std::string_view name) {
  for (std::size_t p = 0; p < plan.parameter_list.size(); ++p)
    if (plan.parameter_list[p].name == name) return static_cast<int>(p);
  return -1;
}

// ---- comparison
// --------------------------------------------------------------------------------------------------------

struct Options {
  std::uint64_t seed = 1;
  int batch = 4;
  double tolerance = 1e-3;  ///< of each value, relative to the largest of its tensor
  double margin = 2e-6;     ///< how far from a kink data must stay, relative to the largest of its tensor
  int threads = 1;
};

/// Distance of the last forward pass from the nearest kink, a point where a gradient jumps: the input of a
/// ReLU at 0, or a tie of the two largest elements of a pooled window. Relative to the largest element there.
/// Near a kink rounding decides which side an Exec takes. Exact zeros and ties do not count: every Exec
/// computes them alike.
inline double nearest_kink(exec::Reference<double>& e, const Plan& plan) {
  double nearest = 1;
  for (int n = 0; n < static_cast<int>(plan.nodes.size()); ++n) {
    const bool pooled = graph::is<graph::MaxPool>(plan.node(n));
    if (!pooled && !graph::is<graph::Relu>(plan.node(n))) continue;
    const exec::reference::Frame<double> frame(e, n);
    const double* const x = frame.x(0);
    double largest = 0, least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < frame.size(0); ++i) {
      largest = std::max(largest, std::abs(x[i]));
      if (!pooled && x[i] != 0) least = std::min(least, std::abs(x[i]));
    }
    if (pooled) {
      const graph::Window w = frame.attributes<graph::MaxPool>();
      const Shape &in = frame.shape(0), &out = frame.node().shape;
      for (int map = 0; map < frame.rows() * in[0]; ++map)
        for (int i = 0; i < out[1]; ++i)
          for (int j = 0; j < out[2]; ++j) {
            double first = -std::numeric_limits<double>::infinity(), second = first;
            for (int a = std::max(0, i * w.stride - w.padding);
                 a < std::min(in[1], i * w.stride - w.padding + w.height); ++a)
              for (int b = std::max(0, j * w.stride - w.padding);
                   b < std::min(in[2], j * w.stride - w.padding + w.width); ++b) {
                const double value = x[(static_cast<std::ptrdiff_t>(map) * in[1] + a) * in[2] + b];
                if (value > first)
                  second = first, first = value;
                else if (value < first)
                  second = std::max(second, value);
              }
            least = std::min(least, first - second);
          }
    }
    if (largest > 0) nearest = std::min(nearest, least / largest);
  }
  return nearest;
}

/// Draws batches until one is away from every kink; leaves the exec as after a forward pass on it. Returns
/// the batch, or nothing if hundreds were too near.
template <class Draw>
std::optional<Batch> away_from_kinks(exec::Reference<double>& e, const Plan& plan, double margin, Draw draw) {
  const std::vector<double> statistics(e.statistics().begin(), e.statistics().end());
  for (int attempt = 0; attempt < 300; ++attempt) {
    std::optional<Batch> batch(draw());
    e.forward(*batch, {});
    if (nearest_kink(e, plan) >= margin) return batch;
    e.result();
    std::copy(statistics.begin(), statistics.end(), e.statistics().begin());
  }
  return {};
}

/// Keeps the first difference as a message.
class Differences {
 public:
  explicit Differences(double tolerance) : tolerance_(tolerance) {}

  /// Compares tensors. `floor` is the magnitude below which values count as noise; each value may be off by
  /// `room` in addition to the tolerance.
  template <class A, class B>
  void compare(const std::string& what, const A& given, const B& expected, double floor, double room = 0) {
    double scale = floor;
    for (const auto value : expected) scale = std::max(scale, std::abs(static_cast<double>(value)));
    if (std::size(given) != std::size(expected) && first_.empty())
      first_ = concat(what, " has ", std::size(given), " elements, not ", std::size(expected));
    for (std::size_t i = 0; i < std::size(expected) && first_.empty(); ++i) {
      const auto a = static_cast<double>(given[i]), b = static_cast<double>(expected[i]);
      if (!(std::abs(a - b) <= tolerance_ * scale + room))
        first_ = concat(what, " at ", i, " is ", a, ", not ", b, " (the largest being ", scale, ")");
    }
  }
  void compare(const std::string& what, double given, double expected) {
    const double a[] = {given}, b[] = {expected};
    compare(what, a, b, 1.0);
  }
  /// Compares one number, which may be off by `room`.
  void within(const std::string& what, double given, double expected, double room) {
    if (!(std::abs(given - expected) <= room) && first_.empty())
      first_ = concat(what, " is ", given, ", not ", expected, " within ", room);
  }
  const std::string& first() const { return first_; }

 private:
  double tolerance_;
  std::string first_;
};

/// A message about the first value in which `E` differs from Reference<double>; empty if there is none.
/// Batches near a kink are drawn again, since rounding legitimately changes a gradient there.
template <class E>
std::string difference(const Plan& plan, const Options& options = {}) {
  exec::Reference<double> reference(plan, options.batch);
  typename E::Options exec_options{};
  exec_options.threads = options.threads;
  E tested(plan, options.batch, exec_options);
  randomize(reference, plan, Philox{options.seed, 1000});
  randomize(tested, plan, Philox{options.seed, 1000});
  // The rounding error of gradients in plain float loops; the float reference itself is not measured by it.
  constexpr bool measured = !std::is_same_v<E, exec::Reference<float>>;
  exec::Reference<float> rounded(plan, options.batch);
  randomize(rounded, plan, Philox{options.seed, 1000});
  Differences found(options.tolerance);

  const auto same_results = [&](const std::string& when) {
    const exec::Result b = reference.result(), a = tested.result();
    found.compare(when + "losses", a.losses, b.losses, 1.0);
    found.compare(when + "correct", static_cast<double>(a.correct), static_cast<double>(b.correct));
    found.compare(when + "labels", static_cast<double>(a.labels), static_cast<double>(b.labels));
    for (int k = 0; k < static_cast<int>(plan.outputs.size()); ++k)
      found.compare(concat(when, "output ", plan.outputs[static_cast<std::size_t>(k)].name), tested.output(k),
                    reference.output(k), 1e-3);
    for (int k = 0; k < static_cast<int>(plan.metrics.size()); ++k)
      found.compare(concat(when, "metric ", plan.metrics[static_cast<std::size_t>(k)].name),
                    a.metrics[static_cast<std::size_t>(k)], b.metrics[static_cast<std::size_t>(k)]);
    const auto ranges = exec::statistic_ranges(plan);
    auto statistics = fetched(tested, tested.statistics());
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const auto at = static_cast<std::size_t>(ranges[i].begin),
                 size = static_cast<std::size_t>(ranges[i].size());
      found.compare(concat(when, plan.statistic_list[i].name), std::span(statistics).subspan(at, size),
                    reference.statistics().subspan(at, size), 1e-2);
    }
  };
  // A full batch, an evaluation in between, then a ragged batch: state left by one pass must not affect the
  // next.
  Philox random{options.seed, 1001};
  const int ragged = 1 + static_cast<int>(random.below(static_cast<std::uint32_t>(options.batch)));
  const struct {
    int rows;
    bool train;
  } passes[] = {
      {options.batch, true}, {ragged, false}, {ragged, true}, {options.batch, false}, {options.batch, true}};
  for (const auto& pass : passes) {
    const auto draw = [&] { return Batch(plan, pass.rows, Philox{options.seed, random.next()}); };
    const std::string when =
        concat(pass.train ? "training on " : "evaluating ", pass.rows, " of ", options.batch, " rows: ");
    if (!pass.train) {
      const Batch batch = draw();
      reference.forward(batch, {.mode = exec::Mode::evaluate});
      tested.forward(batch, {.mode = exec::Mode::evaluate});
      same_results(when);
      continue;
    }
    const auto batch = away_from_kinks(reference, plan, options.margin, draw);
    if (!batch) return concat(when, "every batch drawn is within ", options.margin, " of a kink");
    tested.forward(*batch, {});
    same_results(when);
    // Each loss has its own scale.
    std::vector<float> scales;
    for (std::size_t l = 0; l < plan.losses.size(); ++l)
      scales.push_back((1.0f + 0.5f * static_cast<float>(l)) / static_cast<float>(pass.rows));
    reference.backward(scales, [](std::int64_t) {});
    std::vector<std::int64_t> finals;
    std::vector<typename E::Scalar> seen;  // each element when it was reported final
    tested.backward(scales, [&](std::int64_t n) {
      finals.push_back(n);
      const auto now = fetched(tested, tested.gradients().first(static_cast<std::size_t>(n)));
      seen.insert(seen.end(), now.begin() + static_cast<std::ptrdiff_t>(seen.size()), now.end());
    });
    if (!std::is_sorted(finals.begin(), finals.end()) ||
        (plan.sizes.exchanged > 0 && (finals.empty() || finals.back() != plan.sizes.exchanged)))
      return concat(when, "on_final did not grow to ", plan.sizes.exchanged);
    if (std::memcmp(seen.data(), fetched(tested, tested.gradients()).data(), seen.size() * sizeof seen[0]) !=
        0)
      return concat(when, "a gradient changed after on_final");
    if (measured) {
      forward(rounded, *batch);
      rounded.backward(scales, [](std::int64_t) {});
    }
    double largest = 0;
    for (const double value : reference.gradients()) largest = std::max(largest, std::abs(value));
    for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p) {
      const std::string what = concat(when, "gradient of ", plan.parameter(p).name);
      const auto expected = gradient(reference, plan, p);
      double own = 0, lost = 0;
      for (const double value : expected) own = std::max(own, std::abs(value));
      if (measured) {
        const auto coarse = gradient(rounded, plan, p);
        for (std::size_t i = 0; i < expected.size(); ++i)
          lost = std::max(lost, std::abs(coarse[i] - expected[i]));
      }
      // A gradient that is zero by definition, such as that of a bias before a batch norm, is only rounding
      // error in floats.
      const double floor = !measured ? 0.3 : own < 1e-9 * largest ? 0.1 : 3e-3;
      found.compare(what, gradient(tested, plan, p), expected, floor * largest, 8 * lost);
    }
    if (!found.first().empty()) break;
  }
  return found.first();
}

}  // namespace exec_compare
