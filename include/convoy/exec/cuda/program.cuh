// Program: what the stages of one batch size share while they are planned, bound and run on a GPU: values,
// memory, the order of contributions to gradients, and the inputs of each step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <convoy/exec/cuda/compiled.hpp>
#include <convoy/exec/cuda/kernel/elementwise.cuh>
#include <convoy/exec/cuda/libraries.cuh>
#include <convoy/exec/cuda/parameters.cuh>
#include <convoy/exec/draws.hpp>
#include <convoy/exec/stages.hpp>

namespace convoy::exec::cuda {

/// Memory whose address is known once the program is packed: in its arena, or at a fixed address.
struct Location {
  int request = -1;
  void* fixed = nullptr;
  explicit operator bool() const { return request >= 0 || fixed != nullptr; }
};

struct Value;

/// The batch norm and ReLU that made a value, for a stage that computes the batch norm's gradients besides
/// its own.
struct NormedBy {
  const Value* x = nullptr;       ///< input of the batch norm; null: something else made the value
  const Value* addend = nullptr;  ///< what was added before the ReLU, or null
  Location moments;               ///< the mean of each channel, then 1 / standard deviation of each
  int weight = -1, bias = -1;
  explicit operator bool() const { return x != nullptr; }
};

/// A value that a stage yields or the batch supplies, and its gradient. Images are [rows, height, width,
/// channels]; they may have more channels in memory than in the plan, and the extra ones are zeros. Other
/// values are stored row after row in canonical order.
struct Value {
  Shape shape;  ///< of a row; a node that is a view of this value has its own
  Kind kind = Kind::number;
  DType element = DType::f32;
  int rows = 0;
  int channels = 0;  ///< of an image, in memory
  Location data;
  int owner = -1;  ///< the stage that yields it
  /// Where that stage writes, in every forward pass, the sum of each channel and then the sum of squares of
  /// each, f32; none if it does not. A stage that reads them extends their lifetime.
  Location sums;
  bool wants_gradient = false;
  /// Whether the stage that yields the value reads its gradient as the sum of `gradient` and `second`.
  bool takes_second = false;
  int contributions = 0;
  Location gradient, second;
  /// The input of the GELU that ends the yielding stage, if the only stage that reads the value may also
  /// apply the GELU's derivative. The reading stage then sets `gradient_before_gelu`, and `gradient` is that
  /// of the GELU's input.
  Location before_gelu;
  bool gradient_before_gelu = false;
  NormedBy normed;
  /// Where the batch norm writes the scale and then the shift of each channel, f16, instead of the value: its
  /// only reader computes the value from the batch norm's input. None if no reader does, and `data` is none
  /// otherwise.
  Location scale_shift;
  /// Where the last contributor writes the gradients of the batch norm's weight and bias, f32; the value's
  /// gradient is then masked by the ReLU. None if no contributor does.
  Location parameter_sums;

  bool is_image() const { return kind == Kind::image; }
  /// Positions of an image; 1 for other values.
  int positions() const { return is_image() ? shape[1] * shape[2] : 1; }
  std::int64_t row_elements() const {
    return is_image() ? std::int64_t{channels} * positions() : shape.size();
  }
  std::int64_t elements() const { return rows * row_elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(element); }
};

/// How a consumer contributes to a value's gradient.
enum class Edge : unsigned char { none, assign, accumulate, temporary };

class Program;

/// Where a stage writes a gradient, and what is left to do afterwards.
class Contribution {
 public:
  Contribution() = default;
  Contribution(Edge edge, Location target, Location value, std::int64_t elements)
      : edge_(edge), target_(target), value_(value), elements_(elements) {}
  explicit operator bool() const { return edge_ != Edge::none; }
  bool accumulates() const { return edge_ == Edge::accumulate; }
  template <class T>
  T* pointer(const Program& program) const;
  /// Adds the temporary buffer, if there is one, to the gradient.
  template <class T>
  void finish(const Program& program) const;

 private:
  Edge edge_ = Edge::none;
  Location target_, value_;
  std::int64_t elements_ = 0;
};

/// Where the gradient of a parameter goes; null if the parameter is frozen.
struct ParameterGradient {
  float* pointer = nullptr;
  bool accumulate = false;
  explicit operator bool() const { return pointer != nullptr; }
};

class Program : public StagedPlan {
 public:
  /// Values have type `element`, losses f32.
  Program(const Plan& plan, Libraries& libraries, Parameters& parameters, DType element, int rows, int stages)
      : StagedPlan(plan, rows, stages),
        libraries_(libraries),
        parameters_(parameters),
        element_(element),
        values_(plan.nodes.size()),
        draws_(plan.nodes.size(), -1) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // --- while stages are planned ---

  Libraries& libraries() const { return libraries_; }
  Parameters& parameters() const { return parameters_; }
  cudaStream_t stream() const { return libraries_.space().stream(); }
  DType element() const { return element_; }

