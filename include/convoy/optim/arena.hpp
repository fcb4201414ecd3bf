// Arena: runs an optimizer over an arena: the decision before any update, the update of each range as it
// arrives, and the decay of dead taps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/any.hpp>
#include <convoy/optim/groups.hpp>
#include <convoy/optim/guard.hpp>
#include <convoy/optim/kernels.hpp>
#include <convoy/optim/matrix_host.hpp>
#include <convoy/optim/optimizer.hpp>
#include <convoy/optim/ownership.hpp>
#include <convoy/optim/runs.hpp>
#include <convoy/optim/sgd.hpp>
#include <convoy/optim/treatments.hpp>

namespace convoy::optim {

/// Runs a rule over parameters and gradients in memory of space S.
///
/// A step is `begin`, then `update` for each range as its sums arrive, then `decay_dead`. If `decides()`, a
/// step is `begin`, `arrived` for every range, `decide`, `update` for every range, `decay_dead`. If `decide`
/// returns Decision::again, `arrived` for every range and `decide` are called once more. A step allocates no
/// memory.
template <class R, memory::Space S = memory::Host>
class Arena {
  static_assert(runs_in<R, S>() || true);  // `runs_in` itself reports the failure

 public:
  using Options = typename Optimizer<R>::Options;

  /// `tensors` are in the order of their live ranges, without those that are never updated. Each live range
  /// begins at a multiple of `arena_grain` elements and owns the gap after it. The space must outlive the
  /// arena. Throws ConfigError for invalid options.
  Arena(S& space, const Options& options, std::span<const ArenaTensor> tensors, std::span<const Group> groups,
        const Guard& guard = {});

  /// Whether the rule updates whole matrices. If so, an updated range must not end within a matrix.
  bool takes_matrices() const { return rule_.takes_matrices; }

  /// The ranges of these matrices, each with the gap after it, in ascending order.
  std::vector<Range> matrices() const {
    std::vector<Range> all;
    for (const Run& run : treatments_.live)
      if (run.matrix >= 0) all.push_back(run.range);
    return all;
  }

  /// Sets ArenaTensor::panel of each tensor, its storage layout in the arenas; 0 if it is not stored as a
  /// matrix. Must be called before `own`.
  void set_panels(std::span<const std::int64_t> panels);

  /// Allocates zero state for the ranges that this rank updates, which must not overlap, and for the dead
  /// taps that decay. Throws ConfigError if the rule updates whole matrices and a range ends within one, or
  /// if a matrix has a storage layout in which the space cannot multiply it.
  void own(std::span<const Range> ranges);

  const Optimizer<R>& optimizer() const { return optimizer_; }

  /// Bytes of optimizer state on this rank.
  std::size_t state_bytes() const { return owned_.bytes(); }

  /// Whether `arrived` and `decide` must be called in every step before any update.
  bool decides() const { return guard_.decides() || per_tensor(); }

  /// Whether a step's verdict has the norm of the gradient. A rule that uses norms of directions does not
  /// compute it, but the guard may.
  bool knows_norm() const { return guard_.decides() || (per_tensor() && !rule_.has_direction); }

  /// Whether `decay_dead` depends on norms found by `decide`, which must then be called before.
  bool decays_by_norms() const { return per_tensor() && treatments_.any_decays_dead; }

  /// Begins step `step` (counting from 1, skipped steps included) with learning rate `lr`. Servers that count
  /// the updates of each range call it before each update; servers that decide call it before each step.
  void begin(std::int64_t step, float lr) {
    set_step(step, lr);
    prepare();
  }
  /// The two halves of `begin`. `set_step` writes what changes from step to step to memory of the space;
  /// `prepare` enqueues the work that is the same in every step.
  void set_step(std::int64_t step, float lr) {
    begun_ = {step, lr};
    space_->write(&control_.data()->step, &begun_, sizeof begun_);
  }
  void prepare();

