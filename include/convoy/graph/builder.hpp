// Builder: the `g` of a model's `define`. Runs in constant expressions and at run time alike; infers shapes,
// makes PyTorch's names, records the first fault (at run time: throws it).
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

#include <convoy/graph/fault.hpp>
#include <convoy/graph/tables.hpp>

namespace convoy::graph {

/// A value inside a model under construction.
struct Tensor {
  int node = -1;
  Shape shape;
};

/// A class index inside a model under construction; has no gradient.
struct Label {
  int node = -1;
  int classes = 0;
  Shape shape;
};

/// Padding that keeps the size at stride 1: (kernel - 1) / 2.
inline constexpr int same = -1;

struct Conv2dOptions {
  int channels = 0;  ///< of the output
  int kernel = 3;
  int stride = 1;
  int padding = same;
  bool bias = false;
  bool frozen = false;
  std::string_view name = {};
};
struct PoolOptions {
  int kernel = 2;
  int stride = 0;  ///< 0: the kernel's extent
  int padding = 0;
  std::string_view name = {};
};
struct BatchNormOptions {
  float epsilon = 1e-5f;
  float momentum = 0.1f;
  bool frozen = false;
  std::string_view name = {};
};
struct LinearOptions {
  int features = 0;  ///< of the output
  bool bias = true;
  bool frozen = false;
  std::string_view name = {};
};
struct NameOption {
  std::string_view name = {};
};

/// The operations of a model. Nodes are numbered, and unnamed ones named, in the order of the calls;
/// compilers evaluate the arguments of one call in different orders, so give operations that stand in one
/// argument list names of their own (or statements of their own) where ranks or checkpoints of differently
/// compiled programs must agree.
template <class Tables>
class Builder {
 public:
  /// An image or a vector that a data set supplies, f32, in plain layout.
  constexpr Tensor input(std::string_view name, Shape shape) {
    Node node = begin(Op::input, name);
    node.shape = shape;
    for (int i = 0; i < shape.rank; ++i)
      if (shape[i] <= 0) report(FaultKind::extent_is_not_positive, shape);
    return place(node);
  }

  /// A class index in [0, classes) that a data set supplies, i32.
  constexpr Label label(std::string_view name, int classes) {
    Node node = begin(Op::label, name);
    node.dtype = DType::i32;
    node.classes = classes;
    if (classes <= 0) report(FaultKind::extent_is_not_positive, {classes});
    return {place(node).node, classes, {}};
  }

  /// Cross-correlation over [channels, height, width], as torch.nn.Conv2d without groups.
  constexpr Tensor conv2d(Tensor x, Conv2dOptions o) {
    const Window window{o.kernel, o.kernel, o.stride, o.padding == same ? (o.kernel - 1) / 2 : o.padding};
    Node node = begin(Op::conv2d, o.name);
    node.window = window;
    if (!image(x, {o.channels, o.kernel, o.stride}, window)) return abandon(node, x);
    node.shape = {o.channels, window.positions(x.shape[1], o.kernel), window.positions(x.shape[2], o.kernel)};
    const int fan = o.kernel * o.kernel;
    weight(node, {o.channels, x.shape[0], o.kernel, o.kernel}, x.shape[0] * fan, o.channels * fan,
           Init::kaiming_normal, o.frozen);
    if (o.bias) bias(node, o.channels, x.shape[0] * fan, Init::fan_in_uniform, o.frozen);
    return place(node, x);
  }

  /// Batch normalisation over the batch and the map of each channel (Ioffe and Szegedy, 2015).
  constexpr Tensor batch_norm(Tensor x, BatchNormOptions o = {}) {
    Node node = begin(Op::batch_norm, o.name);
    node.shape = x.shape;
    node.epsilon = o.epsilon;
    node.momentum = o.momentum;
    if (x.shape.rank != 3) return report(FaultKind::input_is_not_an_image, x.shape), abandon(node, x);
    const int channels = x.shape[0];
    norm_parameter(node, "weight", channels, Init::ones, o.frozen);
    norm_parameter(node, "bias", channels, Init::zeros, o.frozen);
    node.statistic = tables_.push(Statistic{suffixed(node.name, "running_mean"), {channels}, count_, 0.0f});
    tables_.push(Statistic{suffixed(node.name, "running_var"), {channels}, count_, 1.0f});
    return place(node, x);
  }

