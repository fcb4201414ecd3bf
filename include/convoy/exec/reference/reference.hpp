// Reference: the Exec against which every other is tested. Plain loops over plain layouts, one node at a
// time, nothing fused, nothing shared in memory; in float or double.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/reference/convolution.hpp>
#include <convoy/exec/reference/linear.hpp>
#include <convoy/exec/reference/loss.hpp>
#include <convoy/exec/reference/normalization.hpp>
#include <convoy/exec/reference/pooling.hpp>
#include <convoy/memory/buffer.hpp>

namespace convoy::exec {

struct ReferenceOptions {
  int threads = 1;        ///< ignored: the reference runs on the calling thread
  bool canonical = true;  ///< ignored: the arenas always stand in the plan's own order
};

/// An Exec of plain loops; T is float or double. Throws ConfigError for a batch of 0 or of another plan,
/// ExecError for labels out of range and for calls out of order.
template <class T>
class Reference {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "convoy: exec::Reference computes in float or double");

 public:
  using Scalar = T;
  using Options = ReferenceOptions;
  static constexpr Space space = Space::host;

  Reference(const Plan& plan, int batch, const Options& = {},
            std::pmr::memory_resource* arenas = std::pmr::new_delete_resource())
      : plan_(plan),
        batch_(batch),
        parameters_(static_cast<std::size_t>(plan.sizes.parameters), arenas),
        gradients_(static_cast<std::size_t>(plan.sizes.exchanged), arenas),
        statistics_(static_cast<std::size_t>(plan.sizes.statistics)),
        statistic_ranges_(statistic_ranges(plan)),
        nodes_(plan.nodes.size()) {
    if (batch <= 0) fail<ConfigError>("exec: the batch must have at least one row, not ", batch);
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const auto elements =
          static_cast<std::size_t>(batch) * static_cast<std::size_t>(plan.nodes[n].shape.size());
      if (plan.nodes[n].op == graph::Op::label) {
        nodes_[n].labels.resize(elements);
      } else {
        nodes_[n].value.resize(elements);
        nodes_[n].gradient.resize(elements);
      }
    }
  }

  std::string_view precision() const { return std::is_same_v<T, double> ? "f64" : "f32"; }
  std::uint64_t layout_fingerprint() const { return 0; }
  int threads() const { return 1; }
  std::span<T> parameters() { return parameters_; }
  std::span<T> gradients() { return gradients_; }
  std::span<T> statistics() { return statistics_; }

  void read_parameter(int i, std::span<T> values) const {
    expect_parameter(plan_, i, values.size());
    read_canonical<T>(plan_, i, parameters_, values);
  }
  void write_parameter(int i, std::span<const T> values) {
    expect_parameter(plan_, i, values.size());
    write_canonical<T>(plan_, i, values, parameters_);
  }

  Result forward(const BatchView& batch, Mode mode) {
    take(batch);
    mode_ = mode;
    ran_ = true;
    for (int n = 0; n < node_count(); ++n) forward_node(n);
    Result result;
    for (int loss : plan_.losses)
      for (int r = 0; r < rows_; ++r)
        result.loss += static_cast<double>(at(loss).value[static_cast<std::size_t>(r)]);
    for (int n = 0; n < node_count(); ++n)
      if (node(n).op == graph::Op::cross_entropy) {
        result.correct = reference::count_correct(rows_, node(n).classes, input(n, 0), labels(n, 1));
        break;
      }
    return result;
  }

  template <class OnFinal>
  void backward(double scale, OnFinal&& on_final) {
    if (!ran_ || mode_ != Mode::train)
      fail<ExecError>("exec: backward needs a forward pass in Mode::train before it");
    std::fill(gradients_.begin(), gradients_.end(), T(0));
    for (auto& state : nodes_) std::fill(state.gradient.begin(), state.gradient.end(), T(0));
    for (int loss : plan_.losses)
      for (int r = 0; r < rows_; ++r) at(loss).gradient[static_cast<std::size_t>(r)] += static_cast<T>(scale);

    // Within the reverse of the steps' order every consumer of a value comes before its producer, and the
    // gradients of parameters become final in the order of the arena.
    std::int64_t final = 0;
    for (int s = static_cast<int>(plan_.steps.size()) - 1; s >= 0; --s) {
      const std::int64_t before = final;
      const graph::Step& step = plan_.steps[static_cast<std::size_t>(s)];
      for (int n = step.output; n >= step.main; --n) {
        if (plan_.step_of[static_cast<std::size_t>(n)] != s) continue;
        backward_node(n);
        for (int k = 0; k < node(n).parameters; ++k) {
          const int p = node(n).parameter + k;
          if (trained(p)) final = std::max(final, graph::align_slot(slot(p).live.end));
        }
      }
      if (final > before) on_final(final);
    }
  }

  std::span<const T> output(int k) const {
    if (k < 0 || k >= static_cast<int>(plan_.outputs.size()))
      fail<ConfigError>("exec: the model has no output ", k);
    const int n = plan_.outputs[static_cast<std::size_t>(k)].node;
    return std::span<const T>(at(n).value).first(elements(n));
  }

  double metric(int k) const {
    if (k < 0 || k >= static_cast<int>(plan_.metrics.size()))
      fail<ConfigError>("exec: the model has no metric ", k);
    const graph::Metric& metric = plan_.metrics[static_cast<std::size_t>(k)];
    std::array<graph::Argument, graph::Node::max_inputs> arguments;
    std::array<std::vector<float>, graph::Node::max_inputs> values;  // metrics read f32
    std::array<std::vector<i32>, graph::Node::max_inputs> integers;
    for (std::size_t i = 0; i < static_cast<std::size_t>(metric.inputs); ++i) {
      const int n = metric.input[i];
      arguments[i].shape = node(n).shape;
      if (node(n).op == graph::Op::label) {
        integers[i] = at(n).labels;
        arguments[i].data = integers[i].data();
      } else {
        values[i].assign(at(n).value.begin(), at(n).value.begin() + static_cast<std::ptrdiff_t>(elements(n)));
        arguments[i].data = values[i].data();
      }
    }
    return metric.call(arguments.data(), rows_);
  }

 private:
  /// What is kept of a node: its value and the gradient of it for the whole batch, and what its backward
  /// needs.
  struct NodeState {
    std::vector<T> value, gradient;
    std::vector<i32> labels;         // label
    std::vector<T> mean, variance;   // batch_norm: of the batch
    std::vector<std::int64_t> from;  // max_pool: where the largest element was
  };

  int node_count() const { return static_cast<int>(nodes_.size()); }
  const graph::Node& node(int n) const { return plan_.nodes[static_cast<std::size_t>(n)]; }
  const graph::Slot& slot(int p) const { return plan_.slots[static_cast<std::size_t>(p)]; }
  NodeState& at(int n) { return nodes_[static_cast<std::size_t>(n)]; }
  const NodeState& at(int n) const { return nodes_[static_cast<std::size_t>(n)]; }
  std::size_t elements(int n) const {
    return static_cast<std::size_t>(rows_) * static_cast<std::size_t>(node(n).shape.size());
  }
  const T* input(int n, int i) const { return at(node(n).input[i]).value.data(); }
  const i32* labels(int n, int i) const { return at(node(n).input[i]).labels.data(); }
  /// Where the gradient of an input is added up; null where nobody needs it.
  T* input_gradient(int n, int i) {
    return plan_.needs_gradient(node(n).input[i]) ? at(node(n).input[i]).gradient.data() : nullptr;
  }
  bool trained(int p) const {
    return plan_.parameter_list[static_cast<std::size_t>(p)].group != graph::Group::frozen;
  }
  const T* weight(int n, int k) const {
    return k < node(n).parameters ? parameters_.data() + slot(node(n).parameter + k).live.begin : nullptr;
  }
  /// The gradient of a node's k-th parameter; null if it has none or it is frozen.
  T* weight_gradient(int n, int k) {
    if (k >= node(n).parameters || !trained(node(n).parameter + k)) return nullptr;
    return gradients_.data() + slot(node(n).parameter + k).live.begin;
  }
  T* statistic(int n, int k) {
    return statistics_.data() + statistic_ranges_[static_cast<std::size_t>(node(n).statistic + k)].begin;
  }

  reference::Convolution convolution(int n) const {
    return {node(n), node(node(n).input[0]).shape, plan_.taps[static_cast<std::size_t>(n)]};
  }
  reference::Pooling pooling(int n) const { return {node(n), node(node(n).input[0]).shape, rows_}; }
  reference::Normalization normalization(int n) const {
    return {rows_, node(n).shape[0], static_cast<std::int64_t>(node(n).shape[1]) * node(n).shape[2]};
  }

  /// Copies a batch into the input and label nodes after checking it.
  void take(const BatchView& batch) {
    if (batch.rows < 1 || batch.rows > batch_)
      fail<ConfigError>("exec: a batch of ", batch.rows, " rows does not fit an exec made for 1 to ", batch_);
    std::size_t field = 0;
    for (const auto& x : plan_.nodes) field += x.op == graph::Op::input || x.op == graph::Op::label;
    if (batch.fields.size() != field)
      fail<ConfigError>("exec: the batch has ", batch.fields.size(), " fields, but the model has ", field,
                        " inputs and labels");
    rows_ = batch.rows;
    field = 0;
    for (int n = 0; n < node_count(); ++n) {
      if (node(n).op == graph::Op::input) {
        const auto* values = static_cast<const float*>(batch.fields[field++]);
        std::copy_n(values, elements(n), at(n).value.begin());
      } else if (node(n).op == graph::Op::label) {
        const auto* values = static_cast<const i32*>(batch.fields[field++]);
        for (int r = 0; r < rows_; ++r)
          if (values[r] < 0 || values[r] >= node(n).classes)
            fail<ExecError>("exec: ", node(n).name, " of row ", r, " is ", values[r], ", not in [0, ",
                            node(n).classes, ")");
        std::copy_n(values, elements(n), at(n).labels.begin());
      }
    }
  }

  void forward_node(int n) {
    const graph::Node& x = node(n);
    T* y = at(n).value.data();
    const auto size = elements(n);
    switch (x.op) {
      case graph::Op::input:
      case graph::Op::label:
        break;
      case graph::Op::conv2d:
        reference::convolve(convolution(n), rows_, input(n, 0), weight(n, 0), weight(n, 1), y);
        break;
      case graph::Op::batch_norm:
        forward_batch_norm(n);
        break;
      case graph::Op::relu:
        for (std::size_t i = 0; i < size; ++i)
          y[i] = input(n, 0)[i] < 0 ? T(0) : input(n, 0)[i];  // NaN stays NaN
        break;
      case graph::Op::max_pool:
        at(n).from.resize(size);
        reference::pool_max(pooling(n), input(n, 0), y, at(n).from.data());
        break;
      case graph::Op::avg_pool:
        reference::pool_average(pooling(n), input(n, 0), y);
        break;
      case graph::Op::add:
        for (std::size_t i = 0; i < size; ++i) y[i] = input(n, 0)[i] + input(n, 1)[i];
        break;
      case graph::Op::flatten:
        std::copy_n(input(n, 0), size, y);
        break;
      case graph::Op::linear:
        reference::multiply(rows_, node(x.input[0]).shape[0], x.shape[0], input(n, 0), weight(n, 0),
                            weight(n, 1), y);
        break;
      case graph::Op::cross_entropy:
        reference::cross_entropy(rows_, x.classes, input(n, 0), labels(n, 1), y);
        break;
      case graph::Op::custom: {
        const auto arguments = custom_inputs(n);
        const graph::Argument result{y, x.shape};
        x.custom->forward<T>()(arguments.data(), &result, rows_);
        break;
      }
    }
  }

  void forward_batch_norm(int n) {
    const auto extents = normalization(n);
    const auto epsilon = static_cast<T>(node(n).epsilon);
    const T *mean = statistic(n, 0), *variance = statistic(n, 1);
    if (mode_ == Mode::train) {
      auto& state = at(n);
      state.mean.resize(static_cast<std::size_t>(extents.channels));
      state.variance.resize(static_cast<std::size_t>(extents.channels));
      reference::measure(extents, input(n, 0), state.mean.data(), state.variance.data());
      reference::move_running(extents, static_cast<T>(node(n).momentum), state.mean.data(),
                              state.variance.data(), statistic(n, 0), statistic(n, 1));
      mean = state.mean.data();
      variance = state.variance.data();
    }
    reference::normalize(extents, epsilon, input(n, 0), mean, variance, weight(n, 0), weight(n, 1),
                         at(n).value.data());
  }

  void backward_node(int n) {
    const graph::Node& x = node(n);
    const T* dy = at(n).gradient.data();
    T* dx = x.inputs > 0 ? input_gradient(n, 0) : nullptr;
    const auto size = elements(n);
    switch (x.op) {
      case graph::Op::input:
      case graph::Op::label:
        break;
      case graph::Op::conv2d: {
        const auto extents = convolution(n);
        if (dx != nullptr) reference::convolve_backward_input(extents, rows_, weight(n, 0), dy, dx);
        if (T* dw = weight_gradient(n, 0))
          reference::convolve_backward_weight(extents, rows_, input(n, 0), dy, dw);
        if (T* db = weight_gradient(n, 1)) reference::convolve_backward_bias(extents, rows_, dy, db);
        break;
      }
      case graph::Op::batch_norm:
        reference::normalize_backward(normalization(n), static_cast<T>(x.epsilon), input(n, 0),
                                      at(n).mean.data(), at(n).variance.data(), weight(n, 0), dy, dx,
                                      weight_gradient(n, 0), weight_gradient(n, 1));
        break;
      case graph::Op::relu:
        for (std::size_t i = 0; dx != nullptr && i < size; ++i)
          if (at(n).value[i] > 0) dx[i] += dy[i];
        break;
      case graph::Op::max_pool:
        if (dx != nullptr) reference::pool_max_backward(pooling(n), at(n).from.data(), dy, dx);
        break;
      case graph::Op::avg_pool:
        if (dx != nullptr) reference::pool_average_backward(pooling(n), dy, dx);
        break;
      case graph::Op::add:
      case graph::Op::flatten:
        for (int k = 0; k < x.inputs; ++k)
          if (T* to = input_gradient(n, k))
            for (std::size_t i = 0; i < size; ++i) to[i] += dy[i];
        break;
      case graph::Op::linear: {
        const int in = node(x.input[0]).shape[0], out = x.shape[0];
        if (dx != nullptr) reference::multiply_backward_input(rows_, in, out, weight(n, 0), dy, dx);
        if (T* dw = weight_gradient(n, 0))
          reference::multiply_backward_weight(rows_, in, out, input(n, 0), dy, dw);
        if (T* db = weight_gradient(n, 1)) reference::multiply_backward_bias(rows_, out, dy, db);
        break;
      }
      case graph::Op::cross_entropy:
        if (dx != nullptr)
          reference::cross_entropy_backward(rows_, x.classes, input(n, 0), labels(n, 1), dy, dx);
        break;
      case graph::Op::custom:
        backward_custom(n);
        break;
    }
  }

  /// The inputs of a custom operation; the two places after them are for y and dy.
  std::array<graph::Argument, graph::Node::max_inputs + 2> custom_inputs(int n) {
    std::array<graph::Argument, graph::Node::max_inputs + 2> arguments;
    for (std::size_t i = 0; i < static_cast<std::size_t>(node(n).inputs); ++i) {
      NodeState& from = at(node(n).input[i]);
      const bool integers = node(node(n).input[i]).op == graph::Op::label;
      arguments[i].data =
          integers ? static_cast<void*>(from.labels.data()) : static_cast<void*>(from.value.data());
      arguments[i].shape = node(node(n).input[i]).shape;
    }
    return arguments;
  }

  void backward_custom(int n) {
    const graph::Node& x = node(n);
    const auto count = static_cast<std::size_t>(x.inputs);
    auto arguments = custom_inputs(n);
    arguments[count] = {at(n).value.data(), x.shape};
    arguments[count + 1] = {at(n).gradient.data(), x.shape};
    // The operation overwrites, so each input gets room of its own before it is added up.
    std::array<std::vector<T>, graph::Node::max_inputs> rooms;
    std::array<graph::Argument, graph::Node::max_inputs> results;
    for (std::size_t i = 0; i < count; ++i) {
      results[i].shape = arguments[i].shape;
      if (node(x.input[i]).op == graph::Op::label) continue;
      rooms[i].resize(elements(x.input[i]));
      results[i].data = rooms[i].data();
    }
    x.custom->backward<T>()(arguments.data(), results.data(), rows_);
    for (std::size_t i = 0; i < count; ++i)
      if (T* dx = input_gradient(n, static_cast<int>(i)))
        for (std::size_t k = 0; k < rooms[i].size(); ++k) dx[k] += rooms[i][k];
  }

  Plan plan_;
  int batch_, rows_ = 0;
  Mode mode_ = Mode::evaluate;
  bool ran_ = false;
  Buffer<T> parameters_, gradients_, statistics_;
  std::vector<Range> statistic_ranges_;
  std::vector<NodeState> nodes_;
};

static_assert(Exec<Reference<float>> && Exec<Reference<double>>);

}  // namespace convoy::exec