  /// Adds the squares of the gradients of `range`, scaled by `scale`, to the sums that `decide` uses; for
  /// rules with per-tensor norms, also the squares of the parameters. The pointers are to the range's first
  /// element. The bits of a sum depend only on the ranges, their order and their values, not on the vector
  /// width or the number of threads. Ranks that get the same ranges in the same order therefore decide alike
  /// without communication. Ranks that get different ranges must sum `partial()` over ranks, with bitwise
  /// equal results on all ranks.
  void arrived(Range range, float scale, const float* parameters, const float* gradients);

  /// The sums of squares of the ranges that arrived on this rank, in memory of the space: one number for the
  /// whole gradient or, for rules with per-tensor norms, two per tensor, of its gradient (or direction) and
  /// of its parameters. A Comm that sums them over ranks writes the result back here.
  std::span<double> partial() { return {partial_.data(), partial_.size()}; }

  /// Decides, once `partial()` is complete. `parameters` is the whole arena, because its dead taps count in
  /// per-tensor norms. Returns Decision::again if the rule uses norms of directions, which depend on the
  /// verdict on the gradient: `arrived` must then be called again for all ranges. Otherwise returns
  /// Decision::apply, and the verdict in memory of the space tells whether the step is skipped.
  [[nodiscard]] Decision decide(const float* parameters);

  /// Updates the parameters of `range` from their gradients times `scale`, and their working copy if one is
  /// given, in a space that `writes_copies`. The pointers are to the range's first element.
  void update(Range range, float scale, float* parameters, const float* gradients,
              const memory::WorkingCopy& copy = {});

  /// Whether updates write working copies.
  static constexpr bool writes_copies = [] {
    if constexpr (requires { Kernels<R, S>::writes_copies; })
      return Kernels<R, S>::writes_copies;
    else
      return false;
  }();

  /// What other ranks have decided about a step of which this rank updates nothing; see decay_dead.
  void decided(Decision decision) {
    Verdict theirs = verdict();
    theirs.apply = decision == Decision::apply ? 1 : 0;
    theirs.skipped += 1 - theirs.apply;
    space_->write(&control_.data()->verdict, &theirs, sizeof theirs);
  }

  /// Decays the dead taps in the whole arena at `parameters`, as part of step `step` with learning rate `lr`.
  /// If servers make the updates, workers call this too, without `begin`, and after `decided` if they update
  /// nothing; except if `decays_by_norms()`, because only the servers know the norms.
  void decay_dead(std::int64_t step, float lr, float* parameters);
  /// The same as part of the step begun last.
  void decay_dead(float* parameters) { decay_dead(begun_.number, begun_.lr, parameters); }

  /// The last verdict; before the first decision, the verdict of an applied step. Reads memory of the space.
  Verdict verdict() const {
    Verdict last;
    space_->read(&last, &control_.data()->verdict, sizeof last);
    return last;
  }

  /// The address of the last verdict, in memory of the space.
  const Verdict* verdict_there() const { return &control_.data()->verdict; }

  /// The number of skipped steps so far. Like the slots, part of the optimizer's state. Reads memory of the
  /// space.
  std::int64_t skipped() const { return verdict().skipped; }
  void set_skipped(std::int64_t steps) {
    Verdict last;
    last.skipped = steps;
    space_->write(&control_.data()->verdict, &last, sizeof last);
  }

  /// Calls `visit(slot, range, state, count)` with a slot's name, a range of elements, and their `count`
  /// floats of the slot in memory of the space: slot by slot, ranges ascending.
  template <class Visit>
  void visit_state(Visit&& visit) {
    for (int s = 0; s < rule_.slots; ++s) {
      const std::string name = optimizer_.slot_name(s);
      for (const Ownership::Part& part : owned_.parts())
        if (s < part.slots)
          visit(std::string_view(name), part.range, state_.data() + s * owned_.stride() + part.state,
                part.range.size());
    }
  }

