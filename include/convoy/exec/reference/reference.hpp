// Reference: the Exec against which all others are tested. Plain loops over plain layouts, one node at a
// time, without fusion or reuse of memory; in float or double.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/labels.hpp>
#include <convoy/exec/reference/op/add.hpp>
#include <convoy/exec/reference/op/attention.hpp>
#include <convoy/exec/reference/op/batch_norm.hpp>
#include <convoy/exec/reference/op/bce_with_logits.hpp>
#include <convoy/exec/reference/op/concat.hpp>
#include <convoy/exec/reference/op/conv2d.hpp>
#include <convoy/exec/reference/op/cross_entropy.hpp>
#include <convoy/exec/reference/op/custom.hpp>
#include <convoy/exec/reference/op/dropout.hpp>
#include <convoy/exec/reference/op/embedding.hpp>
#include <convoy/exec/reference/op/flatten.hpp>
#include <convoy/exec/reference/op/gather.hpp>
#include <convoy/exec/reference/op/gelu.hpp>
#include <convoy/exec/reference/op/layer_norm.hpp>
#include <convoy/exec/reference/op/linear.hpp>
#include <convoy/exec/reference/op/mean.hpp>
#include <convoy/exec/reference/op/mse_loss.hpp>
#include <convoy/exec/reference/op/multiply.hpp>
#include <convoy/exec/reference/op/pooling.hpp>
#include <convoy/exec/reference/op/position_embedding.hpp>
#include <convoy/exec/reference/op/relu.hpp>
#include <convoy/exec/reference/op/select.hpp>
#include <convoy/exec/reference/op/sigmoid.hpp>
#include <convoy/exec/reference/op/tanh.hpp>
#include <convoy/memory/host.hpp>

namespace convoy::exec {

struct ReferenceOptions {
  int threads = 1;        ///< ignored: the reference runs on the calling thread
  bool canonical = true;  ///< ignored: the arenas always have the plan's order

  static constexpr void fields(auto& self, auto&& field) {
    field("threads", self.threads, fields::local);
    field("canonical", self.canonical, fields::local);
  }
};

/// An Exec of plain loops; T is float or double. Throws ConfigError for a batch that is empty or does not fit
/// the plan, ExecError for labels out of range, for calls out of order and for an operation without a kernel.
template <class T>
class Reference {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>,
                "convoy: exec::Reference computes in float or double");

 public:
  using Scalar = T;
  using Options = ReferenceOptions;
  using Space = memory::Host;
  using Make = reference::Functions<T>;
  static constexpr std::string_view name = "reference";
  static constexpr int latency = 0;
  static constexpr bool may_overflow = false;
  static constexpr bool sums_across_ranks = true;

