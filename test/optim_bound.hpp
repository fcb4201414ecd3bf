// An Arena bound to its parameters and gradients, as exchanges get it.
#pragma once

#include <span>

#include <convoy/core/decision.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/optim/arena.hpp>

namespace convoy::optim {

// The pointers are to the first elements of the arenas.
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

}  // namespace convoy::optim