 private:
  static constexpr std::size_t aligned(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  // A decision takes one or two rounds of `arrived`. The first sums squares of gradients, if their norm is
  // needed; the last sums squares of directions, if the rule has directions.
  enum class Round : unsigned char { gradients, directions };
  Round last_round() const { return rule_.has_direction ? Round::directions : Round::gradients; }

  bool per_tensor() const { return rule_.per_tensor_norms; }

  void clear_partial() {  // a double of 0.0 has the bits of two floats of 0
    space_->fill(reinterpret_cast<float*>(partial_.data()), static_cast<std::int64_t>(2 * partial_.size()),
                 0.0f);
  }

  void make_constants(const Control* control, const double* norms, std::byte* into) {
    Kernels<R, S>::constants(*space_, optimizer_, treatments_there_.data(), treatments_.list.size(), control,
                             norms, into, constants_bytes_);
  }

  // The verdict on the gradient.
  void judge() {
    const auto count = static_cast<std::int64_t>(partial_.size());
    Kernels<R, S>::decide(*space_, guard_, partial_.data(), per_tensor() ? count / 2 : count,
                          per_tensor() ? 2 : 1, &control_.data()->verdict);
  }

  // Directions are computed from constants, which depend on the verdict.
  Decision start_directions() {
    make_constants(control_.data(), nullptr, constants_.data());
    clear_partial();
    round_ = Round::directions;
    return Decision::again;
  }

  // Makes the constants for the updates from the norms of the tensors.
  void finish_norms(const float* parameters);

  void make_tables();

  // Allocates the scratch memory for updates of this rank's matrices.
  void make_matrix_work();

  MatrixShape shape_of(const ArenaTensor& tensor, const Range& part) const {
    return {tensor.rows, part.size() / tensor.rows, tensor.panel};
  }

  static std::int64_t all_columns(const ArenaTensor& tensor) {
    return (tensor.live.size() + tensor.dead.size()) / tensor.rows;
  }

  static constexpr Range everything{0, std::numeric_limits<std::int64_t>::max()};

  // The pointers are to the range's first element.
  Passage passage(const RunTable<S>& table, Range range, const std::byte* constants, float* parameters,
                  const float* gradients, float scale);

  // Applies a passage to run `r` of a table, a matrix at `part` of the arena.
  void apply_matrix(const RunTable<S>& table, int r, Range part, const Passage& pass);
  // Applies a passage to the matrices in it, those of one shape together if the space can do that.
  void apply_matrices(const Passage& pass);

  // The matrices of one shape that this rank updates.
  struct Alike {
    MatrixShape shape;
    std::int64_t all_columns = 1;
    std::vector<int> runs = {};                 // of live_table_, ascending
    memory::Array<MatrixPlace, S> places = {};  // of each
  };

  struct NoMatrices {};
  using Matrices = std::conditional_t<MultipliesIn<R, S>, std::optional<MatrixWork<S>>, NoMatrices>;

  S* space_;
  Optimizer<R> optimizer_;
  Guard guard_;
  std::vector<ArenaTensor> tensors_;
  RuleFacts rule_;
  Treatments treatments_;
  Ownership owned_;
  Round round_ = Round::gradients;
  Step begun_{0, 0};
  std::size_t constants_bytes_ = 0;
  memory::Array<Treatment, S> treatments_there_;
  RunTable<S> live_table_, dead_table_;  // with the places of their state
  memory::Array<Control, S> control_;    // [0] for updates, [1] for dead taps
  memory::Array<double, S> partial_;
  memory::Array<std::byte, S> constants_;  // first half for updates, second half for dead taps
  memory::Array<float, S> state_;
  memory::Array<double, S> squares_work_;
  Matrices matrix_work_;
  std::vector<Alike> alike_;
};

template <class R, memory::Space S>
[[gnu::cold]] Arena<R, S>::Arena(S& space, const Options& options, std::span<const ArenaTensor> tensors,
                                 std::span<const Group> groups, const Guard& guard)
    : space_(&space),
      optimizer_(options),
      guard_(guard),
      tensors_(tensors.begin(), tensors.end()),
      rule_(optimizer_.facts()),
      treatments_(treatments_of(rule_, tensors_, groups)),
      control_(space, 2) {
  guard_.check();
  const Control fresh;
  for (int i = 0; i < 2; ++i) space_->write(control_.data() + i, &fresh, sizeof fresh);
  if (treatments_.any_matrix && !MultipliesIn<R, S>)
    fail<ConfigError>("optimizer ", rule_.name,
                      " multiplies whole matrices, which is implemented for host memory and NVIDIA GPUs, but "
                      "not for the space ",
                      S::name, "; choose another optimizer, or compute on one of these");
  treatments_there_ = memory::Array<Treatment, S>(space, treatments_.list.size());
  space.write(treatments_there_.data(), treatments_.list.data(), treatments_there_.bytes());
  make_tables();
  if (decides()) partial_ = memory::Array<double, S>(space, per_tensor() ? 2 * tensors_.size() : 1);
  constants_bytes_ = aligned(rule_.constants_bytes);
  constants_ = memory::Array<std::byte, S>(space, 2 * constants_bytes_ * treatments_.list.size());
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::own(std::span<const Range> ranges) {
  owned_ = Ownership(rule_, treatments_, tensors_, ranges);
  state_ = memory::Array<float, S>(*space_, static_cast<std::size_t>(owned_.floats()));
  make_tables();
  make_matrix_work();
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::make_matrix_work() {
  if constexpr (MultipliesIn<R, S>) {
    matrix_work_.reset();
    alike_.clear();
    std::vector<MatrixShape> shapes;
    const auto& runs = live_table_.runs();
    for (std::size_t r = 0; r < runs.size(); ++r)
      if (runs[r].matrix >= 0 && runs[r].has_state()) {
        const ArenaTensor& tensor = tensors_[static_cast<std::size_t>(runs[r].matrix)];
        const MatrixShape shape = shapes.emplace_back(shape_of(tensor, tensor.live));
        const std::int64_t columns = all_columns(tensor);
        auto found = std::find_if(alike_.begin(), alike_.end(), [&](const Alike& other) {
          return other.shape == shape && other.all_columns == columns;
        });
        if (found == alike_.end()) found = alike_.insert(found, Alike{shape, columns});
        found->runs.push_back(static_cast<int>(r));
      }
    if (treatments_.any_matrix) matrix_work_.emplace(*space_, rule_.matrix_needs, shapes);
    for (Alike& alike : alike_) {
      if (matrix_work_->most(alike.shape) == 1) continue;
      std::vector<MatrixPlace> places;
      for (const int r : alike.runs) {
        const Run& run = runs[static_cast<std::size_t>(r)];
        places.push_back(
            {run.range.begin, run.state, run.constants * static_cast<std::int64_t>(constants_bytes_)});
      }
      alike.places = memory::Array<MatrixPlace, S>(*space_, places.size());
      space_->write(alike.places.data(), places.data(), alike.places.bytes());
    }
  }
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::make_tables() {
  live_table_ = RunTable<S>(*space_, owned_.placed(treatments_.live));
  dead_table_ = RunTable<S>(*space_, owned_.placed(treatments_.dead));
  if (per_tensor() || (decides() && treatments_.any_frozen))
    squares_work_ = memory::Array<double, S>(*space_, 2 * std::max(live_table_.parts(), dead_table_.parts()));
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::set_panels(std::span<const std::int64_t> panels) {
  for (std::size_t t = 0; t < tensors_.size(); ++t) tensors_[t].panel = panels[t];
}

template <class R, memory::Space S>
void Arena<R, S>::prepare() {
  if (decides()) clear_partial();
  round_ = guard_.decides() ? Round::gradients : last_round();
  if (!per_tensor() || round_ == Round::directions)
    make_constants(control_.data(), nullptr, constants_.data());
}

template <class R, memory::Space S>
void Arena<R, S>::arrived(Range range, float scale, const float* parameters, const float* gradients) {
  if (!per_tensor() && !treatments_.any_frozen)
    return space_->sum_squares(gradients, range.size(), scale, partial_.data());
  // `squares` only reads the parameters.
  Kernels<R, S>::squares(
      *space_, optimizer_,
      passage(live_table_, range, constants_.data(), const_cast<float*>(parameters), gradients, scale),
      {.of_directions = round_ == Round::directions,
       .of_parameters = per_tensor() && round_ == last_round(),
       .by_constants = per_tensor(),
       .sums = partial_.data()},
      squares_work_.data());
}

template <class R, memory::Space S>
Decision Arena<R, S>::decide(const float* parameters) {
  if (round_ == Round::gradients) judge();
  if (!per_tensor()) return Decision::apply;
  if (round_ != last_round()) return start_directions();
  finish_norms(parameters);
  return Decision::apply;
}

template <class R, memory::Space S>
void Arena<R, S>::finish_norms(const float* parameters) {
  // Dead taps have no gradient, and no direction unless they decay.
  if (!treatments_.dead.empty())
    Kernels<R, S>::squares(
        *space_, optimizer_,
        passage(dead_table_, everything, constants_.data(), const_cast<float*>(parameters), nullptr, 0.0f),
        {.of_directions = round_ == Round::directions,
         .of_parameters = true,
         .by_constants = true,
         .sums = partial_.data()},
        squares_work_.data());
  make_constants(control_.data(), partial_.data(), constants_.data());
}

template <class R, memory::Space S>
void Arena<R, S>::update(Range range, float scale, float* parameters, const float* gradients,
                         const memory::WorkingCopy& copy) {
  Passage pass = passage(live_table_, range, constants_.data(), parameters, gradients, scale);
  if (pass.over.range.empty()) return;
  if (copy.at != nullptr)
    pass.copy = {static_cast<std::byte*>(copy.at) +
                     static_cast<std::size_t>(pass.over.range.begin - range.begin) * size_of(copy.type),
                 copy.type};
  bool elements = false;
  for (int r = pass.over.begin; r < pass.over.end; ++r) {
    const Run& run = live_table_.runs()[static_cast<std::size_t>(r)];
    const std::int64_t begin = std::max(range.begin, run.range.begin),
                       end = std::min(range.end, run.range.end);
    if (!run.has_state()) fail("the optimizer has no state for element ", begin, " on this rank");
    elements = elements || run.matrix < 0;
    if (run.matrix < 0) continue;
    const Range& live = tensors_[static_cast<std::size_t>(run.matrix)].live;
    if (begin != live.begin || end < live.end)
      fail("optimizer ", rule_.name, ": elements ", begin, " to ", end,
           " are a part of a matrix, which is updated as a whole");
  }
  apply_matrices(pass);
  if (elements) Kernels<R, S>::apply(*space_, optimizer_, pass);
}

template <class R, memory::Space S>
void Arena<R, S>::apply_matrices([[maybe_unused]] const Passage& pass) {
  if constexpr (MultipliesIn<R, S>)
    for (const Alike& alike : alike_) {
      const auto begin = std::lower_bound(alike.runs.begin(), alike.runs.end(), pass.over.begin),
                 end = std::lower_bound(begin, alike.runs.end(), pass.over.end);
      const int most = matrix_work_->most(alike.shape);
      int count = 1;
      for (auto next = begin; next != end; next += count) {
        count = static_cast<int>(std::min<std::ptrdiff_t>(most, end - next));
        if (count == 1) {
          const Run& run = live_table_.runs()[static_cast<std::size_t>(*next)];
          apply_matrix(live_table_, *next, tensors_[static_cast<std::size_t>(run.matrix)].live, pass);
          continue;
        }
        Kernels<R, S>::apply_matrix(*space_, optimizer_, *matrix_work_,
                                    {.shape = alike.shape,
                                     .all_columns = alike.all_columns,
                                     .parameters = pass.parameters,
                                     .gradients = pass.gradients,
                                     .scale = pass.scale,
                                     .copy = pass.copy,
                                     .state = pass.state,
                                     .stride = pass.stride,
                                     .constants = pass.constants,
                                     .verdict = pass.verdict,
                                     .count = count,
                                     .places = alike.places.data() + (next - alike.runs.begin()),
                                     .first = pass.over.range.begin});
      }
    }
}

template <class R, memory::Space S>
void Arena<R, S>::apply_matrix([[maybe_unused]] const RunTable<S>& table, [[maybe_unused]] int r,
                               [[maybe_unused]] Range part, [[maybe_unused]] const Passage& pass) {
  if constexpr (MultipliesIn<R, S>) {
    const Run& run = table.runs()[static_cast<std::size_t>(r)];
    const ArenaTensor& tensor = tensors_[static_cast<std::size_t>(run.matrix)];
    const std::int64_t skip = part.begin - pass.over.range.begin;
    MatrixPass m{.shape = shape_of(tensor, part),
                 .all_columns = all_columns(tensor),
                 .parameters = pass.parameters + skip,
                 .gradients = pass.gradients == nullptr ? nullptr : pass.gradients + skip,
                 .scale = pass.scale,
                 .copy = pass.copy,
                 .state = pass.state + run.state,
                 .stride = pass.stride,
                 .constants = pass.constants_of(run),
                 .verdict = pass.verdict};
    if (m.copy.at != nullptr)
      m.copy.at = static_cast<std::byte*>(m.copy.at) + static_cast<std::size_t>(skip) * size_of(m.copy.type);
    Kernels<R, S>::apply_matrix(*space_, optimizer_, *matrix_work_, m);
  }
}

template <class R, memory::Space S>
void Arena<R, S>::decay_dead(std::int64_t step, float lr, float* parameters) {
  if (!treatments_.any_decays_dead) return;
  const std::byte* constants = constants_.data();
  if (begun_.number != step || begun_.lr != lr) {
    // A server on a worker's rank has begun another step in the meantime, or no step has been begun.
    Control* own = control_.data() + 1;
    const Step given{step, lr};
    space_->write(&own->step, &given, sizeof given);
    space_->copy(&own->verdict, &control_.data()->verdict, sizeof(Verdict));
    std::byte* made = constants_.data() + constants_.size() / 2;
    make_constants(own, per_tensor() ? partial_.data() : nullptr, made);
    constants = made;
  }
  const Passage pass = passage(dead_table_, everything, constants, parameters, nullptr, 0.0f);
  bool elements = false;
  for (int r = pass.over.begin; r < pass.over.end; ++r) {
    const Run& run = dead_table_.runs()[static_cast<std::size_t>(r)];
    if (!treatments_.decays(run)) continue;
    if (!run.has_state()) fail("the optimizer has no state for element ", run.range.begin, " on this rank");
    elements = elements || run.matrix < 0;
    if (run.matrix >= 0) apply_matrix(dead_table_, r, run.range, pass);
  }
  if (elements) Kernels<R, S>::apply(*space_, optimizer_, pass);
}

template <class R, memory::Space S>
Passage Arena<R, S>::passage(const RunTable<S>& table, Range range, const std::byte* constants,
                             float* parameters, const float* gradients, float scale) {
  const RunsWithin over = table.within(range);
  const std::int64_t skip = over.range.empty() ? 0 : over.range.begin - range.begin;
  return {.over = over,
          .runs = table.view(),
          .parameters = parameters + skip,
          .gradients = gradients == nullptr ? nullptr : gradients + skip,
          .scale = scale,
          .state = state_.data(),
          .stride = owned_.stride(),
          .constants = constants,
          .constants_bytes = constants_bytes_,
          .verdict = decides() ? &control_.data()->verdict : nullptr};
}

CONVOY_INSTANTIATE(class Arena<Any>);
CONVOY_INSTANTIATE(class Arena<Sgd>);
CONVOY_INSTANTIATE(class Arena<Adam>);

}  // namespace convoy::optim
