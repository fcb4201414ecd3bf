// Exec: where a plan is computed and in which precision. What Trainer asks of one, as a concept.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include <convoy/exec/kernel.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/space.hpp>

namespace convoy::exec {

enum class Mode : unsigned char {
  train,     ///< batch statistics; keeps what backward needs; moves the running statistics
  evaluate,  ///< running statistics; nothing is kept but outputs and losses
};

/// Sums over ranks in the middle of a pass.
class AcrossRanks {
 public:
  /// Every rank ends with the sums of all ranks' values, in the same bits. All ranks call it with as many
  /// values, in the same order, on the thread that called forward or backward.
  virtual void sum(std::span<double> values) = 0;

 protected:
  ~AcrossRanks() = default;
};

/// What a forward pass is beside its batch. Whatever is drawn at random is a function of (seed, layer, epoch,
/// position in the epoch's order, element), so that every layout of ranks and micro-steps draws the same.
struct Pass {
  Mode mode = Mode::train;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t position = 0;  ///< of the batch's first row in the order of the epoch; the others follow
  /// With it batch norms go by the rows of all ranks, in Mode::train and in backward; null: by this rank's.
  AcrossRanks* across = nullptr;
};

/// Makes the rows of a batch where an Exec wants them.
class RowMaker {
 public:
  /// Enqueues, on the stream of the Exec's space, what writes field k of `rows` rows to memory of that space,
  /// as BatchView has it. Whoever made the maker has checked labels and indices.
  virtual void make(int k, int rows, void* to) = 0;
  /// No other maker's of this process: a captured graph repeats what one maker enqueued.
  std::uint64_t serial() const { return serial_; }

 protected:
  RowMaker() = default;
  RowMaker(const RowMaker&) = delete;
  RowMaker& operator=(const RowMaker&) = delete;
  ~RowMaker() = default;

 private:
  static inline std::atomic<std::uint64_t> made_ = 0;
  const std::uint64_t serial_ = ++made_;
};

/// One batch in plain host memory. `fields[k]` belongs to the k-th input or label node of the plan, in order
/// of definition: `rows` times the node's shape, in the node's element type, in canonical layout (an image as
/// [rows, channels, height, width]).
struct BatchView {
  std::span<const void* const> fields;
  int rows = 0;
  /// In place of `fields`, where the Exec TakesMadeRows.
  RowMaker* maker = nullptr;
};

/// What a forward pass measured.
struct Result {
  std::span<const double> losses;   ///< for each loss of the model, summed over the rows
  std::span<const double> metrics;  ///< for each metric of the model, likewise
  std::int64_t correct = 0;         ///< labels that had the largest logit, at the model's first cross-entropy
  std::int64_t labels = 0;          ///< labels that count there
  /// What a whole step was to bring along: see RepeatsSteps.
  std::span<const std::byte> along = {};

