// Arena: an optimizer over an arena: its state, how each range is treated, what is decided before any update,
// and what happens to dead taps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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
#include <convoy/optim/optimizer.hpp>
#include <convoy/optim/sgd.hpp>

namespace convoy::optim {

/// One parameter in an arena. Alignment gaps between parameters hold zeros.
struct ArenaTensor {
  Range live;              ///< in the exchanged part
  Range dead;              ///< taps that get no gradient and are only decayed; empty: none
  int group = 0;           ///< of Groups::list
  std::int64_t rows = 0;   ///< of the tensor as a matrix, for rules that take these; 0: it is none
  std::int64_t panel = 1;  ///< how its live part stands in the arenas, as MatrixPass says
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
  /// there. To be called before the first step.
  void set_panels(std::span<const std::int64_t> panels);

  /// Makes the state, zero, of the ranges that this rank updates (not overlapping), and of what it decays.
  /// Throws ConfigError for a range that ends within a matrix, where the rule takes these.
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
  bool decays_by_norms() const { return per_tensor() && !dead_.empty(); }

  /// Begins step `step` (counting from 1, steps that are skipped included) with learning rate `lr`. Where
  /// servers count updates of each range, before each update; where they decide, before each step.
  void begin(std::int64_t step, float lr);

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

  /// Updates the parameters of `range` from their gradients times `scale`; the pointers are those of the
  /// range's first element.
  void update(Range range, float scale, float* parameters, const float* gradients);

  /// Decays what has no gradient, in the whole arena at `parameters`, as part of step `step` with learning
  /// rate `lr`. Where servers make the updates, workers decay all the same, without a `begin`; but not where
  /// it `decays_by_norms`, which only the servers know.
  void decay_dead(std::int64_t step, float lr, float* parameters);

  /// The last verdict; before the first decision, that of a step that is applied. Reads memory of the space.
  Verdict verdict() const {
    Verdict last;
    space_->read(&last, &control_.data()->verdict, sizeof last);
    return last;
  }

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
  // Neighbours that are treated alike, alignment gaps included: these hold zeros and stay zero.
  struct Run {
    Range range;
    int constants;
    bool frozen;
    int matrix = -1;  // the tensor that the run is, if it is updated as a whole
  };

  struct Dead {
    Range range;
    int constants;
    int matrix;  // as a Run's
  };

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

  // The update of the live or the dead part of a matrix, whose range is `part`.
  void apply_matrix(const ArenaTensor& tensor, Range part, const Passage& pass);

  // The index of a treatment's constants; with norms of tensors each tensor has its own.
  int constants_of(const Treatment& treatment);

  void make_constants(const Control* control, const double* norms, std::byte* into) {
    Kernels<R, S>::constants(*space_, optimizer_, treatments_, control, norms, into, constants_bytes_);
  }

  // Calls `visit(run, part)` for the part of each run that is updated and lies in `range`.
  template <class Visit>
  void for_each_run(Range range, Visit&& visit) {
    auto run = std::partition_point(runs_.begin(), runs_.end(),
                                    [&](const Run& r) { return r.range.end <= range.begin; });
    for (; run != runs_.end() && run->range.begin < range.end; ++run)
      if (!run->frozen)
        visit(*run, Range{std::max(range.begin, run->range.begin), std::min(range.end, run->range.end)});
  }

  Passage passage(Range range, const std::byte* all, int constants, float* parameters, const float* gradients,
                  float scale);

  // To the sums of the tensor whose constants they are.
  void add_directions(Range range, int constants, const float* parameters, const float* gradients,
                      float scale) {
    // Its kernel only reads the parameters.
    Kernels<R, S>::direction_squares(
        *space_, optimizer_,
        passage(range, constants_.data(), constants, const_cast<float*>(parameters), gradients, scale),
        partial_.data() + 2 * constants);
  }

  float* state_at(std::int64_t offset);

