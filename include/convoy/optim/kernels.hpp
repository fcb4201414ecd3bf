// Kernels: the operations of an optimizer that read and write memory of a space, implemented per space.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <convoy/core/hd.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/memory/working_copy.hpp>
#include <convoy/optim/guard.hpp>
#include <convoy/optim/matrix.hpp>
#include <convoy/optim/optimizer.hpp>
#include <convoy/optim/runs.hpp>

namespace convoy::optim {

/// The number of a step and its learning rate.
struct Step {
  std::int64_t number = 1;  ///< counting from 1, skipped steps included
  float lr = 0;             ///< after the schedule
};

/// The data that change from step to step. They are in memory of the space, because a captured graph replays
/// its arguments.
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

/// One pass over a range of an arena. Each run in the range has its own constants and state. All pointers are
/// to memory of the space.
struct Passage {
  RunsWithin over;
  Runs runs;
  float* parameters = nullptr;       ///< at the range's first element, as are the next two
  const float* gradients = nullptr;  ///< null: all zero
  memory::WorkingCopy copy = {};     ///< of the parameters; null if there is none
  float scale = 1;
  float* state = nullptr;  ///< slot s of a run begins at state + run.state + s * stride
  std::int64_t stride = 0;
  const std::byte* constants = nullptr;  ///< those of a run are at constants + run.constants *
                                         ///< constants_bytes
  std::size_t constants_bytes = 0;
  const Verdict* verdict = nullptr;  ///< null: no decision, the pass is applied as it is

  CONVOY_HD const void* constants_of(const Run& run) const {
    return constants + static_cast<std::size_t>(run.constants) * constants_bytes;
  }
};

/// Which squares of a Passage are summed, and where to.
struct Squares {
  bool of_directions = false;  ///< else of gradients times the passage's scale
  bool of_parameters = false;  ///< also of parameters
  bool by_constants = false;   ///< each set of constants has its own pair of sums; else one pair for all
  double* sums = nullptr;      ///< pairs: first of gradients or directions, then of parameters