  /// The sum of all losses.
  double loss() const {
    double sum = 0;
    for (const double x : losses) sum += x;
    return sum;
  }
};

/// Who calls backward and wants to hear nothing before it is over: an Exec may then enqueue it in one piece.
struct InOnePiece {
  void operator()(std::int64_t) const {}
};

namespace detail {
// Stand-ins for what members of an Exec call, for within a requires-expression nvcc refuses lambdas.
/// Sees a number that an Exec keeps from step to step.
struct OnNumber {
  void operator()(std::string_view, std::int64_t&) const {}
};
}  // namespace detail

/// What Trainer asks of an Exec. `E(plan, batch, options, space, kernels)` prepares batches of 1 to `batch`
/// rows; parameters and gradients come from `space`, which is the Comm's, so that no exchange copies. forward
/// and backward may return before their work is done: it is done in the order of the space's stream.
template <class E>
concept Exec = std::is_class_v<E> &&
    requires(E& e, const E& c, const BatchView& batch, const Pass& pass, int i,
             std::span<typename E::Scalar> values, std::span<const typename E::Scalar> given,
             std::span<const float> scales, Range range, const Plan& plan, const typename E::Options& options,
             typename E::Space& space, const Kernels<E>& kernels) {
  typename E::Scalar;   // of the arenas: float, or double for the reference
  typename E::Options;  // an aggregate with defaults that lists its fields; has `int threads`
  typename E::Make;     // what its kernels are made of
  requires memory::Space<typename E::Space>;
  {E(plan, i, options, space, kernels)};
  { e.space() } -> std::same_as<typename E::Space&>;
  // "host", "reference": for people.
  { E::name } -> std::convertible_to<std::string_view>;
  // "f32", "bf16": part of what ranks must agree on.
  { c.precision() } -> std::convertible_to<std::string_view>;
  // A hash of the element order this Exec chose within the slots; equal on all ranks, or all use
  // Options::canonical.
  { c.layout_fingerprint() } -> std::same_as<std::uint64_t>;
  { c.threads() } -> std::same_as<int>;
  // How parameter i stands in the arena as a matrix of a row for each output: in panels of so many rows, each
  // column after column; 1 is row after row, 0 is neither.
  { c.panel(i) } -> std::same_as<std::int64_t>;
  // The arenas, laid out as the plan says; gradients are the exchanged part. Addresses of the space.
  { e.parameters() } -> std::same_as<std::span<typename E::Scalar>>;
  { e.gradients() } -> std::same_as<std::span<typename E::Scalar>>;
  { e.statistics() } -> std::same_as<std::span<typename E::Scalar>>;
  // Copies parameter i in canonical shape (dead taps included) out of, or into, the arena; and its gradient,
  // zero where taps are dead or the parameter is frozen. Host memory; done when the call returns.
  {e.read_parameter(i, values)};
  {e.write_parameter(i, given)};
  {e.read_gradient(i, values)};
  // Copies the live elements of parameter i, in host memory, from the order of the plan into that of the slot
  // (true) or back: for what lies as the parameter does, such as an optimizer's state.
  {c.reorder(i, given, values, true)};
  // Someone else wrote parameters: an update, a broadcast, a checkpoint. An Exec may say by
  // `working_copy(range)` (memory/working_copy.hpp) where its copy in 16 bits lies; an update that writes the
  // copy too need not be told of.
  {e.touched(range)};
  {e.forward(batch, pass)};
  // Gradients of the sum over losses l of `scales[l]` times loss l, summed over the rows of the last forward
  // pass in Mode::train. Calls on_final(n) when everything is enqueued that makes elements [0, n) of the
  // gradient arena final, and as often in between as it can, so that messages go on; n never shrinks and ends
  // at the arena's size. From the next call on, or once backward is over, the parameters of these elements
  // are not read any more.
  {e.backward(scales, InOnePiece{})};
  // What the oldest forward pass measured whose result was not taken yet; waits for it. Valid until the next
  // forward or result. Every pass has one, and all are to be taken.
  { e.result() } -> std::same_as<Result>;
  // How many steps later a result is best taken, so that nobody waits: 0 on the host.
  { E::latency } -> std::convertible_to<int>;
  // Whether gradients may be infinite though nothing is wrong, because losses are scaled; such steps are
  // skipped. Such an Exec shows what it keeps of them from step to step: `visit(name, number)` may change the
  // numbers.
  { E::may_overflow } -> std::convertible_to<bool>;
  requires(!E::may_overflow || requires { e.visit_state(detail::OnNumber{}); });
  // Whether its batch norms heed Pass::across.
  { E::sums_across_ranks } -> std::convertible_to<bool>;
  // The value of output k of the plan for the rows of the last forward pass, in plain layout in host memory;
  // waits for it. Valid until the next pass.
  { e.output(i) } -> std::same_as<std::span<const typename E::Scalar>>;
};

/// Whether an Exec computes batches whose rows a RowMaker makes.
template <class E>
concept TakesMadeRows = requires {
  requires E::takes_made_rows;
};

/// Whether an Exec enqueues whole steps: `step(batch, pass, scales, alone, before, on_final, after, along)`
/// is what `before()` enqueues on the space's stream, forward in Mode::train, backward, with `on_final(n)`
/// behind what makes elements [0, n) of the gradients final, and what `after()` enqueues; the few bytes
/// `along`, in memory of the space, come with the result. The functions are called in some steps only, and
/// stand for what they enqueued in the others: they enqueue the same work each time, on streams that the
/// space's waits for in the end, and read what changes from memory of the space.
///
/// Where a RowMaker makes the rows, a step that is not to run `alone` may be kept back until there are
/// `steps_at_once()` of them or something else is enqueued. So the functions may be called later, and results
/// of so many come together. A step for which other ranks wait runs alone.
template <class E>
concept RepeatsSteps = requires(const E& e) {
  requires E::repeats_steps;
  { e.steps_at_once() } -> std::same_as<int>;
};

/// How many results of an Exec with these options may come together.
template <class E>
int most_results_at_once(const typename E::Options& options) {
  if constexpr (RepeatsSteps<E>)
    return options.steps_at_once;
  else
    return 1;
}

/// Throws ExecError at the first node of the plan without a kernel of the Exec called `name`: for plans that
/// are known at run time only.
template <class Table>
void expect_kernels(std::string_view name, const Plan& plan, const Table& kernels) {
  for (const auto& node : plan.nodes)
    if (!node.given && !kernels[static_cast<std::size_t>(node.op)])
      fail<ExecError>("exec: ", name, " has no kernel for the operation ", graph::name_of(node), " of ",
                      node.name);
}

/// Likewise of `Exec`, and at the first node that its kernel does not compute.
template <class Exec, class Table>
void expect_kernels(const Plan& plan, const Table& kernels) {
  expect_kernels(Exec::name, plan, kernels);
  for (int n = 0; n < plan.graph.count.nodes; ++n)
    if (!fits<Exec>(plan.graph, n)) fail<ExecError>("exec: ", explain<Exec>(plan.graph, n));
}

}  // namespace convoy::exec
