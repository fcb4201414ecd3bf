// Arena: an optimizer over an arena: what is decided before any update, the update of each range as it comes,
// and what happens to dead taps.
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

/// Runs a rule over parameters and gradients that lie in memory of space S.
///
/// A step is `begin`, then `update` for each range as its sums arrive, then `decay_dead`. Where `decides()`,
/// it is `begin`, `arrived` for every range, `decide`, `update` for every range, `decay_dead`; the second and
/// the third come once more where `decide` asks for that. Nothing is allocated in a step.
template <class R, memory::Space S = memory::Host>
class Arena {
  static_assert(runs_in<R, S>() || true);  // `runs_in` fails with a sentence, and once is enough

 public:
  using Options = typename Optimizer<R>::Options;

  /// `tensors` in the order in which their live ranges lie, those that are never updated left out; each live
  /// range begins on a multiple of `arena_grain` elements and owns the gap behind it. The space outlives the
  /// arena. Throws ConfigError for options that cannot be.
  Arena(S& space, const Options& options, std::span<const ArenaTensor> tensors, std::span<const Group> groups,
        const Guard& guard = {});

  /// Whether the rule updates whole matrices, so that no range that is updated may end within one.
  bool takes_matrices() const { return rule_.takes_matrices; }

  /// Those, each with the gap behind it, in ascending order.
  std::vector<Range> matrices() const {
    std::vector<Range> all;
    for (const Run& run : treatments_.live)
      if (run.matrix >= 0) all.push_back(run.range);
    return all;
  }

  /// How each tensor stands in the arenas, as ArenaTensor::panel says; 0 for those that are no matrices
  /// there. To be called before `own`.
  void set_panels(std::span<const std::int64_t> panels);

  /// Makes the state, zero, of the ranges that this rank updates (not overlapping), and of what it decays.
  /// Throws ConfigError for a range that ends within a matrix, where the rule takes these, and for a matrix
  /// that stands as the space cannot multiply it.
  void own(std::span<const Range> ranges);

  const Optimizer<R>& optimizer() const { return optimizer_; }

  /// Bytes of optimizer state on this rank.
  std::size_t state_bytes() const { return owned_.bytes(); }

  /// Whether `arrived` and `decide` are to be called in every step, before any update.
  bool decides() const { return guard_.decides() || per_tensor(); }

  /// Whether a step's verdict has the norm of the gradient. Rules that go by norms of directions look at no
  /// other unless the guard does.
  bool knows_norm() const { return guard_.decides() || (per_tensor() && !rule_.has_direction); }

  /// Whether what `decay_dead` does depends on norms that `decide` has found, so that it must have been
  /// called.
  bool decays_by_norms() const { return per_tensor() && treatments_.any_decays_dead; }

  /// Begins step `step` (counting from 1, steps that are skipped included) with learning rate `lr`. Where
  /// servers count updates of each range, before each update; where they decide, before each step.
  void begin(std::int64_t step, float lr) {
    set_step(step, lr);
    prepare();
  }
  /// The two halves of `begin`: what changes from step to step is written to memory of the space, and work
  /// that is the same in every step is enqueued.
  void set_step(std::int64_t step, float lr) {
    begun_ = {step, lr};
    space_->write(&control_.data()->step, &begun_, sizeof begun_);
  }
  void prepare();

  /// Adds the squares of the gradients of `range`, times `scale`, to what `decide` goes by, for rules that
  /// ask with those of the parameters; the pointers are those of the range's first element. The bits of a sum
  /// depend on the ranges, their order and their numbers alone, on no width of vectors and no number of
  /// threads: ranks that get the same ranges in the same order decide alike without a word. Ranks that get
  /// other ranges sum `partial()` over ranks, and must do so with the same bits on all.
  void arrived(Range range, float scale, const float* parameters, const float* gradients);

  /// Sums of squares of what arrived on this rank, in memory of the space: one number of the whole gradient,
  /// or for rules with norms of tensors two for each, of gradient and parameters. Whoever sums them over
  /// ranks writes the sums here.
  std::span<double> partial() { return {partial_.data(), partial_.size()}; }

  /// Decides, once all is in `partial()`. `parameters` is the whole arena, for the dead taps in it that count
  /// in norms of tensors. Decision::again: the rule goes by norms of directions, which only the verdict on
  /// the gradient makes known, so all ranges arrive once more; else the verdict says what becomes of the
  /// step.
  [[nodiscard]] Decision decide(const float* parameters);

  /// Updates the parameters of `range` from their gradients times `scale`, and their working copy if there is
  /// one, in a space that `writes_copies`; the pointers are those of the range's first element.
  void update(Range range, float scale, float* parameters, const float* gradients,
              const memory::WorkingCopy& copy = {});

  /// Whether updates write working copies.
  static constexpr bool writes_copies = [] {
    if constexpr (requires { Kernels<R, S>::writes_copies; })
      return Kernels<R, S>::writes_copies;
    else
      return false;
  }();