  /// max(x, 0).
  constexpr Tensor relu(Tensor x, NameOption o = {}) {
    Node node = begin(Op::relu, o.name);
    node.shape = x.shape;
    return place(node, x);
  }

  /// The largest element of each window; padding counts as minus infinity.
  constexpr Tensor max_pool(Tensor x, PoolOptions o = {}) { return pool(Op::max_pool, x, o); }

  /// The mean of each window; padding counts as zero elements that are included in the mean, as in PyTorch.
  constexpr Tensor avg_pool(Tensor x, PoolOptions o = {}) { return pool(Op::avg_pool, x, o); }

  /// The mean of each channel: [channels, height, width] to [channels, 1, 1].
  constexpr Tensor global_avg_pool(Tensor x, NameOption o = {}) {
    Node node = begin(Op::avg_pool, o.name);
    if (x.shape.rank != 3) return report(FaultKind::input_is_not_an_image, x.shape), abandon(node, x);
    node.window = {x.shape[1], x.shape[2], 1, 0};
    node.shape = {x.shape[0], 1, 1};
    return place(node, x);
  }

  /// Element by element.
  constexpr Tensor add(Tensor a, Tensor b, NameOption o = {}) {
    Node node = begin(Op::add, o.name);
    node.shape = a.shape;
    if (!(a.shape == b.shape)) report(FaultKind::shapes_differ, a.shape, b.shape);
    return place(node, a, b);
  }

  /// [a, b, c] to [a * b * c].
  constexpr Tensor flatten(Tensor x, NameOption o = {}) {
    Node node = begin(Op::flatten, o.name);
    node.shape = {static_cast<int>(x.shape.size())};
    return place(node, x);
  }

  /// y = W x + b over [features].
  constexpr Tensor linear(Tensor x, LinearOptions o) {
    Node node = begin(Op::linear, o.name);
    node.shape = {o.features};
    if (x.shape.rank != 1) return report(FaultKind::input_is_not_flat, x.shape), abandon(node, x);
    if (o.features <= 0) return report(FaultKind::extent_is_not_positive, {o.features}), abandon(node, x);
    const int in = x.shape[0];
    weight(node, {o.features, in}, in, o.features, Init::fan_in_uniform, o.frozen);
    if (o.bias) bias(node, o.features, in, Init::fan_in_uniform, o.frozen);
    return place(node, x);
  }

  /// -log softmax(logits)[label], one number a row.
  constexpr Tensor cross_entropy(Tensor logits, Label label, NameOption o = {}) {
    Node node = begin(Op::cross_entropy, o.name);
    node.classes = label.classes;
    if (logits.shape.rank != 1)
      report(FaultKind::input_is_not_flat, logits.shape);
    else if (logits.shape[0] != label.classes)
      report(FaultKind::classes_differ, logits.shape, {label.classes});
    return place(node, logits, label);
  }

  /// A user's operation of 1 to 3 inputs; see graph/custom.hpp for what `Operation` must have.
  template <class Operation, class... Inputs>
  constexpr Tensor custom(Operation, Inputs... x) {
    if constexpr (requires {
                    { Operation::shape(x.shape...) } -> std::convertible_to<Shape>;
                  }) {
      return call<Operation>(Operation::shape(x.shape...), x...);
    } else {
      static_assert(
          sizeof(Operation) == 0,
          "convoy: a custom operation needs a static constexpr Shape shape(Shape, ...) of as many shapes as "
          "it has inputs");
      report(FaultKind::reported, {});
      return Tensor{};
    }
  }

  /// A user's loss of one number a row: an operation without `shape`.
  template <class Loss, class... Inputs>
  constexpr Tensor custom_loss(Loss, Inputs... x) {
    return call<Loss>(Shape{}, x...);
  }

  /// Declares what is minimised: the mean over the batch. Several losses are summed.
  constexpr void loss(Tensor x) {
    if (x.shape.rank != 0) {
      last_ = Name("loss");
      report(FaultKind::loss_is_not_a_number, x.shape);
    }
    tables_.push(x.node);
    ++losses_;
  }