  S* space_;
  Optimizer<R> optimizer_;
  Guard guard_;
  std::vector<ArenaTensor> tensors_;
  std::vector<Treatment> treatments_;  // one for each set of constants
  std::vector<Run> runs_;
  std::vector<Dead> dead_;
  std::vector<Owned> owned_;
  bool any_frozen_ = false, directs_ = false;
  std::int64_t stride_ = 0;
  std::size_t constants_bytes_ = 0;
  memory::Array<Control, S> control_;  // of updates, of what has no gradient
  memory::Array<double, S> partial_;
  memory::Array<std::byte, S> constants_;  // in the same order
  memory::Array<float, S> state_;
  memory::Array<float, S> work_;  // of the update of a matrix
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
  if (decides()) partial_ = memory::Array<double, S>(space, per_tensor() ? 2 * tensors_.size() : 1);
  constants_bytes_ = aligned(optimizer_.constants_bytes());
  constants_ = memory::Array<std::byte, S>(space, 2 * constants_bytes_ * treatments_.size());
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::own(std::span<const Range> ranges) {
  std::vector<Range> all(ranges.begin(), ranges.end());
  for (const Dead& dead : dead_) all.push_back(dead.range);
  std::sort(all.begin(), all.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  owned_.clear();
  for (const Range& range : all)
    if (!range.empty()) own_parts(range);
  std::int64_t size = 0;
  const auto place = [&](bool all_slots) {
    for (Owned& owned : owned_)
      if ((owned.slots == optimizer_.slots()) == all_slots) {
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
void Arena<R, S>::begin(std::int64_t step, float lr) {
  const Step given{step, lr};
  space_->write(&control_.data()->step, &given, sizeof given);
  if (decides()) clear_partial();
  directs_ = !guard_.decides();  // else the gradient is judged first
  if (!per_tensor() || directs()) make_constants(control_.data(), nullptr, constants_.data());
}

template <class R, memory::Space S>
void Arena<R, S>::arrived(Range range, float scale, const float* parameters, const float* gradients) {
  const auto add = [&](Range part, double* sum, const float* values, float factor) {
    space_->sum_squares(values + (part.begin - range.begin), part.size(), factor, sum);
  };
  if (!per_tensor() && !any_frozen_) return add(range, partial_.data(), gradients, scale);
  for_each_run(range, [&](const Run& run, Range part) {
    double* sum = partial_.data() + (per_tensor() ? 2 * run.constants : 0);
    if (directs()) {
      const std::int64_t skip = part.begin - range.begin;
      add_directions(part, run.constants, parameters + skip, gradients + skip, scale);
    } else {
      add(part, sum, gradients, scale);
    }
    if (per_tensor() && directs() == optimizer_.has_direction()) add(part, sum + 1, parameters, 1.0f);
  });
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
  for (std::size_t t = 0; t < tensors_.size(); ++t)
    if (const Range& dead = tensors_[t].dead; !dead.empty() && !runs_[t].frozen)
      space_->sum_squares(parameters + dead.begin, dead.size(), 1.0f, partial_.data() + 2 * t + 1);
  if (directs())
    for (const Dead& dead : dead_)  // what does not decay has no direction
      add_directions(dead.range, dead.constants, parameters + dead.range.begin, nullptr, 0.0f);
  make_constants(control_.data(), partial_.data(), constants_.data());
  return Decision::apply;
}

template <class R, memory::Space S>
void Arena<R, S>::update(Range range, float scale, float* parameters, const float* gradients) {
  for_each_run(range, [&](const Run& run, Range part) {
    const std::int64_t skip = part.begin - range.begin;
    const Passage pass =
        passage(part, constants_.data(), run.constants, parameters + skip, gradients + skip, scale);
    if (run.matrix < 0) return Kernels<R, S>::apply(*space_, optimizer_, pass);
    const ArenaTensor& tensor = tensors_[static_cast<std::size_t>(run.matrix)];
    if (part.begin != tensor.live.begin || part.end < tensor.live.end)
      fail("optimizer ", optimizer_.name(), ": elements ", part.begin, " to ", part.end,
           " are a part of a matrix, which is updated as a whole");
    apply_matrix(tensor, tensor.live, pass);
  });
}

template <class R, memory::Space S>
void Arena<R, S>::apply_matrix([[maybe_unused]] const ArenaTensor& tensor, [[maybe_unused]] Range part,
                               [[maybe_unused]] const Passage& pass) {
  if constexpr (MultipliesIn<R, S>)
    Kernels<R, S>::apply_matrix(*space_, optimizer_, pass,
                                {.rows = tensor.rows,
                                 .columns = part.size() / tensor.rows,
                                 .panel = tensor.panel,
                                 .all_columns = (tensor.live.size() + tensor.dead.size()) / tensor.rows,
                                 .work = work_.data()});
}

template <class R, memory::Space S>
void Arena<R, S>::decay_dead(std::int64_t step, float lr, float* parameters) {
  if (dead_.empty()) return;
  // A server among the workers may have begun another step in the meantime, so constants are made anew.
  Control* own = control_.data() + 1;
  const Step given{step, lr};
  space_->write(&own->step, &given, sizeof given);
  space_->copy(&own->verdict, &control_.data()->verdict, sizeof(Verdict));
  std::byte* constants = constants_.data() + constants_.size() / 2;
  make_constants(own, per_tensor() ? partial_.data() : nullptr, constants);
  for (const Dead& dead : dead_) {
    const Passage pass =
        passage(dead.range, constants, dead.constants, parameters + dead.range.begin, nullptr, 0.0f);
    if (dead.matrix < 0)
      Kernels<R, S>::apply(*space_, optimizer_, pass);
    else
      apply_matrix(tensors_[static_cast<std::size_t>(dead.matrix)], dead.range, pass);
  }
}

template <class R, memory::Space S>
[[gnu::cold]] void Arena<R, S>::treat(std::span<const Group> groups) {
  std::int64_t work = 0;
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
    const bool alike = !matrix && !runs_.empty() && runs_.back().constants == constants &&
                       runs_.back().frozen == treatment.frozen && runs_.back().matrix < 0;
    if (alike)
      runs_.back().range.end = whole.end;
    else
      runs_.push_back({whole, constants, treatment.frozen, matrix ? static_cast<int>(t) : -1});
    if (matrix) work = std::max(work, optimizer_.matrix_work(tensor.rows, tensor.live.size() / tensor.rows));
    // The gradient of a dead tap is exactly zero, so without decay it never moves and needs no state.
    if (!tensor.dead.empty() && !treatment.frozen && treatment.weight_decay != 0)
      dead_.push_back({tensor.dead, constants, matrix ? static_cast<int>(t) : -1});
  }
  if (work > 0 && !MultipliesIn<R, S>)
    fail<ConfigError>(
        "optimizer ", optimizer_.name(),
        " multiplies whole matrices, which is there for memory of the host only, not of the space ", S::name,
        "; choose another optimizer, or compute on processors");
  work_ = memory::Array<float, S>(*space_, static_cast<std::size_t>(work));
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
Passage Arena<R, S>::passage(Range range, const std::byte* all, int constants, float* parameters,
                             const float* gradients, float scale) {
  return {.parameters = parameters,
          .gradients = gradients,
          .scale = scale,
          .state = state_at(range.begin),
          .stride = stride_,
          .size = range.size(),
          .constants = all + static_cast<std::size_t>(constants) * constants_bytes_,
          .verdict = decides() ? &control_.data()->verdict : nullptr};
}

template <class R, memory::Space S>
float* Arena<R, S>::state_at(std::int64_t offset) {
  const auto behind = std::partition_point(owned_.begin(), owned_.end(),
                                           [&](const Owned& o) { return o.range.begin <= offset; });
  if (behind == owned_.begin() || (behind - 1)->range.end <= offset)
    fail("the optimizer has no state for element ", offset, " on this rank");
  if (state_.size() == 0) return nullptr;  // a rule that keeps nothing
  const Owned& owned = *(behind - 1);
  return state_.data() + owned.state + (offset - owned.range.begin);
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
