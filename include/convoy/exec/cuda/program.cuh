// Program: what the stages of one batch size share while they are planned, bound and run on a GPU: values,
// memory, who writes which gradient first, and what arrives with each step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <convoy/exec/cuda/kernel/elementwise.cuh>
#include <convoy/exec/cuda/libraries.cuh>
#include <convoy/exec/cuda/parameters.cuh>
#include <convoy/exec/draws.hpp>
#include <convoy/exec/stages.hpp>

namespace convoy::exec::cuda {

/// Memory whose address is known once the program is packed: in its arena, or somewhere that does not move.
struct Location {
  int request = -1;
  void* fixed = nullptr;
  explicit operator bool() const { return request >= 0 || fixed != nullptr; }
};

struct Value;

/// How a batch norm and a ReLU made a value, for whoever computes the batch norm's gradients beside its own.
struct NormedBy {
  const Value* x = nullptr;       ///< what was normalised; null: something else made the value
  const Value* addend = nullptr;  ///< what was added before the ReLU, or null
  Location moments;               ///< of each channel the mean, then of each 1 / standard deviation
  int weight = -1, bias = -1;
  explicit operator bool() const { return x != nullptr; }
};

/// A value that a stage yields or the batch supplies, and its gradient. Images are [rows, height, width,
/// channels], whose channels in memory may be more than the plan's, the rest being zeros; other values are
/// row after row in canonical order.
struct Value {
  Shape shape;  ///< of a row; a node that is a view of this value has another
  Kind kind = Kind::number;
  DType element = DType::f32;
  int rows = 0;
  int channels = 0;  ///< of an image, in memory
  Location data;
  int owner = -1;  ///< the stage that yields it
  /// Where that stage leaves, in every forward pass, the sum of each channel and then that of its squares,
  /// f32; none if it does not. Whoever reads them extends their time.
  Location sums;
  bool wants_gradient = false;
  /// Whether the stage that yields it reads its gradient as a sum of two buffers.
  bool takes_second = false;
  int contributions = 0;
  Location gradient, second;
  /// What the GELU is of that the stage computes last, where the one stage that reads the value may take the
  /// GELU's slope as well; that stage says so, and the gradient is then that of this.
  Location before_gelu;
  bool gradient_before_gelu = false;
  NormedBy normed;
  /// Where the last to contribute leaves the gradients of the batch norm's weight and of its bias, f32. The
  /// value's gradient is then masked by the ReLU. None if nobody does.
  Location parameter_sums;

  bool is_image() const { return kind == Kind::image; }
  /// Positions of an image's map; 1 of anything else.
  int positions() const { return is_image() ? shape[1] * shape[2] : 1; }
  std::int64_t row_elements() const {
    return is_image() ? std::int64_t{channels} * positions() : shape.size();
  }
  std::int64_t elements() const { return rows * row_elements(); }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(element); }
};

/// How a consumer hands its gradient to a value.
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
  /// Adds what was written to a temporary buffer to the gradient.
  template <class T>
  void finish(const Program& program) const;

 private:
  Edge edge_ = Edge::none;
  Location target_, value_;
  std::int64_t elements_ = 0;
};

/// Where the gradient of a parameter goes; null where it is frozen.
struct ParameterGradient {
  float* pointer = nullptr;
  bool accumulate = false;
  explicit operator bool() const { return pointer != nullptr; }
};

class Program : public StagedPlan {
 public:
  /// Values are of type `element`, losses of f32.
  Program(const Plan& plan, Libraries& libraries, Parameters& parameters, DType element, int rows, int stages)
      : StagedPlan(plan, rows, stages),
        libraries_(libraries),
        parameters_(parameters),
        element_(element),
        values_(plan.nodes.size()),
        assigned_(plan.parameter_list.size()),
        draws_(plan.nodes.size(), -1) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // --- while stages are planned ---

  Libraries& libraries() const { return libraries_; }
  Parameters& parameters() const { return parameters_; }
  cudaStream_t stream() const { return libraries_.space().stream(); }
  DType element() const { return element_; }

  Value& value(int n) { return values_[root(n)]; }

  /// The value of node `n` as it stands in memory, without a place there yet.
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
  void extend(const Location& location, int time) {
    if (location.request < 0) return;
    graph::Lifetime& lifetime = lifetimes_[static_cast<std::size_t>(location.request)];
    lifetime.end = std::max(lifetime.end, time);
  }

  /// Plans a gradient for the value of node `n`, written at `time`; to be called in the order in which
  /// backward runs.
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