  CONVOY_HD double* sums_of(const Run& run) const { return sums + (by_constants ? 2 * run.constants : 0); }
};

/// Norms from a pair of sums of squares. Gradients were summed before the verdict, so its factor is applied
/// here; directions are computed from gradients to which it is already applied.
CONVOY_HD inline Norms norms_of(const double* squares, bool of_directions, const Verdict& verdict) {
  const double factor = of_directions ? 1.0 : static_cast<double>(verdict.factor);
  return {static_cast<float>(std::sqrt(squares[0]) * factor), static_cast<float>(std::sqrt(squares[1]))};
}

/// The kernels of rule R in space S; without them, use of R in S does not compile. Pointers are to memory of
/// the space; references are to host memory, which is read before a call returns.
///
///   `constants`     writes the constants of each of `count` treatments, `bytes` apart, for step
///                   control->step.number minus the number of skipped steps; `norms` (or null) holds for each
///                   a pair of sums of squares, of gradients (or directions) and of parameters
///   `decide`        makes the verdict from the sums of squares of `count` parts of the gradient, `apart`
///                   numbers apart
///   `squares`       adds up the Squares of a Passage; those of directions only where there is state, and
///                   only if the step is not skipped. The bits of a sum depend only on the ranges, their
///                   order and their values. `work` has room for two numbers per part of the table
///   `apply`         applies a Passage to every run that has state, except matrices
///   `apply_matrix`  applies a MatrixPass by the MatrixWork of the space, for rules that update whole
///                   matrices; a space without it does not support such rules
template <class R, class S>
struct Kernels;

namespace detail {

template <class R, class S>
concept HasUpdateOfMatrices = requires(const Optimizer<R>& optimizer, MatrixWork<S>& work,
                                       const MatrixPass& matrix) {
  optimizer.update_matrix(work, matrix);
};

}  // namespace detail

template <class R>
struct Kernels<R, memory::Host> {
  static void constants(memory::Host&, const Optimizer<R>& optimizer, const Treatment* treatments,
                        std::size_t count, const Control* control, const double* norms, std::byte* into,
                        std::size_t bytes) {
    const Verdict& verdict = control->verdict;
    for (const Treatment* treatment = treatments; treatment != treatments + count; ++treatment) {
      UpdatePass pass{control->step.number - verdict.skipped, control->step.lr * treatment->lr_scale,
                      treatment->weight_decay};
      if (norms != nullptr) {
        pass.norms = norms_of(norms, optimizer.facts().has_direction, verdict);
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

  static void squares(memory::Host& space, const Optimizer<R>& optimizer, const Passage& pass,
                      const Squares& what, double*) {
    float scale = pass.scale;
    const bool moves = applies(pass.verdict, scale);
    for_each_part(pass, [&](const Run& run, const Part& part) {
      double* const sums = what.sums_of(run);
      if (!what.of_directions) {
        if (part.gradients != nullptr) space.sum_squares(part.gradients, part.size, pass.scale, sums);
      } else if (moves && run.has_state()) {
        *sums += optimizer.direction_squares(space.threads(), part.parameters, part.gradients, scale,
                                             part.state, pass.stride, part.size, pass.constants_of(run));
      }
      if (what.of_parameters) space.sum_squares(part.parameters, part.size, 1.0f, sums + 1);
    });
  }

  static void apply(memory::Host& space, const Optimizer<R>& optimizer, const Passage& pass) {
    float scale = pass.scale;
    if (!applies(pass.verdict, scale)) return;
    for_each_part(pass, [&](const Run& run, const Part& part) {
      if (run.has_state() && run.matrix < 0)
        optimizer.apply(space.threads(), part.parameters, part.gradients, scale, part.state, pass.stride,
                        part.size, pass.constants_of(run));
    });
  }

  static void apply_matrix(memory::Host&, const Optimizer<R>& optimizer, MatrixWork<memory::Host>& work,
                           MatrixPass matrix) requires detail::HasUpdateOfMatrices<R, memory::Host> {
    if (applies(matrix.verdict, matrix.scale)) optimizer.update_matrix(work, matrix);
  }

 private:
  // The part of a run that lies in the range.
  struct Part {
    float* parameters;
    const float* gradients;
    float* state;
    std::int64_t size;
  };
  template <class Visit>
  static void for_each_part(const Passage& pass, Visit&& visit) {
    const Range& range = pass.over.range;
    for (const Run* run = pass.runs.run + pass.over.begin; run != pass.runs.run + pass.over.end; ++run) {
      const Range part{std::max(range.begin, run->range.begin), std::min(range.end, run->range.end)};
      const std::int64_t skip = part.begin - range.begin;
      visit(*run, Part{pass.parameters + skip, pass.gradients == nullptr ? nullptr : pass.gradients + skip,
                       pass.state == nullptr || !run->has_state()
                           ? nullptr
                           : pass.state + run->state + (part.begin - run->range.begin),
                       part.size()});
    }
  }
};

/// Whether rule R runs in space S.
template <class R, class S>
concept RunsIn = requires(S& space, const Optimizer<R>& optimizer, const Passage& pass) {
  Kernels<R, S>::apply(space, optimizer, pass);
};

/// Whether rule R can update whole matrices in space S.
template <class R, class S>
concept MultipliesIn = requires(S& space, const Optimizer<R>& optimizer, MatrixWork<S>& work,
                                const MatrixPass& matrix) {
  Kernels<R, S>::apply_matrix(space, optimizer, work, matrix);
};

/// Whether an optimizer runs in a space; if not, the only failing static_assert says why, and the value is
/// false.
template <class R, class S>
consteval bool runs_in() {
  if constexpr (!RunsIn<R, S>) {
    static_assert(RunsIn<R, S>,
                  "convoy: this optimizer does not run in this space: specialize optim::Kernels for both");
    return false;
  } else if constexpr (detail::TakesMatrices<R> && !MultipliesIn<R, S>) {
    static_assert(MultipliesIn<R, S>,
                  "convoy: this optimizer multiplies whole matrices, which this space cannot: compute on "
                  "exec::Host, exec::Reference or exec::Cuda, or name another optimizer");
    return false;
  } else {
    return true;
  }
}

}  // namespace convoy::optim
