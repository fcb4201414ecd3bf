// Tracer: the base of the builder, without the operations. It names and numbers nodes, fills tables, tracks
// scopes, and records the first fault (at run time, throws it). Works both in constant expressions and at run
// time.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include <convoy/graph/fault.hpp>
#include <convoy/graph/node.hpp>

namespace convoy::graph {

/// A value inside a model under construction.
struct Tensor {
  int node = -1;
  Shape shape;
  Kind kind = Kind::number;
  DType dtype = DType::f32;
};

/// Class indices inside a model under construction, one per row or one per position; they have no gradient.
struct Label {
  int node = -1;
  int classes = 0;
  Shape shape;
};

/// A parameter inside a model under construction. Several operations may use it; its gradient is the sum of
/// theirs.
struct Handle {
  int index = -1;
  Shape shape;
};

/// How a parameter is initialized and trained.
struct ParameterOptions {
  Init init = Init::zeros;
  int fan_in = 1, fan_out = 1;  ///< for kaiming_normal, fan_in_uniform and xavier_uniform; positive
  Group group = Group::decay;   ///< what the optimizer does with the parameter
  float deviation = 1;          ///< standard deviation, for Init::normal
};

struct NameOption {
  std::string_view name = {};
};

struct LossOptions {
  float weight = 1;  ///< positive and finite; multiplies the mean in what is minimized and reported
};

/// The tables that a trace fills; all null in the first run, which only counts entries.
struct Tables {
  Node* nodes = nullptr;
  int* edges = nullptr;
  int* uses = nullptr;
  std::uint32_t* words = nullptr;
  const CustomCalls** calls = nullptr;
  Parameter* parameters = nullptr;
  Statistic* statistics = nullptr;
  Output* outputs = nullptr;
  Metric* metrics = nullptr;
  Loss* losses = nullptr;
};

class Tracer {
 public:
  /// Throws a fault at run time as ModelError. Supplied by Builder, which knows the operations.
  using Raise = void (*)(const Fault&);

  /// The tables have `room` for this many entries. Further entries are counted, and not stored.
  constexpr Tracer(const Tables& tables, const Counts& room, const std::string_view* operation_names,
                   int operations, Raise raise)
      : tables_(tables),
        room_(room),
        operation_names_(operation_names),
        operations_(operations),
        raise_(raise) {}

  /// Creates a parameter, which operations use by its handle. The name is relative to the open scopes.
  constexpr Handle parameter(std::string_view name, Shape shape, ParameterOptions o = {}) {
    return named_parameter(within(name), shape, o);
  }
  /// The same for the parameter `layer.suffix`.
  constexpr Handle parameter_of(std::string_view layer, std::string_view suffix, Shape shape,
                                const ParameterOptions& o) {
    return named_parameter(suffixed(within(layer), suffix), shape, o);
  }

  /// Adds a loss to minimize: the mean of `x` over the rows, or over the labels that count. Several losses
  /// are summed by their weights.
  constexpr void loss(Tensor x, LossOptions o = {}) {
    last_ = Name("loss");
    if (x.shape.rank != 0) report(Common::loss_is_not_a_number, x.shape);
    if (!(o.weight > 0 && o.weight <= std::numeric_limits<float>::max()))
      report(Common::weight_is_not_positive, x.shape);
    real(x);
    made(x.node);
    push(tables_.losses, &Counts::losses, Loss{x.node, o.weight});
  }

  /// Declares `x` an output of the model under `name`.
  constexpr void output(std::string_view name, Tensor x) {
    expect_real(name, x);
    check_name({});
    made(x.node);
    push(tables_.outputs, &Counts::outputs, Output{Name(name), x.node});
  }

  class Scope;
  /// Opens a scope: until the returned guard is destroyed, `name.` precedes the names of all new nodes and
  /// parameters.
  [[nodiscard]] constexpr Scope scope(std::string_view name);
  [[nodiscard]] constexpr Scope scope(int index);

  // --- for operations: call begin, then the functions that add to the node, then place ---

  /// Starts a node of operation `op`. Its name within the open scopes is `given` or, if that is empty, the
  /// operation's name and a running number.
  constexpr Node begin(int op, std::string_view given) {
    Node node;
    node.op = op;
    node.input = counts_.edges;
    node.use = counts_.uses;
    node.statistic = counts_.statistics;
    node.word = counts_.words;
    if (given.empty())
      last_ = within(Name(operation_names_[op]).append(".").append(unnamed_[depth_][op]++));
    else
      last_ = within(given);
    check_name(".running_mean");
    node.name = last_;
    return node;
  }