  /// Decays what has no gradient, in the whole arena at `parameters`, as part of step `step` with learning
  /// rate `lr`. Where servers make the updates, workers decay all the same, without a `begin`; but not where
  /// it `decays_by_norms`, which only the servers know.
  void decay_dead(std::int64_t step, float lr, float* parameters);
  /// Likewise, as part of the step that was begun last.
  void decay_dead(float* parameters) { decay_dead(begun_.number, begun_.lr, parameters); }

  /// The last verdict; before the first decision, that of a step that is applied. Reads memory of the space.
  Verdict verdict() const {
    Verdict last;
    space_->read(&last, &control_.data()->verdict, sizeof last);
    return last;
  }

  /// Where that lies, in memory of the space.
  const Verdict* verdict_there() const { return &control_.data()->verdict; }

  /// Steps so far that changed nothing: state, as the slots are. Reads memory of the space.
  std::int64_t skipped() const { return verdict().skipped; }
  void set_skipped(std::int64_t steps) {
    Verdict last;
    last.skipped = steps;
    space_->write(&control_.data()->verdict, &last, sizeof last);
  }

  /// Calls `visit(slot, range, state, count)` with a slot's name and the `count` floats of it, in memory of
  /// the space, that belong to the elements of `range`: slot by slot, ranges ascending.
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

  // A decision takes one round or two, by what `arrived` sums the squares of: gradients, unless nobody asks
  // for these, and then directions, if the rule has such.
  enum class Round : unsigned char { gradients, directions };
  Round last_round() const { return rule_.has_direction ? Round::directions : Round::gradients; }

  bool per_tensor() const { return rule_.per_tensor_norms; }

  void clear_partial() {  // the bits of 0.0 are those of two floats of 0
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

  // The rule makes directions from constants, which follow the verdict.
  Decision start_directions() {
    make_constants(control_.data(), nullptr, constants_.data());
    clear_partial();
    round_ = Round::directions;
    return Decision::again;
  }

  // The constants that updates go by, from the norms of the tensors.
  void finish_norms(const float* parameters);

  void make_tables();

  // What the update of the matrices that this rank owns works in.
  void make_matrix_work();

  MatrixShape shape_of(const ArenaTensor& tensor, const Range& part) const {
    return {tensor.rows, part.size() / tensor.rows, tensor.panel};
  }

  static constexpr Range everything{0, std::numeric_limits<std::int64_t>::max()};

  // The pointers are those of the range's first element.
  Passage passage(const RunTable<S>& table, Range range, const std::byte* constants, float* parameters,
                  const float* gradients, float scale);

  // The passage over run `r` of a table as a matrix, which lies at `part`.
  void apply_matrix(const RunTable<S>& table, int r, Range part, const Passage& pass);

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
  RunTable<S> live_table_, dead_table_;  // placed
  memory::Array<Control, S> control_;    // of updates, of what has no gradient
  memory::Array<double, S> partial_;
  memory::Array<std::byte, S> constants_;  // in the same order
  memory::Array<float, S> state_;
  memory::Array<double, S> squares_work_;
  Matrices matrix_work_;
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
    fail<ConfigError>(
        "optimizer ", rule_.name,
        " multiplies whole matrices, which is there for memory of processors and of NVIDIA GPUs, "
        "not of the space ",
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
    std::vector<MatrixShape> shapes;
    for (const Run& run : live_table_.runs())
      if (run.matrix >= 0 && run.has_state()) {
        const ArenaTensor& tensor = tensors_[static_cast<std::size_t>(run.matrix)];
        shapes.push_back(shape_of(tensor, tensor.live));
      }
    if (treatments_.any_matrix) matrix_work_.emplace(*space_, rule_.matrix_needs, shapes);
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
  // What adds up squares only reads the parameters.
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
  // Dead taps have no gradients, and no direction where they do not decay.
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
    apply_matrix(live_table_, r, live, pass);
  }
  if (elements) Kernels<R, S>::apply(*space_, optimizer_, pass);
}

template <class R, memory::Space S>
void Arena<R, S>::apply_matrix([[maybe_unused]] const RunTable<S>& table, [[maybe_unused]] int r,
                               [[maybe_unused]] Range part, [[maybe_unused]] const Passage& pass) {
  if constexpr (MultipliesIn<R, S>) {
    const Run& run = table.runs()[static_cast<std::size_t>(r)];
    const ArenaTensor& tensor = tensors_[static_cast<std::size_t>(run.matrix)];
    const std::int64_t skip = part.begin - pass.over.range.begin;
    MatrixPass m{.shape = shape_of(tensor, part),
                 .all_columns = (tensor.live.size() + tensor.dead.size()) / tensor.rows,
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
    // A server among the workers has begun another step in the meantime, or nobody has begun any.
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