  /// Whether all others that read `v` have planned their gradients.
  bool contributes_last(const Value& v) {
    int readers = 0;
    for (int n = 0; n < plan_.graph.count.nodes; ++n)
      for (int i = 0; i < node(n).inputs; ++i)
        if (&value(from(n, i)) == &v && &value(n) != &v) ++readers;  // else n is a view
    return v.contributions + 1 == readers;
  }
  /// For the last to contribute, who writes the sum with what the others did, which stands at `earlier`: none
  /// where there are no others. Not where they left a second summand.
  Contribution contribute_total(Value& v, int time, Location& earlier) {
    earlier = v.gradient;
    ++v.contributions;
    v.gradient = request(v.bytes(), time, backward_time(v.owner));
    return {Edge::assign, v.gradient, v.gradient, v.elements()};
  }
  /// Makes what stands at `gradient` that of node `n` as well, if nobody has contributed to it and it wants
  /// one.
  bool share_gradient(int n, const Location& gradient) {
    Value& v = value(n);
    if (!v.wants_gradient || v.contributions > 0) return false;
    ++v.contributions;
    v.gradient = gradient;
    extend(gradient, backward_time(v.owner));
    return true;
  }

  /// Plans a gradient of parameter `p`; to be called in the order in which backward runs.
  ParameterGradient contribute_parameter(int p) {
    return {parameters_.gradient(p), assigned_[static_cast<std::size_t>(p)]++ > 0};
  }
  bool is_assigned(int p) const { return assigned_[static_cast<std::size_t>(p)] > 0; }

  /// Node `n` draws at random in each training pass.
  void draw(int n) { draws_[static_cast<std::size_t>(n)] = drawing_++; }
  int drawing() const { return drawing_; }
  /// Writes what each such node draws from in a pass.
  void write_draws(const Pass& pass, Draws* to) const {
    for (std::size_t n = 0; n < draws_.size(); ++n)
      if (draws_[n] >= 0) to[draws_[n]] = Draws(pass, plan_.nodes[n].name.view());
  }

  // --- while stages are bound ---

  /// Gives every request its place: in `shared` if that is large enough, else in memory of this program's
  /// own.
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
  /// Where the draws of a pass, the numbers of a forward pass and the scales of losses lie.
  void place_draws(const Draws* at) { draws_at_ = at; }
  void place_tally(std::int64_t* at) { tally_ = at; }
  const Draws* draws(int n) const { return draws_at_ + draws_[static_cast<std::size_t>(n)]; }
  /// Two numbers: what a classification gets right, and of how many. Null but for the first node that asks,
  /// by which the model's accuracy is measured.
  std::int64_t* take_tally() { return std::exchange(tally_, nullptr); }

  // --- while the program runs ---

  void begin(const Pass& pass) {
    mode_ = pass.mode;
    across_ = pass.across;
  }
  bool trains() const { return mode_ == Mode::train; }
  /// Null where this rank's rows are all that batch norms go by. With it a stage waits for the host, so that
  /// no graph repeats the pass.
  AcrossRanks* across() const { return across_; }

 private:
  Libraries& libraries_;
  Parameters& parameters_;
  DType element_;
  std::vector<Value> values_;
  std::vector<int> assigned_;  // how many stages write the gradient of each parameter
  std::vector<int> draws_;     // for each node, which of the pass's draws are its own; -1: none
  int drawing_ = 0;
  std::vector<graph::Lifetime> lifetimes_;
  std::vector<std::int64_t> offsets_;  // in the arena, of each request
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

/// One stage of a plan, planned for one batch size. What it enqueues depends on the mode alone where a
/// captured graph repeats the pass, which it does unless ranks meet in it.
class Stage {
 public:
  virtual ~Stage() = default;
  /// Plans backward; called for the stages in reverse, each only if its output has a gradient.
  virtual void plan_backward(Program&) {}
  /// Memory has addresses now.
  virtual void bind(Program&) = 0;
  virtual void forward(Program&) = 0;
  virtual void backward(Program&) {}

  /// Whether forward, in training, leaves the loss of this stage to backward. Whoever wants the loss before
  /// backward, or without it, calls `complete`.
  virtual bool defers() const { return false; }
  virtual void complete(Program&) {}
};

/// How the stages that an operation leads are made.
struct Make {
  std::unique_ptr<Stage> (*build)(Program&, const graph::Stage&, int index) = nullptr;
  std::uint64_t follows = 0;  ///< a bit for each operation that the kernel computes in the same stage
  constexpr explicit operator bool() const { return build != nullptr; }
};

template <class S>
std::unique_ptr<Stage> build(Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<S>(program, stage, index);
}

/// A mask of operations, for Make::follows.
template <class... Ops>
inline constexpr std::uint64_t mask_of = ((std::uint64_t{1} << graph::index_of<Ops>) | ...);

}  // namespace convoy::exec::cuda