  /// Hands a value out under a name.
  constexpr void output(std::string_view name, Tensor x) { tables_.push(Output{Name(name), x.node}); }

  /// Measures something on every batch; see graph/custom.hpp. The inputs must be labels or outputs of the
  /// model.
  template <class Measure, class... Inputs>
  constexpr void metric(std::string_view name, Measure, Inputs... x) {
    constexpr int count = sizeof...(x);
    if constexpr (count < 1 || count > Node::max_inputs) {
      static_assert(sizeof(Measure) == 0, "convoy: a metric takes 1 to 3 inputs");
      report(FaultKind::reported, {});
    } else if constexpr (!has_measure<Measure, count, integers<Inputs...>>) {
      static_assert(sizeof(Measure) == 0,
                    "convoy: a metric needs static double measure(View<const float> x, ...), with View<const "
                    "i32> for a "
                    "label");
      report(FaultKind::reported, {});
    } else {
      Metric metric;
      metric.name = Name(name);
      metric.call = metric_call<Measure, count, integers<Inputs...>>;
      ((metric.input[metric.inputs++] = x.node), ...);
      tables_.push(metric);
    }
  }

  /// Nests names: what is built while the returned guard lives is named `name.`...
  [[nodiscard]] constexpr auto scope(std::string_view name) {
    Name full = path_;
    if (!full.empty()) full.append(".");
    full.append(name);
    return Scope(*this, full);
  }
  [[nodiscard]] constexpr auto scope(int index) { return scope(Name().append(index)); }

  constexpr Tables& tables() { return tables_; }

  /// The first fault of the model, the absence of a loss included.
  constexpr Fault fault() const {
    if (fault_.kind == FaultKind::none && losses_ == 0) return {FaultKind::no_loss, {}, {}, {}};
    return fault_;
  }

 private:
  static constexpr int max_depth = 16;

  /// A bit for each input that is a label.
  template <class... Inputs>
  static constexpr unsigned integers = [] {
    unsigned mask = 0, bit = 1;
    ((mask |= std::is_same_v<Inputs, Label> ? bit : 0u, bit <<= 1), ...);
    return mask;
  }();

  class Scope {
   public:
    constexpr Scope(Builder& builder, const Name& path) : builder_(builder), outer_(builder.path_) {
      builder_.path_ = path;
      if (builder_.depth_ + 1 >= max_depth) {
        builder_.last_ = path;
        builder_.report(FaultKind::scopes_too_deep, {});
        return;
      }
      entered_ = true;
      ++builder_.depth_;
      for (int i = 0; i < op_count; ++i) builder_.unnamed_[builder_.depth_][i] = 0;
    }
    constexpr ~Scope() {
      builder_.path_ = outer_;
      if (entered_) --builder_.depth_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Builder& builder_;
    Name outer_;
    bool entered_ = false;
  };

  constexpr void report(FaultKind kind, Shape left, Shape right = {}) {
    if (fault_.kind != FaultKind::none) return;
    fault_ = {kind, last_, left, right};
    if (!std::is_constant_evaluated()) raise(fault_);
  }

  static constexpr Name suffixed(const Name& name, std::string_view suffix) {
    Name full = name;
    return full.append(".").append(suffix);
  }

  /// A node named by its own name, or by its kind and number, within the scopes.
  constexpr Node begin(Op op, std::string_view given) {
    Node node;
    node.op = op;
    last_ = path_;
    if (!last_.empty()) last_.append(".");
    if (given.empty()) {
      last_.append(name_of(op)).append(".").append(unnamed_[depth_][static_cast<int>(op)]++);
    } else {
      last_.append(given);
    }
    if (last_.overflow || last_.length + sizeof(".running_mean") > Name::capacity) {
      last_.overflow = false;
      report(FaultKind::name_too_long, {});
    }
    node.name = last_;
    return node;
  }

  template <class... Inputs>
  constexpr Tensor place(Node& node, Inputs... x) {
    ((node.input[node.inputs++] = x.node), ...);
    tables_.push(node);
    return {count_++, node.shape};
  }

  /// Goes on after a fault so that the first one is the one reported.
  constexpr Tensor abandon(Node& node, Tensor x) {
    node.shape = x.shape;
    return place(node, x);
  }

