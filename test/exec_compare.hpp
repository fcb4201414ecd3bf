// Compares any Exec with exec::Reference<double> over a model: loss, outputs, metrics, every gradient in
// canonical layout and running statistics, in training and evaluation, on full and ragged batches of random
// values.
//
//     CHECK(exec_compare::difference<exec::Host<f32>>(plan, {.seed = seed}) == "");
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

namespace exec_compare {

using namespace convoy;

// ---- data

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

/// The gradient of the parameter `name` of some data, computed by E with so many threads.
template <class E>
std::vector<double> gradient_by_threads(const Plan& plan, std::string_view name, int threads) {
  constexpr int rows = 7;
  typename E::Options options;
  options.threads = threads;
  E e(plan, rows, options);
  randomize(e, plan, Philox{3});
  const Batch batch(plan, rows, Philox{4});
  forward(e, batch);
  backward(e, plan);
  return gradient(e, plan, parameter_named(plan, name));
}

// ---- comparison

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
    if (!seen.empty() && std::memcmp(seen.data(), fetched(tested, tested.gradients()).data(),
                                     seen.size() * sizeof seen[0]) != 0)
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
