// Exec: where a plan is computed and in which precision. What Trainer asks of one, as a concept.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>

#include <convoy/graph/plan.hpp>

namespace convoy::exec {

/// Where an Exec's arenas lie.
enum class Space : unsigned char { host, device };

enum class Mode : unsigned char {
  train,     ///< batch statistics; keeps what backward needs; moves the running statistics
  evaluate,  ///< running statistics; nothing is kept but outputs and losses
};

/// One batch in plain host memory. `fields[k]` belongs to the k-th input or label node of the plan, in order
/// of definition: `rows` times the node's shape, f32 for an input, i32 for a label, in canonical layout (an
/// image as [rows, channels, height, width]).
struct BatchView {
  std::span<const void* const> fields;
  int rows = 0;
};

/// What a forward pass measured, summed over the rows of the batch.
struct Result {
  double loss = 0;           ///< of all losses of the model
  std::int64_t correct = 0;  ///< rows whose largest logit is the label's, at the model's first cross-entropy
};

/// What Trainer asks of an Exec. `E(plan, batch, options, arenas)` prepares batches of 1 to `batch` rows;
/// parameters and gradients come from the memory resource `arenas`, which is the Comm's, so that no exchange
/// copies.
template <class E>
concept Exec = std::is_class_v<E> &&
    requires(E& e, const E& c, const BatchView& batch, int i, std::span<typename E::Scalar> values,
             std::span<const typename E::Scalar> given, double scale) {
  typename E::Scalar;   // of the arenas: float, or double for the reference
  typename E::Options;  // an aggregate with defaults; has `int threads`
  requires std::constructible_from<E, const Plan&, int, const typename E::Options&,
                                   std::pmr::memory_resource*>;
  { E::space } -> std::convertible_to<Space>;
  // "f32", "bf16": part of what ranks must agree on.
  { c.precision() } -> std::convertible_to<std::string_view>;
  // A hash of the element order this Exec chose within the slots; equal on all ranks, or all use
  // Options::canonical.
  { c.layout_fingerprint() } -> std::same_as<std::uint64_t>;
  { c.threads() } -> std::same_as<int>;
  // The arenas, laid out as the plan says; gradients are the exchanged part.
  { e.parameters() } -> std::same_as<std::span<typename E::Scalar>>;
  { e.gradients() } -> std::same_as<std::span<typename E::Scalar>>;
  { e.statistics() } -> std::same_as<std::span<typename E::Scalar>>;
  // Copies parameter i in canonical shape (dead taps included) out of, or into, the arena.
  {c.read_parameter(i, values)};
  {e.write_parameter(i, given)};
  { e.forward(batch, Mode::train) } -> std::same_as<Result>;
  // Gradients of `scale` times the sum of the losses over the rows of the last forward pass in Mode::train.
  // Calls on_final(n) whenever elements [0, n) of the gradient arena have become final, and as often in
  // between as it can, so that messages go on; n never shrinks and ends at the arena's size. From the next
  // call on, or once backward is over, the parameters of these elements are not read any more.
  {e.backward(scale, [](std::int64_t) {})};
  // The value of output k of the plan for the rows of the last forward pass, in plain layout.
  { e.output(i) } -> std::same_as<std::span<const typename E::Scalar>>;
  // Metric k of the plan, summed over the rows of the last forward pass.
  { e.metric(i) } -> std::same_as<double>;
};

}  // namespace convoy::exec