  constexpr bool image(Tensor x, Shape extents, Window window, int most_padding = 1 << 20) {
    if (x.shape.rank != 3) return report(FaultKind::input_is_not_an_image, x.shape), false;
    for (int i = 0; i < extents.rank; ++i)
      if (extents[i] <= 0) return report(FaultKind::extent_is_not_positive, extents), false;
    if (window.padding < 0 || window.padding > most_padding)
      return report(FaultKind::padding_is_wrong, {window.height, window.width}, {window.padding}), false;
    if (window.positions(x.shape[1], window.height) > 0 && window.positions(x.shape[2], window.width) > 0)
      return true;
    const int pad = 2 * window.padding;
    report(FaultKind::window_does_not_fit, {x.shape[1] + pad, x.shape[2] + pad},
           {window.height, window.width});
    return false;
  }

  constexpr Tensor pool(Op op, Tensor x, const PoolOptions& o) {
    const int stride = o.stride == 0 ? o.kernel : o.stride;
    const Window window{o.kernel, o.kernel, stride, o.padding};
    Node node = begin(op, o.name);
    node.window = window;
    // A window of nothing but padding would have no largest element.
    if (!image(x, {o.kernel, stride}, window, o.kernel / 2)) return abandon(node, x);
    node.shape = {x.shape[0], window.positions(x.shape[1], o.kernel), window.positions(x.shape[2], o.kernel)};
    return place(node, x);
  }

  constexpr void parameter(Node& node, const Parameter& p) {
    const int index = tables_.push(p);
    if (node.parameters++ == 0) node.parameter = index;
  }
  constexpr void weight(Node& node, Shape shape, int fan_in, int fan_out, Init init, bool frozen) {
    parameter(node, {suffixed(node.name, "weight"), shape, count_, fan_in, fan_out, init,
                     frozen ? Group::frozen : Group::decay});
  }
  constexpr void bias(Node& node, int size, int fan_in, Init init, bool frozen) {
    parameter(node, {suffixed(node.name, "bias"),
                     {size},
                     count_,
                     fan_in,
                     size,
                     init,
                     frozen ? Group::frozen : Group::no_decay});
  }
  constexpr void norm_parameter(Node& node, std::string_view suffix, int channels, Init init, bool frozen) {
    parameter(node, {suffixed(node.name, suffix),
                     {channels},
                     count_,
                     1,
                     1,
                     init,
                     frozen ? Group::frozen : Group::no_decay});
  }

  // Each mistake is one static_assert and nothing after it that could fail as well.
  template <class Operation, class... Inputs>
  constexpr Tensor call(Shape shape, Inputs... x) {
    constexpr int count = sizeof...(x);
    constexpr unsigned labels = integers<Inputs...>;
    if constexpr (count < 1 || count > Node::max_inputs) {
      static_assert(sizeof(Operation) == 0, "convoy: a custom operation or loss takes 1 to 3 inputs");
    } else if constexpr (labels != 0 && labels != 1u << (count - 1)) {
      static_assert(sizeof(Operation) == 0,
                    "convoy: a custom operation or loss takes its label, if any, as the last input");
    } else if constexpr (!has_forward<Operation, count, labels>) {
      static_assert(sizeof(Operation) == 0,
                    "convoy: a custom operation or loss needs static void forward(View<const T> x, ..., "
                    "View<T> y) for T "
                    "of float and of double, with View<const i32> for a label");
    } else if constexpr (!has_backward<Operation, count, labels>) {
      static_assert(
          sizeof(Operation) == 0,
          "convoy: a custom operation or loss needs static void backward(View<const T> x, ..., View<const T> "
          "y, "
          "View<const T> dy, View<T> dx, ...) for T of float and of double, with no dx for a label");
    } else {
      Node node = begin(Op::custom, {});
      node.shape = shape;
      node.custom = &custom_calls<Operation, count, labels>;
      return place(node, x...);
    }
    report(FaultKind::reported, {});
    return Tensor{};
  }

  Tables tables_{};
  Fault fault_{};
  Name path_{}, last_{};
  int depth_ = 0, count_ = 0, losses_ = 0;
  int unnamed_[max_depth][op_count] = {};
};

}  // namespace convoy::graph
