// ArenaOptimizer: an optimizer over the arenas of a plan: its state, which ranges decay, what happens to dead
// taps.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <convoy/graph/plan.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/optim/optimizer.hpp>

namespace convoy::train {

template <class R>
class ArenaOptimizer {
 public:
  ArenaOptimizer(const Plan& plan, const typename optim::Optimizer<R>::Options& options)
      : optimizer_(options) {
    auto decays = [&](int parameter) {
      return optimizer_.decays_all() ||
             plan.parameter_list[static_cast<std::size_t>(parameter)].group == Group::decay;
    };
    // Neighbours that are treated alike are one run, alignment gaps included: they hold zeros and stay zero.
    for (const int p : plan.exchange_order) {
      const Range live = plan.slots[static_cast<std::size_t>(p)].live;
      const Range whole{live.begin, graph::align_slot(live.end)};
      if (!runs_.empty() && (runs_.back().decay == decays(p) || !optimizer_.decays()))
        runs_.back().range.end = whole.end;
      else
        runs_.push_back({whole, decays(p)});
    }
    // The gradient of a dead tap is exactly zero, so without decay it never moves and needs no state.
    if (optimizer_.decays())
      for (std::size_t p = 0; p < plan.slots.size(); ++p)
        if (!plan.slots[p].dead.empty() && decays(static_cast<int>(p)) &&
            plan.parameter_list[p].group != Group::frozen)
          dead_.push_back(plan.slots[p].dead);
  }

  /// Makes the state of the ranges that this rank updates (ascending, not overlapping), and of what it
  /// decays.
  void own(const std::vector<Range>& ranges) {
    owned_.clear();
    std::int64_t size = 0;
    const auto add = [&](const Range& range) {
      if (range.empty()) return;
      if (!owned_.empty() && owned_.back().range.end == range.begin)
        owned_.back().range.end = range.end;
      else
        owned_.push_back({range, size});
      size += range.size();
    };
    for (const Range& range : ranges) add(range);
    std::vector<Range> dead = dead_;
    std::sort(dead.begin(), dead.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (const Range& range : dead) add(range);
    for (int s = 0; s < optimizer_.slots(); ++s)
      state_[static_cast<std::size_t>(s)] = Buffer<float>(static_cast<std::size_t>(size));
  }

  const optim::Optimizer<R>& optimizer() const { return optimizer_; }

  /// Bytes of optimizer state on this rank.
  std::size_t state_bytes() const { return (state_[0].size() + state_[1].size()) * sizeof(float); }

  /// Begins step `step` (counting from 1) with learning rate `lr`.
  void begin(std::int64_t step, float lr) { pass_ = {step, lr, true}; }

  /// Updates the parameters in `range` of the exchanged part from their gradients times `scale`.
  void update(int threads, std::span<float> parameters, std::span<const float> gradients, Range range,
              float scale) {
    update(threads, parameters.data() + range.begin, gradients.data() + range.begin, range, scale);
  }

  /// The same for parameters and gradients that lie elsewhere: those of `range` begin where the pointers say.
  void update(int threads, float* parameters, const float* gradients, Range range, float scale) {
    auto run = std::partition_point(runs_.begin(), runs_.end(),
                                    [&](const Run& r) { return r.range.end <= range.begin; });
    for (; run != runs_.end() && run->range.begin < range.end; ++run) {
      const Range part{std::max(range.begin, run->range.begin), std::min(range.end, run->range.end)};
      pass_.decay = run->decay;
      optimizer_.apply(threads, parameters + (part.begin - range.begin),
                       gradients + (part.begin - range.begin), scale, state_at(part.begin), part.size(),
                       pass_);
    }
  }

  /// Decays what has no gradient.
  void decay_dead(int threads, std::span<float> parameters) {
    pass_.decay = true;
    for (const Range& dead : dead_)
      optimizer_.apply(threads, parameters.data() + dead.begin, nullptr, 0.0f, state_at(dead.begin),
                       dead.size(), pass_);
  }

 private:
  struct Run {
    Range range;
    bool decay;
  };

  // A run of elements whose state lies together.
  struct Owned {
    Range range;
    std::int64_t state;
  };

  std::array<float*, 2> state_at(std::int64_t offset) {
    const auto behind = std::partition_point(owned_.begin(), owned_.end(),
                                             [&](const Owned& o) { return o.range.begin <= offset; });
    if (behind == owned_.begin() || (behind - 1)->range.end <= offset)
      fail("the optimizer has no state for element ", offset, " on this rank");
    const Owned& owned = *(behind - 1);
    std::array<float*, 2> at{};
    for (std::size_t s = 0; s < static_cast<std::size_t>(optimizer_.slots()); ++s)
      at[s] = state_[s].data() + owned.state + (offset - owned.range.begin);
    return at;
  }

  optim::Optimizer<R> optimizer_;
  std::vector<Run> runs_;
  std::vector<Range> dead_;
  std::vector<Owned> owned_;
  std::array<Buffer<float>, 2> state_;
  optim::Pass pass_;
};

}  // namespace convoy::train
