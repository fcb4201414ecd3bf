// Exec: the concept of an execution policy, which decides where and in which precision a plan is computed.
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
  train,     ///< normalizes by batch statistics, updates the running ones, keeps what backward needs
  evaluate,  ///< normalizes by running statistics, keeps only outputs and losses
};

/// Sums values over all ranks within a pass.
class AcrossRanks {
 public:
  /// Replaces `values` by their sums over all ranks, bit-identical on every rank. All ranks call it with
  /// equally many values, in the same order, on the thread that called forward or backward.
  virtual void sum(std::span<double> values) = 0;

 protected:
  ~AcrossRanks() = default;
};

/// The parameters of a forward pass apart from its batch. Every random number is a function of (seed, layer,
/// epoch, position in the epoch's order, element), so every layout of ranks and micro-steps draws the same
/// numbers.
struct Pass {
  Mode mode = Mode::train;
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t position = 0;  ///< of the batch's first row in the epoch's order; the other rows follow
  /// If not null, batch norms use the rows of all ranks, in Mode::train and in backward; if null, this
  /// rank's.
  AcrossRanks* across = nullptr;
};

/// Makes the rows of a batch directly in the memory of an Exec's space.
class RowMaker {
 public:
  /// Enqueues, on the stream of the Exec's space, the work that writes field k of `rows` rows to memory of
  /// that space, laid out as in BatchView. The creator of the maker has checked labels and indices.
  virtual void make(int k, int rows, void* to) = 0;
  /// Unique among the makers of this process: a captured graph repeats the work that one maker enqueued.
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
  /// Which sample of a data set each row is, for errors; empty if that is not known.
  std::span<const std::uint64_t> samples = {};
  /// Used instead of `fields` if the Exec satisfies TakesMadeRows.
  RowMaker* maker = nullptr;
};

/// The losses, metrics and label counts of a forward pass.
struct Result {
  std::span<const double> losses;   ///< for each loss of the model, summed over the rows
  std::span<const double> metrics;  ///< for each metric of the model, likewise
  std::int64_t correct = 0;  ///< labels predicted by the largest logit at the model's first cross-entropy
  std::int64_t labels = 0;   ///< labels counted at that cross-entropy
  /// The bytes `along` that were passed to the step: see RepeatsSteps.
  std::span<const std::byte> along = {};

  /// The sum of all losses.
  double loss() const {
    double sum = 0;
    for (const double x : losses) sum += x;
    return sum;
  }
};

/// An `on_final` for callers that need no call before backward is over: an Exec may then enqueue backward in
/// one piece.
struct InOnePiece {
  void operator()(std::int64_t) const {}
};

namespace detail {
// Stand-ins for callbacks of an Exec: nvcc refuses lambdas within a requires-expression.
/// Visits a number that an Exec keeps from step to step.
struct OnNumber {
  void operator()(std::string_view, std::int64_t&) const {}
};
}  // namespace detail