  Value& value(int n) { return values_[root(n)]; }

  /// Describes the value of node `n` as it is stored, without memory for it yet.
  Value& describe(int n) {
    Value& v = values_[static_cast<std::size_t>(n)];
    v.shape = node(n).shape;
    v.kind = node(n).kind;
    v.element = node(n).dtype == DType::i32 ? DType::i32 : v.kind == Kind::number ? DType::f32 : element_;
    v.rows = rows_;
    v.channels = v.is_image() ? v.shape[0] : 0;
    return v;
  }
  /// The value that stage `stage` yields at node `n`.
  Value& yield(int n, int stage) {
    Value& v = describe(n);
    v.owner = stage;
    v.wants_gradient = wants_gradient(n);
    v.takes_second = true;
    v.data = request(v.bytes(), stage, v.wants_gradient ? backward_time(stage) : stage);
    return v;
  }
  /// Keeps a value until `time`.
  void keep(const Value& v, int time) { extend(v.data, time); }

  Location request(std::size_t bytes, int begin, int end) {
    lifetimes_.push_back({begin, end, static_cast<std::int64_t>(std::max<std::size_t>(bytes, 64))});
    return {static_cast<int>(lifetimes_.size()) - 1, nullptr};
  }
  /// A library's workspace. Libraries ran their plans on memory of cudaMalloc when these were chosen, so
  /// `workspace` aligns it likewise.
  Location request_workspace(std::size_t bytes, int begin, int end) {
    return request(bytes + workspace_alignment, begin, end);
  }
  void extend(const Location& location, int time) {
    if (location.request < 0) return;
    graph::Lifetime& lifetime = lifetimes_[static_cast<std::size_t>(location.request)];
    lifetime.end = std::max(lifetime.end, time);
  }

  /// Whether one stage reads `v`, and nothing else does.
  bool has_one_reader(const Value& v) {
    for (int i = 0; i < plan_.graph.count.outputs; ++i)
      if (&value(plan_.graph.outputs[i].node) == &v) return false;
    for (const graph::Metric& metric : plan_.metrics)
      for (int i = 0; i < metric.inputs; ++i)
        if (&value(plan_.graph.edges[metric.input + i]) == &v) return false;
    return readers(v) == 1;
  }
  /// Takes back the memory of a value that no stage writes.
  void withdraw(Value& v) {
    lifetimes_[static_cast<std::size_t>(v.data.request)].bytes = 0;
    v.data = {};
  }

  /// Plans a gradient of the value of node `n`, written at `time`. Calls follow the order in which backward
  /// runs.
  Contribution contribute(int n, bool can_accumulate, int time) {
    Value& v = value(n);
    if (!v.wants_gradient) return {};
    if (v.contributions++ == 0) {
      v.gradient = request(v.bytes(), time, backward_time(v.owner));
      return {Edge::assign, v.gradient, v.gradient, v.elements()};
    }
    if (can_accumulate) return {Edge::accumulate, v.gradient, v.gradient, v.elements()};
    if (v.takes_second && !v.second) {
      v.second = request(v.bytes(), time, backward_time(v.owner));
      return {Edge::assign, v.second, v.second, v.elements()};
    }
    return {Edge::temporary, request(v.bytes(), time, time), v.gradient, v.elements()};
  }

  /// Whether all other readers of `v` have planned their gradients.
  bool contributes_last(const Value& v) { return v.contributions + 1 == readers(v); }
  /// For the last contributor, which writes the total: its own gradient plus the earlier ones. These lie at
  /// `earlier`, which is empty if there are none. Only if no second summand was planned.
  Contribution contribute_total(Value& v, int time, Location& earlier) {
    earlier = v.gradient;
    ++v.contributions;
    v.gradient = request(v.bytes(), time, backward_time(v.owner));
    return {Edge::assign, v.gradient, v.gradient, v.elements()};
  }
  /// Makes the memory at `gradient` the gradient of node `n` as well, if node `n` wants one and has no
  /// contribution yet; returns whether it did.
  bool share_gradient(int n, const Location& gradient) {
    Value& v = value(n);
    if (!v.wants_gradient || v.contributions > 0) return false;
    ++v.contributions;
    v.gradient = gradient;
    extend(gradient, backward_time(v.owner));
    return true;
  }

  /// Plans a gradient of parameter `p`. Calls follow the order in which backward runs.
  ParameterGradient contribute_parameter(int p) { return {parameters_.gradient(p), assign(p)}; }

  /// Declares that node `n` draws random numbers in each training pass.
  void draw(int n) { draws_[static_cast<std::size_t>(n)] = drawing_++; }
  int drawing() const { return drawing_; }
  /// Writes the Draws of each such node for a pass.
  void write_draws(const Pass& pass, Draws* to) const {
    for (std::size_t n = 0; n < draws_.size(); ++n)
      if (draws_[n] >= 0) to[draws_[n]] = Draws(pass, plan_.nodes[n].name.view());
  }