  template <class A>
  constexpr void attributes(Node& node, const A& values) {
    const auto packed = std::bit_cast<Words<A>>(values);
    for (const std::uint32_t word : packed.word) push(tables_.words, &Counts::words, word);
    node.words = counts_.words - node.word;
  }

  /// Creates a parameter of the node, named `node.suffix`.
  constexpr Handle own(Node& node, std::string_view suffix, Shape shape, const ParameterOptions& o) {
    const Handle made = add_parameter(suffixed(node.name, suffix), shape, o);
    use(node, made);
    return made;
  }

  /// Adds `parameter` to the parameters of the node.
  constexpr void use(Node& node, Handle parameter) {
    made(parameter.index);
    push(tables_.uses, &Counts::uses, parameter.index);
    ++node.uses;
  }

  constexpr void statistic(Node& node, std::string_view suffix, Shape shape, float start) {
    push(tables_.statistics, &Counts::statistics, Statistic{suffixed(node.name, suffix), shape, start});
    ++node.statistics;
  }

  constexpr void call(Node& node, const CustomCalls* calls) {
    node.call = counts_.calls;
    push(tables_.calls, &Counts::calls, calls);
  }

  /// Reports a fault at `name` unless the elements of `x` are f32.
  constexpr void expect_real(std::string_view name, Tensor x) {
    last_ = Name(name);
    real(x);
  }
  constexpr void expect_real(std::string_view, Label) {}

  constexpr void add_metric(std::string_view name, MetricCall measure, StreamCall on_stream,
                            std::uint64_t identity, const int* inputs, int count) {
    last_ = Name(name);
    check_name({});
    Metric metric{last_, counts_.edges, count, measure, on_stream, identity};
    for (int i = 0; i < count; ++i) {
      made(inputs[i]);
      push(tables_.edges, &Counts::edges, inputs[i]);
    }
    push(tables_.metrics, &Counts::metrics, metric);
  }

  /// Adds node `from` to the inputs of the node.
  constexpr void edge(Node& node, int from) {
    made(from);
    push(tables_.edges, &Counts::edges, from);
    ++node.inputs;
  }

  template <class... Inputs>
  constexpr Tensor place(Node& node, Inputs... x) {
    (edge(node, x.node), ...);
    push(tables_.nodes, &Counts::nodes, node);
    return {counts_.nodes - 1, node.shape, node.kind, node.dtype};
  }

  /// Completes the node after a fault, so that tracing continues and the first fault is the one reported.
  constexpr Tensor abandon(Node& node, Tensor x) {
    node.shape = x.shape;
    node.kind = x.kind;
    return place(node, x);
  }

  /// Reports fault `which` of operation `op` at the node begun last. Only the first fault counts.
  constexpr void report(int op, int which, Shape left, Shape right = {}) {
    if (fault_.op != Fault::none) return;
    fault_ = {op, which, last_, left, right};
    if (!std::is_constant_evaluated()) raise_(fault_);
  }
  constexpr void report(Common which, Shape left, Shape right = {}) {
    report(Fault::common, static_cast<int>(which), left, right);
  }

  /// Whether the elements of `x` are f32; reports a fault if not.
  constexpr bool real(Tensor x) {
    if (x.dtype == DType::f32) return true;
    report(Common::input_is_of_another_dtype, x.shape);
    return false;
  }
  /// Whether `a` and `b` have the same shape and kind and f32 elements; reports a fault if not.
  constexpr bool alike(Tensor a, Tensor b) {
    if (!(a.shape == b.shape && a.kind == b.kind))
      return report(Common::shapes_differ, a.shape, b.shape), false;
    return real(a) && real(b);
  }
  constexpr bool image(Tensor x) {
    if (x.kind != Kind::image) return report(Common::input_is_not_an_image, x.shape), false;
    return real(x);
  }
  /// Whether `x` is a row or a sequence, whose last extent is its features.
  constexpr bool features(Tensor x) {
    if (x.kind == Kind::image || x.kind == Kind::number)
      return report(Common::input_is_an_image, x.shape), false;
    return real(x);
  }
  constexpr bool is_sequence(Tensor x) {
    if (x.kind != Kind::sequence) return report(Common::input_is_not_a_sequence, x.shape), false;
    return real(x);
  }
  constexpr bool positive(Shape extents) {
    for (int i = 0; i < extents.rank; ++i)
      if (extents[i] <= 0) return report(Common::extent_is_not_positive, extents), false;
    return true;
  }

  /// Reports a fault at the open scope unless its content is repeated at least once.
  constexpr void expect_repeated(int times) {
    last_ = path_;
    positive({times});
  }

  /// `count` as an extent of the node begun last, which it makes of `from`; reports a fault if it is too
  /// large.
  constexpr int extent(std::int64_t count, Shape from) {
    if (count <= std::numeric_limits<int>::max()) return static_cast<int>(count);
    report(Common::extent_is_too_large, from);
    return 1;
  }

