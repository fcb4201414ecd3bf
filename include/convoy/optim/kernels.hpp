// Kernels: what of an optimizer reads and writes memory of a space, for each space its own.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include <convoy/core/hd.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/optim/guard.hpp>
#include <convoy/optim/optimizer.hpp>

namespace convoy::optim {

/// The place of a step in a run.
struct Step {
  std::int64_t number = 1;  ///< counting from 1, those that were skipped included
  float lr = 0;             ///< after the schedule
};

/// What changes from step to step, in memory of the space, because a captured graph replays its arguments.
struct Control {
  Step step;
  Verdict verdict;
};

/// How the parameters of one set of constants are treated.
struct Treatment {
  float lr_scale = 1;
  float weight_decay = 0;
  bool frozen = false;
  friend bool operator==(const Treatment&, const Treatment&) = default;
};

/// One pass over a range whose parameters have the same constants. All pointers are of the space.
struct Passage {
  float* parameters = nullptr;
  const float* gradients = nullptr;  ///< null: all zero
  float scale = 1;
  float* state = nullptr;  ///< slot s begins at state + s * stride
  std::int64_t stride = 0, size = 0;
  const void* constants = nullptr;
  const Verdict* verdict = nullptr;  ///< null: nothing was decided, so the pass is made as it is
};

/// Whether the step of a passage is applied, with the factor on its gradients if so.
CONVOY_HD inline bool applies(const Passage& pass, float& scale) {
  if (pass.verdict == nullptr) return true;
  scale *= pass.verdict->factor;
  return pass.verdict->apply != 0;
}

/// Norms from a pair of sums of squares. Gradients were summed before the verdict, directions are made from
/// what it left of them.
CONVOY_HD inline Norms norms_of(const double* squares, bool of_directions, const Verdict& verdict) {
  const double factor = of_directions ? 1.0 : static_cast<double>(verdict.factor);
  return {static_cast<float>(std::sqrt(squares[0]) * factor), static_cast<float>(std::sqrt(squares[1]))};
}

/// The kernels of rule R in space S; a space without them does not compile. Pointers are of the space, what
/// is given by reference is the host's and is read before a call returns.
///
///   `constants`          writes the constants of each treatment, `bytes` apart, for step number
///                        control->step.number minus those that were skipped; `norms` (or null) is a pair of
///                        sums of squares for each, of gradients (or directions) and parameters
///   `decide`             the verdict from the sums of squares of `count` parts of the gradient, `apart`
///                        numbers apart
///   `direction_squares`  adds the squares of the directions of a Passage to `sum`, unless its step is
///                        skipped; called for rules that have a direction
///   `apply`              one Passage
///   `apply_matrix`       one Passage over a matrix, whose shape and work the MatrixPass says, for rules that
///                        take these; a space may be without, and then refuses such rules
template <class R, class S>
struct Kernels;

template <class R>
struct Kernels<R, memory::Host> {
  static void constants(memory::Host&, const Optimizer<R>& optimizer, std::span<const Treatment> treatments,
                        const Control* control, const double* norms, std::byte* into, std::size_t bytes) {
    const Verdict& verdict = control->verdict;
    for (const Treatment& treatment : treatments) {
      Pass pass{control->step.number - verdict.skipped, control->step.lr * treatment.lr_scale,
                treatment.weight_decay};
      if (norms != nullptr) {
        pass.norms = norms_of(norms, optimizer.has_direction(), verdict);
        norms += 2;
      }
      optimizer.constants(into, pass);
      into += bytes;
    }
  }

  static void decide(memory::Host&, const Guard& guard, const double* squares, std::int64_t count,
                     std::int64_t apart, Verdict* verdict) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += squares[i * apart];
    judge(guard, sum, *verdict);
  }

  static void direction_squares(memory::Host& space, const Optimizer<R>& optimizer, const Passage& pass,
                                double* sum) {
    float scale = pass.scale;
    if (!applies(pass, scale)) return;
    *sum += optimizer.direction_squares(space.threads(), pass.parameters, pass.gradients, scale, pass.state,
                                        pass.stride, pass.size, pass.constants);
  }

  static void apply(memory::Host& space, const Optimizer<R>& optimizer, const Passage& pass) {
    float scale = pass.scale;
    if (!applies(pass, scale)) return;
    optimizer.apply(space.threads(), pass.parameters, pass.gradients, scale, pass.state, pass.stride,
                    pass.size, pass.constants);
  }

  static void apply_matrix(memory::Host& space, const Optimizer<R>& optimizer, const Passage& pass,
                           MatrixPass matrix) {
    matrix.scale = pass.scale;
    if (!applies(pass, matrix.scale)) return;
    matrix.parameters = pass.parameters;
    matrix.gradients = pass.gradients;
    matrix.state = pass.state;
    matrix.stride = pass.stride;
    optimizer.update_matrix(space.threads(), matrix, pass.constants);
  }
};

/// Whether rules run in a space.
template <class R, class S>
concept RunsIn = requires(S& space, const Optimizer<R>& optimizer, const Passage& pass) {
  Kernels<R, S>::apply(space, optimizer, pass);
};

/// Whether rules may take matrices in a space.
template <class R, class S>
concept MultipliesIn = requires(S& space, const Optimizer<R>& optimizer, const Passage& pass,
                                const MatrixPass& matrix) {
  Kernels<R, S>::apply_matrix(space, optimizer, pass, matrix);
};

/// Whether an optimizer runs in a space; if not, the one failing static_assert says why, and the value is
/// false.
template <class R, class S>
consteval bool runs_in() {
  if constexpr (!RunsIn<R, S>) {
    static_assert(RunsIn<R, S>,
                  "convoy: this optimizer does not run in this space: specialise optim::Kernels for both");
    return false;
  } else if constexpr (detail::TakesMatrices<R> && !MultipliesIn<R, S>) {
    static_assert(MultipliesIn<R, S>,
                  "convoy: this optimizer multiplies whole matrices, which is there for memory of the host "
                  "only: compute on exec::Host or exec::Reference, or name another optimizer");
    return false;
  } else {
    return true;
  }
}

}  // namespace convoy::optim