/// An execution policy as Trainer uses it. `E(plan, batch, options, space, kernels)` prepares batches of 1 to
/// `batch` rows. Parameters and gradients are allocated from `space`, which is the Comm's, so that no
/// exchange copies. forward and backward may return before their work is done; the work is done in the order
/// of the space's stream.
template <class E>
concept Exec = std::is_class_v<E> &&
    requires(E& e, const E& c, const BatchView& batch, const Pass& pass, int i,
             std::span<typename E::Scalar> values, std::span<const typename E::Scalar> given,
             std::span<const float> scales, Range range, const Plan& plan, const typename E::Options& options,
             typename E::Space& space, const Kernels<E>& kernels) {
  typename E::Scalar;   // element type of the arenas: float, or double for the reference
  typename E::Options;  // an aggregate with defaults that lists its fields; has `int threads`
  typename E::Make;     // type of its kernels, the elements of Kernels<E>
  requires memory::Space<typename E::Space>;
  {E(plan, i, options, space, kernels)};
  { e.space() } -> std::same_as<typename E::Space&>;
  // For logs and errors: "host", "reference".
  { E::name } -> std::convertible_to<std::string_view>;
  // "f32", "bf16"; ranks must agree on it.
  { c.precision() } -> std::convertible_to<std::string_view>;
  // A hash of the element order this Exec chose within the slots. If ranks differ, all use
  // Options::canonical.
  { c.layout_fingerprint() } -> std::same_as<std::uint64_t>;
  { c.threads() } -> std::same_as<int>;
  // How the arena stores parameter i, viewed as a matrix with a row per output: in panels of this many rows,
  // each panel column-major; 1: row-major; 0: neither.
  { c.panel(i) } -> std::same_as<std::int64_t>;
  // The arenas, laid out as the plan says; the gradient arena has only the exchanged part. Addresses are
  // those of the space.
  { e.parameters() } -> std::same_as<std::span<typename E::Scalar>>;
  { e.gradients() } -> std::same_as<std::span<typename E::Scalar>>;
  { e.statistics() } -> std::same_as<std::span<typename E::Scalar>>;
  // Copies parameter i in canonical shape (dead taps included) out of the arena, into the arena, and its
  // gradient out of the arena. The gradient is zero where taps are dead or the parameter is frozen. The spans
  // are host memory; the copy is done when the call returns.
  {e.read_parameter(i, values)};
  {e.write_parameter(i, given)};
  {e.read_gradient(i, values)};
  // Copies the live elements of parameter i, in host memory, from the plan's order to this Exec's order
  // within the slot (true) or back. It serves whatever is laid out like the parameter, such as optimizer
  // state. Another thread may call it while passes run.
  {c.reorder(i, given, values, true)};
  // Tells the Exec that an update, a broadcast or a checkpoint wrote parameters. An Exec may offer
  // `working_copy(range)` (memory/working_copy.hpp), the address of its 16-bit copy; an update that also
  // writes that copy need not call touched.
  {e.touched(range)};
  {e.forward(batch, pass)};
  // Computes gradients of the sum over losses l of `scales[l]` times loss l, summed over the rows of the last
  // forward pass in Mode::train. Calls on_final(n) once all work that makes elements [0, n) of the gradient
  // arena final is enqueued, and as often in between as it can, so that messages make progress. n never
  // decreases and ends at the arena's size. From the next call on, or once backward is over, the parameters
  // of these elements are no longer read.
  {e.backward(scales, InOnePiece{})};
  // Waits for and returns the result of the oldest forward pass whose result was not taken yet. Valid until
  // the next forward or result. Every pass has a result, and the caller must take all of them.
  { e.result() } -> std::same_as<Result>;
  // How many steps later to take a result so that the caller does not wait for it: 0 on the host.
  { E::latency } -> std::convertible_to<int>;
  // Whether loss scaling may make gradients infinite; such steps are skipped. Such an Exec shows its
  // loss-scaling state, kept from step to step, by visit_state: `visit(name, number)` may change the numbers.
  { E::may_overflow } -> std::convertible_to<bool>;
  requires(!E::may_overflow || requires { e.visit_state(detail::OnNumber{}); });
  // Whether its batch norms support Pass::across.
  { E::sums_across_ranks } -> std::convertible_to<bool>;
  // Waits for and returns output i of the plan for the rows of the last forward pass, in plain layout in host
  // memory. Valid until the next pass.
  { e.output(i) } -> std::same_as<std::span<const typename E::Scalar>>;
};

/// Whether an Exec accepts batches whose rows a RowMaker makes.
template <class E>
concept TakesMadeRows = requires {
  requires E::takes_made_rows;
};

/// Whether an Exec enqueues whole training steps by `step(batch, pass, scales, alone, before, on_final,
/// after, along)`. A step is the work that `before()` enqueues on the space's stream, forward in Mode::train,
/// backward with `on_final(n)` after the work that makes elements [0, n) of the gradients final, and the work
/// that `after()` enqueues. The few bytes `along`, in memory of the space, are returned with the result. The
/// Exec calls the functions in some steps only and repeats their enqueued work in the others. The functions
/// must therefore enqueue the same work each time, on streams that the space's stream waits for in the end,
/// and read whatever changes from memory of the space.
///
/// If a RowMaker makes the rows, a step that is not `alone` may be held back until there are
/// `steps_at_once()` of them or something else is enqueued. The functions may then be called later, and the
/// results of that many steps arrive together. A step for which other ranks wait must be `alone`.
template <class E>
concept RepeatsSteps = requires(const E& e) {
  requires E::repeats_steps;
  { e.steps_at_once() } -> std::same_as<int>;
};

/// The largest number of results that an Exec with these options may return together.
template <class E>
int most_results_at_once(const typename E::Options& options) {
  if constexpr (RepeatsSteps<E>)
    return options.steps_at_once;
  else
    return 1;
}

/// Throws ExecError for the first node of the plan without a kernel of the Exec called `name`, for plans
/// known only at run time.
template <class Table>
void expect_kernels(std::string_view name, const Plan& plan, const Table& kernels) {
  for (const auto& node : plan.nodes)
    if (!node.given && !kernels[static_cast<std::size_t>(node.op)])
      fail<ExecError>("exec: ", name, " has no kernel for the operation ", graph::name_of(node), " of ",
                      node.name);
}

/// The same for `Exec`; also throws ExecError for the first node that its kernel does not compute.
template <class Exec, class Table>
void expect_kernels(const Plan& plan, const Table& kernels) {
  expect_kernels(Exec::name, plan, kernels);
  for (int n = 0; n < plan.graph.count.nodes; ++n)
    if (!fits<Exec>(plan.graph, n)) fail<ExecError>("exec: ", explain<Exec>(plan.graph, n));
}

/// Throws ExecError unless there is a scale for each loss of the plan.
inline void expect_scales(const Plan& plan, std::span<const float> scales) {
  if (scales.size() != plan.losses.size())
    fail<ExecError>("exec: ", scales.size(), " scales for ", plan.losses.size(), " losses");
}

}  // namespace convoy::exec