  /// Reports a fault unless a value of this shape has one of the kinds.
  constexpr void few_extents(Shape shape) {
    if (shape.rank > 3) report(Common::too_many_extents, shape);
  }

  /// The first fault of the model, the absence of a loss included.
  constexpr Fault fault() const {
    if (fault_.op == Fault::none && counts_.losses == 0)
      return {Fault::common, static_cast<int>(Common::no_loss), {}, {}, {}};
    return fault_;
  }
  constexpr const Counts& counts() const { return counts_; }

 private:
  static constexpr int max_depth = 16, max_operations = 64;

  // Overloads, not a template: clang 14 does not instantiate templates during constant evaluation.
  constexpr void push(int* table, int Counts::*count, int value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }
  constexpr void push(std::uint32_t* table, int Counts::*count, std::uint32_t value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }
  constexpr void push(Node* table, int Counts::*count, const Node& value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }
  constexpr void push(Parameter* table, int Counts::*count, const Parameter& value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }
  constexpr void push(Statistic* table, int Counts::*count, const Statistic& value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }
  constexpr void push(Output* table, int Counts::*count, const Output& value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }
  constexpr void push(Metric* table, int Counts::*count, const Metric& value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }
  constexpr void push(Loss* table, int Counts::*count, const Loss& value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }
  constexpr void push(const CustomCalls** table, int Counts::*count, const CustomCalls* value) {
    const int at = counts_.*count;
    if (at < room_.*count) table[at] = value;
    counts_.*count = at + 1;
  }

  // Reports a fault if this is the index of a default Tensor, Label or Handle.
  constexpr void made(int index) {
    if (index < 0) report(Common::nothing_is_given, {});
  }
  constexpr Name within(std::string_view name) const {
    Name full = path_;
    if (!full.empty()) full.append(".");
    return full.append(name);
  }
  static constexpr Name suffixed(const Name& name, std::string_view suffix) {
    Name full = name;
    return full.append(".").append(suffix);
  }
  constexpr void check_name(std::string_view suffix) {
    if (last_.empty() || last_.text[last_.length - 1] == '.') report(Common::name_is_empty, {});
    if (!last_.overflow && last_.length + static_cast<int>(suffix.size()) <= Name::capacity) return;
    last_.overflow = false;
    report(Common::name_too_long, {});
  }
  constexpr Handle named_parameter(const Name& name, Shape shape, const ParameterOptions& o) {
    last_ = name;
    check_name({});
    positive(shape);
    positive({o.fan_in, o.fan_out});
    return add_parameter(name, shape, o);
  }
  constexpr Handle add_parameter(const Name& name, Shape shape, const ParameterOptions& o) {
    if (!(o.deviation >= 0 && o.deviation <= std::numeric_limits<float>::max()))
      report(Common::deviation_is_wrong, {});
    push(tables_.parameters, &Counts::parameters,
         Parameter{name, shape, o.fan_in, o.fan_out, o.init, o.group, o.deviation});
    return {counts_.parameters - 1, shape};
  }

  Tables tables_;
  Counts room_;
  const std::string_view* operation_names_;
  int operations_;
  Raise raise_;
  Counts counts_{};
  Fault fault_{};
  Name path_{}, last_{};
  int depth_ = 0;
  int unnamed_[max_depth][max_operations] = {};
};

class Tracer::Scope {
 public:
  constexpr Scope(Tracer& tracer, const Name& path) : tracer_(tracer), outer_(tracer.path_) {
    tracer_.path_ = path;
    if (tracer_.depth_ + 1 >= max_depth) {
      tracer_.last_ = path;
      tracer_.report(Common::scopes_too_deep, {});
      return;
    }
    entered_ = true;
    ++tracer_.depth_;
    for (int i = 0; i < tracer_.operations_; ++i) tracer_.unnamed_[tracer_.depth_][i] = 0;
  }
  constexpr ~Scope() {
    tracer_.path_ = outer_;
    if (entered_) --tracer_.depth_;
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Tracer& tracer_;
  Name outer_;
  bool entered_ = false;
};

constexpr Tracer::Scope Tracer::scope(std::string_view name) { return Scope(*this, within(name)); }
constexpr Tracer::Scope Tracer::scope(int index) { return Scope(*this, within(Name().append(index))); }

/// Trained with weight decay, or frozen.
constexpr Group decayed(bool frozen) { return frozen ? Group::frozen : Group::decay; }
/// Trained without weight decay, or frozen.
constexpr Group undecayed(bool frozen) { return frozen ? Group::frozen : Group::no_decay; }

}  // namespace convoy::graph
