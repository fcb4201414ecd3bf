// Optimizer: a rule with its options, in the form that an Arena uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/core/finite.hpp>
#include <convoy/core/hd.hpp>
#include <convoy/optim/apply.hpp>
#include <convoy/optim/rule.hpp>

namespace convoy::optim {

/// What the constants of one step depend on, for parameters that are treated alike.
struct UpdatePass {
  std::int64_t step = 1;   ///< counting from 1, without skipped steps
  float lr = 0;            ///< after schedule and group
  float weight_decay = 0;  ///< of the group; ignored by rules without weight decay
  Norms norms = {};        ///< for rules with per-tensor norms
};

/// The properties of a rule with its options.
struct RuleFacts {
  std::string_view name;
  int slots = 0;         ///< floats of state per parameter
  int matrix_slots = 0;  ///< floats of state per element of a matrix updated as a whole
  bool has_weight_decay = false;
  bool per_tensor_norms = false;
  bool has_direction = false;     ///< whether the norms are of directions instead of gradients
  bool takes_matrices = false;    ///< whether it updates whole matrices
  MatrixNeeds matrix_needs = {};  ///< the scratch matrices and products of a matrix update
  std::size_t constants_bytes = 0;
  float lr = 0;
  float weight_decay = 0;  ///< the rule's own, for groups that set none; 0 if it has none
};

/// Rule `R` with options.
template <class R>
class Optimizer {
  static_assert(is_rule<R>());

 public:
  using Options = typename R::Options;

  /// Throws ConfigError if the learning rate or the weight decay is negative or not finite, or if the rule
  /// rejects its options.
  explicit Optimizer(const Options& options) : options_(options) {
    const RuleFacts rule = facts();
    const auto check = [](float value, std::string_view what) {
      if (!is_finite(value) || value < 0)
        fail<ConfigError>("optimizer ", R::name, ": the ", what, " must be a number of at least 0, not ",
                          value);
    };
    check(rule.lr, "learning rate");
    check(rule.weight_decay, "weight decay");
    if constexpr (requires { R::check(options_); }) R::check(options_);
  }

  static constexpr bool has_weight_decay() {
    return requires(const Options& o) { detail::innermost(o).weight_decay; };
  }
  static constexpr bool per_tensor_norms() { return detail::WantsNorms<R>; }
  static constexpr bool has_direction() { return detail::HasDirection<R>; }
  static constexpr bool takes_matrices() { return detail::TakesMatrices<R>; }

  RuleFacts facts() const {
    RuleFacts rule{.name = R::name,
                   .slots = R::slots,
                   .matrix_slots = R::slots,
                   .has_weight_decay = has_weight_decay(),
                   .per_tensor_norms = per_tensor_norms(),
                   .has_direction = has_direction(),
                   .takes_matrices = takes_matrices(),
                   .constants_bytes = sizeof(typename R::Constants),
                   .lr = static_cast<float>(detail::innermost(options_).lr)};
    if constexpr (takes_matrices()) {
      rule.matrix_slots = R::matrix_slots;
      rule.matrix_needs = R::matrix_needs;
    }
    if constexpr (has_weight_decay())
      rule.weight_decay = static_cast<float>(detail::innermost(options_).weight_decay);
    return rule;
  }

  /// The name of a slot in checkpoints.
  static std::string slot_name(int slot) {
    if constexpr (requires { std::string_view(R::slot_names[0]); })
      return std::string(R::slot_names[static_cast<std::size_t>(slot)]);
    else
      return concat("slot", slot);
  }

  /// Visits `prefix` with the rule's name, then the options as `prefix.lr` and so on.
  void for_each_text(std::string_view prefix, fields::TextVisit visit) const {
    visit(prefix, std::string(R::name), true);
    fields::for_each_text(prefix, options_, visit);
  }

  /// Writes the rule's constants for a pass, `constants_bytes` of `facts()` in all.
  CONVOY_HD_OF_USER void constants(void* into, const UpdatePass& pass) const {
    Options options = options_;
    if constexpr (has_weight_decay()) {
      auto& decay = detail::innermost(options).weight_decay;
      decay = static_cast<std::remove_reference_t<decltype(decay)>>(pass.weight_decay);
    }
    typename R::Constants made;
    if constexpr (per_tensor_norms())
      made = R::at(options, pass.step, pass.lr, pass.norms);
    else
      made = R::at(options, pass.step, pass.lr);
    memcpy(into, &made, sizeof made);
  }

  /// Updates `n` parameters from gradients times `scale`; null gradients are zero. See optim::apply.
  void apply(int threads, float* parameters, const float* gradients, float scale, float* state,
             std::int64_t stride, std::int64_t n, const void* constants) const {
    typename R::Constants k;
    std::memcpy(static_cast<void*>(&k), constants, sizeof k);
    optim::apply<R>(threads, parameters, gradients, scale, state, stride, n, k);
  }

  /// The sum of the squares of the directions in which `apply` would move the same parameters; 0 for a rule
  /// without directions.
  double direction_squares([[maybe_unused]] int threads, [[maybe_unused]] const float* parameters,
                           [[maybe_unused]] const float* gradients, [[maybe_unused]] float scale,
                           [[maybe_unused]] const float* state, [[maybe_unused]] std::int64_t stride,
                           [[maybe_unused]] std::int64_t n, [[maybe_unused]] const void* constants) const {
    if constexpr (has_direction()) {
      typename R::Constants k;
      std::memcpy(static_cast<void*>(&k), constants, sizeof k);
      return optim::direction_squares<R>(threads, parameters, gradients, scale, state, stride, n, k);
    } else {
      return 0;
    }
  }

  /// Updates one matrix.
  template <class Work>
  void update_matrix(Work& work, const MatrixPass& pass) const requires detail::TakesMatrices<R> {
    R::update_matrix(work, pass, options_);
  }

 private:
  Options options_;
};

}  // namespace convoy::optim
