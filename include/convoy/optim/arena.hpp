// Arena: an optimizer over an arena: its state, how each range is treated, what is decided before any update,
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
#include <convoy/optim/sgd.hpp>

namespace convoy::optim {

/// One parameter in an arena. Alignment gaps between parameters hold zeros.
struct ArenaTensor {
  Range live;              ///< in the exchanged part
  Range dead;              ///< taps that get no gradient and are only decayed; empty: none
  int group = 0;           ///< of Groups::list
  std::int64_t rows = 0;   ///< of the tensor as a matrix, for rules that take these; 0: it is none
  std::int64_t panel = 1;  ///< how its live part stands in the arenas, as MatrixShape says
};

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
  /// range begins on a multiple of `grain` elements and owns the gap behind it. The space outlives the arena.
  /// Throws ConfigError for options that cannot be.
  Arena(S& space, const Options& options, std::span<const ArenaTensor> tensors, std::span<const Group> groups,
        const Guard& guard = {});

  /// Elements to which live ranges are aligned.
  static constexpr std::int64_t grain = alignment / sizeof(float);

  /// Whether the rule updates whole matrices, so that no range that is updated may end within one.
  bool takes_matrices() const { return optimizer_.takes_matrices(); }

  /// Those, each with the gap behind it, in ascending order.
  std::vector<Range> matrices() const {
    std::vector<Range> all;
    for (const Run& run : runs_)
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
  const Guard& guard() const { return guard_; }

  /// Bytes of optimizer state on this rank.
  std::size_t state_bytes() const {
    std::int64_t size = 0;
    for (const Owned& owned : owned_) size += owned.range.size() * owned.slots;
    return static_cast<std::size_t>(size) * sizeof(float);
  }

  /// Whether `arrived` and `decide` are to be called in every step, before any update.
  bool decides() const { return guard_.decides() || per_tensor(); }

  /// Whether a step's verdict has the norm of the gradient. Rules that go by norms of directions look at no
  /// other unless the guard does.
  bool knows_norm() const { return guard_.decides() || (per_tensor() && !optimizer_.has_direction()); }

  /// Whether what `decay_dead` does depends on norms that `decide` has found, so that it must have been
  /// called.
  bool decays_by_norms() const { return per_tensor() && any_decays_dead_; }

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
    for (int s = 0; s < optimizer_.slots(); ++s) {
      const std::string name = optimizer_.slot_name(s);
      for (const Owned& owned : owned_)
        if (s < owned.slots)
          visit(std::string_view(name), owned.range, state_.data() + s * stride_ + owned.state,
                owned.range.size());
    }
  }

 private:
  // A run of elements whose state lies together. That of matrices lies behind all others', so that the last
  // slots, which they do not have, end before it.
  struct Owned {
    Range range;
    int slots;
    std::int64_t state = 0;
  };

  static constexpr std::size_t aligned(std::size_t bytes) {
    return (bytes + alignment - 1) / alignment * alignment;
  }

  bool per_tensor() const { return optimizer_.per_tensor_norms(); }

  // Whether what arrives is for norms of directions.
  bool directs() const { return optimizer_.has_direction() && directs_; }

  void clear_partial() {  // the bits of 0.0 are those of two floats of 0
    space_->fill(reinterpret_cast<float*>(partial_.data()), static_cast<std::int64_t>(2 * partial_.size()),
                 0.0f);
  }

  void treat(std::span<const Group> groups);

  Treatment treatment_of(const Group& group) const;

  // Cuts a range that this rank owns where matrices begin and end.
  void own_parts(Range range);

  // The index of a treatment's constants; with norms of tensors each tensor has its own.
  int constants_of(const Treatment& treatment);

  void make_constants(const Control* control, const double* norms, std::byte* into) {
    Kernels<R, S>::constants(*space_, optimizer_, treatments_there_.data(), treatments_.size(), control,
                             norms, into, constants_bytes_);
  }