  // --- while stages are bound ---

  /// Assigns memory to every request: in `shared` if that is large enough, or still empty and then allocated,
  /// else in memory of this program.
  void pack(memory::Array<std::byte, memory::Device>& shared) {
    const auto bytes = static_cast<std::size_t>(graph::pack(lifetimes_, last_time(), offsets_));
    memory::Array<std::byte, memory::Device>& arena =
        shared.size() == 0 || bytes <= shared.size() ? shared : own_;
    if (bytes > arena.size()) arena = memory::Array<std::byte, memory::Device>(libraries_.space(), bytes);
    arena_ = arena.data();
  }
  template <class T>
  T* address(const Location& location) const {
    if (location.request < 0) return static_cast<T*>(location.fixed);
    return reinterpret_cast<T*>(arena_ + offsets_[static_cast<std::size_t>(location.request)]);
  }
  /// The address of what `request_workspace` returned.
  void* workspace(const Location& location) const {
    const auto address = reinterpret_cast<std::uintptr_t>(this->address<std::byte>(location));
    return reinterpret_cast<void*>((address + workspace_alignment - 1) / workspace_alignment *
                                   workspace_alignment);
  }
  /// Sets the addresses of a pass's draws and of the tally.
  void place_draws(const Draws* at) { draws_at_ = at; }
  void place_tally(std::int64_t* at) { tally_ = at; }
  const Draws* draws(int n) const { return draws_at_ + draws_[static_cast<std::size_t>(n)]; }
  /// The tally, two numbers: how many labels a classification gets right, and of how many. Null except for
  /// the first node that asks, which measures the model's accuracy.
  std::int64_t* take_tally() { return std::exchange(tally_, nullptr); }

  // --- while the program runs ---

  void begin(const Pass& pass) {
    mode_ = pass.mode;
    across_ = pass.across;
  }
  bool trains() const { return mode_ == Mode::train; }
  /// Null if batch norms use the rows of this rank alone. Otherwise a stage waits for the host, so that no
  /// graph can repeat the pass.
  AcrossRanks* across() const { return across_; }

 private:
  static constexpr std::size_t workspace_alignment = 256;  // that of cudaMalloc

  int readers(const Value& v) {
    int count = 0;
    for (int n = 0; n < plan_.graph.count.nodes; ++n)
      for (int i = 0; i < node(n).inputs; ++i)
        if (&value(from(n, i)) == &v && &value(n) != &v) ++count;  // else n is a view
    return count;
  }

  Libraries& libraries_;
  Parameters& parameters_;
  DType element_;
  std::vector<Value> values_;
  std::vector<int> draws_;  // for each node, the index of its Draws in the pass; -1: none
  int drawing_ = 0;
  std::vector<graph::Lifetime> lifetimes_;
  std::vector<std::int64_t> offsets_;  // of each request in the arena
  memory::Array<std::byte, memory::Device> own_;
  std::byte* arena_ = nullptr;
  const Draws* draws_at_ = nullptr;
  std::int64_t* tally_ = nullptr;
  Mode mode_ = Mode::evaluate;
  AcrossRanks* across_ = nullptr;
};

template <class T>
T* Contribution::pointer(const Program& program) const {
  return program.address<T>(target_);
}

template <class T>
void Contribution::finish(const Program& program) const {
  if (edge_ != Edge::temporary) return;
  pass<T>(program.stream(), elements_, program.address<T>(target_), nullptr, nullptr,
          program.address<T>(value_), true);
}

/// One stage of a plan, planned for one batch size. If a captured graph repeats the pass, what the stage
/// enqueues depends only on the mode. A pass in which ranks meet is not captured.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Plans backward; called for the stages in reverse, each only if its output has a gradient.
  virtual void plan_backward(Program&) {}
  /// Called once memory has addresses.
  virtual void bind(Program&) = 0;
  virtual void forward(Program&) = 0;
  virtual void backward(Program&) {}

  /// Whether forward, in training, leaves the loss of this stage to backward. `complete` computes the loss
  /// before backward, or without it.
  virtual bool defers() const { return false; }
  virtual void complete(Program&) {}
};

/// Factory for the stages that an operation leads.
struct Make {
  std::unique_ptr<Stage> (*build)(Program&, const graph::Stage&, int index) = nullptr;
  std::uint64_t follows = 0;  ///< a bit for each operation that the kernel computes in the same stage
  constexpr explicit operator bool() const { return build != nullptr; }
};

/// Not inline, so that a declaration keeps the kernels of S out of a program (compiled.hpp).
template <class S>
std::unique_ptr<Stage> build(Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<S>(program, stage, index);
}

/// A mask of operations, for Make::follows.
template <class... Ops>
inline constexpr std::uint64_t mask_of = ((std::uint64_t{1} << graph::index_of<Ops>) | ...);

}  // namespace convoy::exec::cuda
