// apply: one fused pass of a rule over a range of arenas in host memory.
#pragma once

#include <array>

#include <convoy/optim/rule.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::optim {

// One thread's share: parameters, gradients (null: all zero), a scale for them, and the state.
template <Rule R>
struct ApplyLoop {
  template <int W>
  CONVOY_INLINE static void run(float* p, const float* g, float scale, std::array<float*, 2> state,
                                std::int64_t n, typename R::Constants k) {
    std::int64_t i = 0;
    for (; i + W <= n; i += W) element<simd::Vec<float, W>>(p, g, scale, state, i, k);
    for (; i < n; ++i) element<float>(p, g, scale, state, i, k);
  }

  template <class V>
  CONVOY_INLINE static void element(float* p, const float* g, float scale, const std::array<float*, 2>& state,
                                    std::int64_t i, const typename R::Constants& k) {
    V parameter{}, gradient{}, slots[R::slots > 0 ? R::slots : 1]{};
    simd::load(parameter, p + i);
    if (g != nullptr) simd::load(gradient, g + i);
    gradient = gradient * scale;
    for (int s = 0; s < R::slots; ++s) simd::load(slots[s], state[static_cast<std::size_t>(s)] + i);
    R::update(parameter, gradient, slots, k);
    simd::store(p + i, parameter);
    for (int s = 0; s < R::slots; ++s) simd::store(state[static_cast<std::size_t>(s)] + i, slots[s]);
  }
};

/// Updates `n` parameters in place from gradients times `scale`; a null `gradients` means zero ones. `state`
/// holds R::slots arrays of n elements.
template <Rule R>
void apply(int threads, float* parameters, const float* gradients, float scale, std::array<float*, 2> state,
           std::int64_t n, const typename R::Constants& constants) {
  // Below this many elements waking a team costs more than the pass itself.
  constexpr std::int64_t worth_a_team = 1 << 15;
  parallel(n < worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range mine = share(n, thread, team, 16);
    std::array<float*, 2> my_state{};
    for (std::size_t s = 0; s < static_cast<std::size_t>(R::slots); ++s) my_state[s] = state[s] + mine.begin;
    simd::run<ApplyLoop<R>>(parameters + mine.begin, gradients == nullptr ? nullptr : gradients + mine.begin,
                            scale, my_state, mine.size(), constants);
  });
}

}  // namespace convoy::optim