  bool decays(const Run& dead) const {
    return treatments_[static_cast<std::size_t>(dead.constants)].weight_decay != 0;
  }

  // Runs cut where what this rank owns begins and ends, with the place of their state.
  std::vector<Run> placed(std::span<const Run> runs) const;

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
  std::vector<Treatment> treatments_;  // one for each set of constants
  std::vector<Run> runs_, dead_;       // that are not frozen; without state
  std::vector<Owned> owned_;
  bool any_frozen_ = false, any_decays_dead_ = false, any_matrix_ = false, directs_ = false;
  Step begun_{0, 0};
  std::int64_t stride_ = 0;
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
      control_(space, 2) {
  guard_.check();
  const Control fresh;
  for (int i = 0; i < 2; ++i) space_->write(control_.data() + i, &fresh, sizeof fresh);
  treat(groups);
  treatments_there_ = memory::Array<Treatment, S>(space, treatments_.size());
  space.write(treatments_there_.data(), treatments_.data(), treatments_there_.bytes());
  make_tables();
  if (decides()) partial_ = memory::Array<double, S>(space, per_tensor() ? 2 * tensors_.size() : 1);
  constants_bytes_ = aligned(optimizer_.constants_bytes());
  constants_ = memory::Array<std::byte, S>(space, 2 * constants_bytes_ * treatments_.size());
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::own(std::span<const Range> ranges) {
  std::vector<Range> all(ranges.begin(), ranges.end());
  for (const Run& dead : dead_)
    if (decays(dead)) all.push_back(dead.range);
  std::sort(all.begin(), all.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  owned_.clear();
  for (const Range& range : all)
    if (!range.empty()) own_parts(range);
  std::int64_t size = 0;
  const auto place = [&](bool all_slots) {
    for (Owned& owned : owned_)
      if ((owned.slots == optimizer_.slots()) == all_slots) {
        // A vector of parameters has a vector of state.
        size += ((owned.range.begin - size) % grain + grain) % grain;
        owned.state = size;
        size += owned.range.size();
      }
    size = (size + grain - 1) / grain * grain;
  };
  place(true);
  const std::int64_t in_last = size;
  place(false);
  stride_ = size;
  const std::int64_t floats = optimizer_.slots() > 0 ? stride_ * (optimizer_.slots() - 1) + in_last : 0;
  state_ = memory::Array<float, S>(*space_, static_cast<std::size_t>(floats));
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
    if (any_matrix_) matrix_work_.emplace(*space_, optimizer_.matrix_needs(), shapes);
  }
}

template <class R, memory::Space S>
[[gnu::cold]] std::vector<Run> Arena<R, S>::placed(std::span<const Run> runs) const {
  std::vector<Run> all;
  auto owned = owned_.begin();
  for (Run run : runs) {
    const std::int64_t end = run.range.end;
    while (run.range.begin < end) {
      while (owned != owned_.end() && owned->range.end <= run.range.begin) ++owned;
      const bool own = owned != owned_.end() && owned->range.begin <= run.range.begin;
      const std::int64_t next = owned == owned_.end() ? end : own ? owned->range.end : owned->range.begin;
      run.range.end = std::min(end, next);
      run.state = own ? owned->state + (run.range.begin - owned->range.begin) : -1;
      all.push_back(run);
      run.range.begin = run.range.end;
    }
  }
  return all;
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::make_tables() {
  live_table_ = RunTable<S>(*space_, placed(runs_));
  dead_table_ = RunTable<S>(*space_, placed(dead_));
  if (per_tensor() || (decides() && any_frozen_))
    squares_work_ = memory::Array<double, S>(*space_, 2 * std::max(live_table_.parts(), dead_table_.parts()));
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::own_parts(Range range) {
  const auto add = [&](Range part, int slots) {
    if (part.empty()) return;
    if (!owned_.empty() && owned_.back().range.end == part.begin && owned_.back().slots == slots)
      owned_.back().range.end = part.end;
    else
      owned_.push_back({part, slots});
  };
  for (const Run& run : runs_) {
    if (run.matrix < 0 || run.range.end <= range.begin || run.range.begin >= range.end) continue;
    const Range live = tensors_[static_cast<std::size_t>(run.matrix)].live;
    if (range.begin > live.begin || range.end < live.end)
      fail<ConfigError>("optimizer ", optimizer_.name(), " updates whole matrices, and elements ", live.begin,
                        " to ", live.end, " are one of which this rank would update only ",
                        std::max(range.begin, live.begin), " to ", std::min(range.end, live.end));
    add({range.begin, live.begin}, optimizer_.slots());
    range.begin = std::min(run.range.end, range.end);
    add({live.begin, range.begin}, optimizer_.matrix_slots());
  }
  add(range, optimizer_.slots());
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::set_panels(std::span<const std::int64_t> panels) {
  for (std::size_t t = 0; t < tensors_.size(); ++t) tensors_[t].panel = panels[t];
}

template <class R, memory::Space S>
void Arena<R, S>::prepare() {
  if (decides()) clear_partial();
  directs_ = !guard_.decides();  // else the gradient is judged first
  if (!per_tensor() || directs()) make_constants(control_.data(), nullptr, constants_.data());
}

template <class R, memory::Space S>
void Arena<R, S>::arrived(Range range, float scale, const float* parameters, const float* gradients) {
  if (!per_tensor() && !any_frozen_)
    return space_->sum_squares(gradients, range.size(), scale, partial_.data());
  // What adds up squares only reads the parameters.
  Kernels<R, S>::squares(
      *space_, optimizer_,
      passage(live_table_, range, constants_.data(), const_cast<float*>(parameters), gradients, scale),
      {.of_directions = directs(),
       .of_parameters = per_tensor() && directs() == optimizer_.has_direction(),
       .by_constants = per_tensor(),
       .sums = partial_.data()},
      squares_work_.data());
}

template <class R, memory::Space S>
Decision Arena<R, S>::decide(const float* parameters) {
  if (!directs()) {
    const auto count = static_cast<std::int64_t>(partial_.size());
    Kernels<R, S>::decide(*space_, guard_, partial_.data(), per_tensor() ? count / 2 : count,
                          per_tensor() ? 2 : 1, &control_.data()->verdict);
  }
  if (!per_tensor()) return Decision::apply;
  if (optimizer_.has_direction() && !directs_) {
    make_constants(control_.data(), nullptr, constants_.data());
    clear_partial();
    directs_ = true;
    return Decision::again;
  }
  // Dead taps have no gradients, and no direction where they do not decay.
  if (!dead_.empty())
    Kernels<R, S>::squares(
        *space_, optimizer_,
        passage(dead_table_, everything, constants_.data(), const_cast<float*>(parameters), nullptr, 0.0f),
        {.of_directions = directs(), .of_parameters = true, .by_constants = true, .sums = partial_.data()},
        squares_work_.data());
  make_constants(control_.data(), partial_.data(), constants_.data());
  return Decision::apply;
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
      fail("optimizer ", optimizer_.name(), ": elements ", begin, " to ", end,
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
  if (!any_decays_dead_) return;
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
    if (!decays(run)) continue;
    if (!run.has_state()) fail("the optimizer has no state for element ", run.range.begin, " on this rank");
    elements = elements || run.matrix < 0;
    if (run.matrix >= 0) apply_matrix(dead_table_, r, run.range, pass);
  }
  if (elements) Kernels<R, S>::apply(*space_, optimizer_, pass);
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::treat(std::span<const Group> groups) {
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    const ArenaTensor& tensor = tensors_[t];
    if (tensor.group < 0 || static_cast<std::size_t>(tensor.group) >= groups.size())
      fail("optimizer: there is no group ", tensor.group, " of parameters");
    const Group& group = groups[static_cast<std::size_t>(tensor.group)];
    const Treatment treatment = treatment_of(group);
    any_frozen_ = any_frozen_ || treatment.frozen;
    const int constants = constants_of(treatment);
    const Range whole{tensor.live.begin, (tensor.live.end + grain - 1) / grain * grain};
    const bool matrix =
        takes_matrices() && tensor.rows > 0 && !group.by_element && !treatment.frozen && !tensor.live.empty();
    const bool alike = !matrix && !runs_.empty() && runs_.back().range.end == whole.begin &&
                       runs_.back().constants == constants && runs_.back().matrix < 0;
    if (treatment.frozen) continue;
    if (alike)
      runs_.back().range.end = whole.end;
    else if (!whole.empty())
      runs_.push_back({whole, constants, matrix ? static_cast<int>(t) : -1});
    any_matrix_ = any_matrix_ || matrix;
    if (tensor.dead.empty()) continue;
    dead_.push_back({tensor.dead, constants, matrix ? static_cast<int>(t) : -1});
    // The gradient of a dead tap is exactly zero, so without decay it never moves and needs no state.
    any_decays_dead_ = any_decays_dead_ || decays(dead_.back());
  }
  std::sort(dead_.begin(), dead_.end(),
            [](const Run& a, const Run& b) { return a.range.begin < b.range.begin; });
  if (any_matrix_ && !MultipliesIn<R, S>)
    fail<ConfigError>(
        "optimizer ", optimizer_.name(),
        " multiplies whole matrices, which is there for memory of processors and of NVIDIA GPUs, "
        "not of the space ",
        S::name, "; choose another optimizer, or compute on one of these");
}

template <class R, memory::Space S>
[[gnu::cold]] Treatment Arena<R, S>::treatment_of(const Group& group) const {
  if (group.weight_decay && *group.weight_decay != 0 && !optimizer_.has_weight_decay())
    fail<ConfigError>("optimizer ", optimizer_.name(),
                      " has no weight decay, but a group of parameters asks "
                      "for one of ",
                      *group.weight_decay);
  return {group.lr_scale, group.weight_decay.value_or(optimizer_.weight_decay()), group.frozen};
}

template <class R, memory::Space S>
[[gnu::cold]] int Arena<R, S>::constants_of(const Treatment& treatment) {
  std::size_t at = per_tensor() ? treatments_.size() : 0;
  while (at < treatments_.size() && treatments_[at] != treatment) ++at;
  if (at == treatments_.size()) treatments_.push_back(treatment);
  return static_cast<int>(at);
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
          .stride = stride_,
          .constants = constants,
          .constants_bytes = constants_bytes_,
          .verdict = decides() ? &control_.data()->verdict : nullptr};
}

/// An Arena with the parameters and gradients that it is for: what an exchange calls. Pointers are of the
/// whole arenas.
template <class R, memory::Space S = memory::Host>
class Bound {
 public:
  Bound(Arena<R, S>& arena, float* parameters, const float* gradients)
      : arena_(&arena), parameters_(parameters), gradients_(gradients) {}

  void arrived(Range range, float scale) {
    arena_->arrived(range, scale, parameters_ + range.begin, gradients_ + range.begin);
  }
  std::span<double> partial() { return arena_->partial(); }
  Decision decide() {
    if (arena_->decide(parameters_) == Decision::again) return Decision::again;
    return arena_->verdict().apply != 0 ? Decision::apply : Decision::skip;
  }
  void update(Range range, float scale) {
    arena_->update(range, scale, parameters_ + range.begin, gradients_ + range.begin);
  }
  bool decides() const { return arena_->decides(); }

 private:
  Arena<R, S>* arena_;
  float* parameters_;
  const float* gradients_;
};

CONVOY_INSTANTIATE(class Arena<Any>);
CONVOY_INSTANTIATE(class Arena<Sgd>);
CONVOY_INSTANTIATE(class Arena<Adam>);

}  // namespace convoy::optim