  Reference(const Plan& plan, int batch, const Options& = {}, Space& space = memory::host(),
            const Kernels<Reference>& kernels = exec::kernels<Reference>)
      : plan_(plan),
        batch_(batch),
        space_(&space),
        kernels_(kernels),
        parameters_(space, static_cast<std::size_t>(plan.sizes.parameters)),
        gradients_(space, static_cast<std::size_t>(plan.sizes.exchanged)),
        statistics_(space, static_cast<std::size_t>(plan.sizes.statistics)),
        statistic_ranges_(statistic_ranges(plan)),
        nodes_(plan.nodes.size()) {
    if (batch <= 0) fail<ConfigError>("exec: the batch must have at least one row, not ", batch);
    expect_kernels<Reference>(plan, kernels);
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const auto elements =
          static_cast<std::size_t>(batch) * static_cast<std::size_t>(plan.nodes[n].shape.size());
      if (plan.nodes[n].dtype == DType::i32) {
        nodes_[n].integers.resize(elements);
      } else {
        nodes_[n].value.resize(elements);
        nodes_[n].gradient.resize(elements);
      }
    }
    for (std::size_t i = 0; i < statistic_ranges_.size(); ++i)
      std::fill(statistics_.data() + statistic_ranges_[i].begin,
                statistics_.data() + statistic_ranges_[i].end, static_cast<T>(plan.statistic_list[i].start));
  }

  Space& space() { return *space_; }
  std::string_view precision() const { return std::is_same_v<T, double> ? "f64" : "f32"; }
  std::uint64_t layout_fingerprint() const { return 0; }
  int threads() const { return 1; }
  std::int64_t panel(int) const { return 1; }
  std::span<T> parameters() { return {parameters_.data(), parameters_.size()}; }
  std::span<T> gradients() { return {gradients_.data(), gradients_.size()}; }
  std::span<T> statistics() { return {statistics_.data(), statistics_.size()}; }

  void read_parameter(int i, std::span<T> values) const {
    expect_parameter(plan_, i, values.size());
    for_each_element(plan_, i, [&](std::int64_t at, std::int64_t place, bool) {
      values[static_cast<std::size_t>(at)] = parameters_.data()[place];
    });
  }
  void write_parameter(int i, std::span<const T> values) {
    expect_parameter(plan_, i, values.size());
    for_each_element(plan_, i, [&](std::int64_t at, std::int64_t place, bool) {
      parameters_.data()[place] = values[static_cast<std::size_t>(at)];
    });
  }
  void read_gradient(int i, std::span<T> values) const {
    expect_parameter(plan_, i, values.size());
    for_each_element(plan_, i, [&](std::int64_t at, std::int64_t place, bool live) {
      values[static_cast<std::size_t>(at)] = live && plan_.trained(i) ? gradients_.data()[place] : T(0);
    });
  }
  void reorder(int, std::span<const T> from, std::span<T> to, bool) const {
    std::copy(from.begin(), from.end(), to.begin());
  }
  void touched(Range) {}

  void forward(const BatchView& batch, const Pass& pass) {
    expect_batch(plan_, batch, batch_);
    ran_ = false;  // A kernel may throw: a user's operation, or a sum over ranks.
    take(batch);
    pass_ = pass;
    Measured measured;
    tallied_by_ = -1;
    for (int n = 0; n < node_count(); ++n)
      if (!plan_.node(n).given)
        kernels_[static_cast<std::size_t>(plan_.node(n).op)].forward(reference::Frame<T>(*this, n));
    for (const graph::Loss& loss : plan_.losses) {
      double sum = 0;
      for (int r = 0; r < rows_; ++r)
        sum += static_cast<double>(at(loss.node).value[static_cast<std::size_t>(r)]);
      measured.losses.push_back(sum);
    }
    for (const graph::Metric& metric : plan_.metrics) measured.metrics.push_back(measure(metric));
    measured.correct = tallied_by_ < 0 ? 0 : correct_;
    measured.labels = tallied_by_ < 0 ? 0 : labels_;
    results_.push_back(std::move(measured));
    ran_ = true;
  }

  template <class OnFinal>
  void backward(std::span<const float> scales, OnFinal&& on_final) {
    if (!ran_ || pass_.mode != Mode::train)
      fail<ExecError>("exec: backward needs a forward pass in Mode::train before it");
    expect_scales(plan_, scales);
    std::fill_n(gradients_.data(), gradients_.size(), T(0));
    for (auto& state : nodes_) std::fill(state.gradient.begin(), state.gradient.end(), T(0));
    for (std::size_t l = 0; l < plan_.losses.size(); ++l)
      for (int r = 0; r < rows_; ++r)
        at(plan_.losses[l].node).gradient[static_cast<std::size_t>(r)] += static_cast<T>(scales[l]);

    // In reverse stage order every consumer of a value comes before its producer, and the gradients of
    // parameters become final in the order of the arena.
    std::int64_t final = 0;
    for (int s = static_cast<int>(plan_.stages.size()) - 1; s >= 0; --s) {
      const std::int64_t before = final;
      for (int k = plan_.stage(s).count - 1; k >= 0; --k) {
        const int n = plan_.member(s, k);
        kernels_[static_cast<std::size_t>(plan_.node(n).op)].backward(reference::Frame<T>(*this, n));
        for (int u = 0; u < plan_.node(n).uses; ++u) {
          const int p = plan_.graph.parameter(n, u);
          if (plan_.trained(p) && plan_.slot(p).first == s)
            final = std::max(final, graph::align_slot(plan_.slot(p).live.end));
        }
      }
      if (final > before) on_final(final);
    }
  }

  Result result() {
    if (results_.empty()) fail<ExecError>("exec: a result was asked for before a forward pass");
    taken_ = std::move(results_.front());
    results_.pop_front();
    return {taken_.losses, taken_.metrics, taken_.correct, taken_.labels};
  }

  std::span<const T> output(int k) const {
    if (k < 0 || k >= static_cast<int>(plan_.outputs.size()))
      fail<ConfigError>("exec: the model has no output ", k);
    if (!ran_) fail<ExecError>("exec: output ", k, " was asked for before a forward pass");
    const int n = plan_.outputs[static_cast<std::size_t>(k)].node;
    return std::span<const T>(at(n).value).first(elements(n));
  }

 private:
  friend class reference::Frame<T>;

  struct Measured {
    std::vector<double> losses, metrics;
    std::int64_t correct = 0, labels = 0;
  };

  int node_count() const { return static_cast<int>(nodes_.size()); }
  reference::State<T>& at(int n) { return nodes_[static_cast<std::size_t>(n)]; }
  const reference::State<T>& at(int n) const { return nodes_[static_cast<std::size_t>(n)]; }
  std::size_t elements(int n) const {
    return static_cast<std::size_t>(rows_) * static_cast<std::size_t>(plan_.node(n).shape.size());
  }
  void tally(int n, std::int64_t correct, std::int64_t labels) {
    if (tallied_by_ >= 0) return;
    tallied_by_ = n;
    correct_ = correct;
    labels_ = labels;
  }

  /// Copies a batch into the input and label nodes.
  void take(const BatchView& batch) {
    rows_ = batch.rows;
    std::size_t field = 0;
    for (int n = 0; n < node_count(); ++n) {
      const graph::Node& node = plan_.node(n);
      if (!node.given) continue;
      const void* values = batch.fields[field++];
      const std::size_t size = elements(n);
      if (node.dtype == DType::i32) {
        std::copy_n(static_cast<const i32*>(values), size, at(n).integers.begin());
      } else if (node.dtype == DType::u8) {
        const auto [scale, offset] = plan_.graph.template attributes<graph::Input>(n);
        for (std::size_t i = 0; i < size; ++i)
          at(n).value[i] = static_cast<T>(scale) * static_cast<T>(static_cast<const u8*>(values)[i]) +
                           static_cast<T>(offset);
      } else {
        std::copy_n(static_cast<const float*>(values), size, at(n).value.begin());
      }
    }
  }

  double measure(const graph::Metric& metric) {
    const auto count = static_cast<std::size_t>(metric.inputs);
    std::vector<graph::Argument> arguments(count);
    std::vector<std::vector<float>> values(count);  // metrics read f32
    for (std::size_t i = 0; i < count; ++i) {
      const int n = plan_.graph.edges[metric.input + static_cast<int>(i)];
      arguments[i].shape = plan_.node(n).shape;
      if (plan_.node(n).dtype == DType::i32) {
        arguments[i].data = at(n).integers.data();
      } else {
        values[i].assign(at(n).value.begin(), at(n).value.begin() + static_cast<std::ptrdiff_t>(elements(n)));
        arguments[i].data = values[i].data();
      }
    }
    return metric.call(arguments.data(), rows_);
  }

  Plan plan_;
  int batch_, rows_ = 0;
  Space* space_;
  const Kernels<Reference>& kernels_;
  Pass pass_{.mode = Mode::evaluate};
  bool ran_ = false;
  memory::Array<T, Space> parameters_, gradients_, statistics_;
  std::vector<Range> statistic_ranges_;
  std::vector<reference::State<T>> nodes_;
  std::deque<Measured> results_;
  Measured taken_;
  int tallied_by_ = -1;
  std::int64_t correct_ = 0, labels_ = 0;
};

static_assert(Exec<Reference<float>> && Exec<Reference<double>>);

CONVOY_INSTANTIATE(class Reference<float>);
CONVOY_INSTANTIATE(class Reference<double>);

}  // namespace convoy::exec
