// apply: one fused pass of a rule over a range of arenas in host memory. direction_squares: the preceding
// pass for rules that use norms of directions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <convoy/core/compiled.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/rule.hpp>
#include <convoy/optim/sgd.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::optim {

namespace detail {

template <class R>
using Slots = std::array<float*, static_cast<std::size_t>(R::slots)>;
template <class R>
using ConstSlots = std::array<const float*, static_cast<std::size_t>(R::slots)>;

// One thread's share: parameters, gradients (null: all zero), the scale of the gradients, and the state.
template <Rule R>
struct ApplyLoop {
  template <int W>
  CONVOY_INLINE static void run(float* p, const float* g, float scale, Slots<R> state, std::int64_t n,
                                typename R::Constants k) {
    std::int64_t i = 0;
#if !defined(__CUDACC__)  // nvcc rejects vectors in __host__ __device__ functions
    for (; i + W <= n; i += W) element<simd::Vec<float, W>>(p, g, scale, state, i, k);
#endif
    for (; i < n; ++i) element<float>(p, g, scale, state, i, k);
  }

  template <class V>
  CONVOY_INLINE static void element(float* p, const float* g, float scale, const Slots<R>& state,
                                    std::int64_t i, const typename R::Constants& k) {
    V parameter{}, gradient{};
    simd::load(parameter, p + i);
    if (g != nullptr) simd::load(gradient, g + i);
    gradient = gradient * scale;
    if constexpr (R::slots > 0) {
      V slots[R::slots]{};
      CONVOY_UNROLL
      for (int s = 0; s < R::slots; ++s) simd::load(slots[s], state[static_cast<std::size_t>(s)] + i);
      R::update(parameter, gradient, slots, k);
      simd::store(p + i, parameter);
      CONVOY_UNROLL
      for (int s = 0; s < R::slots; ++s) simd::store(state[static_cast<std::size_t>(s)] + i, slots[s]);
    } else {
      R::update(parameter, gradient, k);
      simd::store(p + i, parameter);
    }
  }
};

// The directions of one thread's share, computed in blocks small enough for the cache and summed as in
// memory::Host::sum_squares.
template <Rule R>
struct DirectionSquaresLoop {
  template <int W>
  CONVOY_INLINE static void run(const float* p, const float* g, float scale, ConstSlots<R> state,
                                std::int64_t n, typename R::Constants k, double* sums_of_blocks) {
    using Squares = memory::detail::SumSquaresLoop;
    alignas(64) float directions[Squares::block];
    for (std::int64_t begin = 0; begin < n; begin += Squares::block) {
      const std::int64_t end = std::min(n, begin + Squares::block);
      std::int64_t i = begin;
#if !defined(__CUDACC__)
      for (; i + W <= end; i += W)
        element<simd::Vec<float, W>>(directions + (i - begin), p, g, scale, state, i, k);
#endif
      for (; i < end; ++i) element<float>(directions + (i - begin), p, g, scale, state, i, k);
      Squares::template run<W>(directions, end - begin, sums_of_blocks++);
    }
  }

  template <class V>
  CONVOY_INLINE static void element(float* to, const float* p, const float* g, float scale,
                                    const ConstSlots<R>& state, std::int64_t i,
                                    const typename R::Constants& k) {
    V parameter{}, gradient{}, direction{};
    simd::load(parameter, p + i);
    if (g != nullptr) simd::load(gradient, g + i);
    gradient = gradient * scale;
    if constexpr (R::slots > 0) {
      V slots[R::slots]{};
      CONVOY_UNROLL
      for (int s = 0; s < R::slots; ++s) simd::load(slots[s], state[static_cast<std::size_t>(s)] + i);
      R::direction(direction, parameter, gradient, slots, k);
    } else {
      R::direction(direction, parameter, gradient, k);
    }
    simd::store(to, direction);
  }
};

}  // namespace detail

/// Updates `n` parameters in place from gradients times `scale`; if `gradients` is null, they are zero. Slot
/// s of the state is the n floats from `state + s * stride`.
template <Rule R>
void apply(int threads, float* parameters, const float* gradients, float scale, float* state,
           std::int64_t stride, std::int64_t n, const typename R::Constants& constants) {
  parallel(n < worth_a_team ? 1 : threads, [&](int thread, int team) {
    const Range mine = share(n, thread, team, 16);
    detail::Slots<R> my_state{};
    for (std::size_t s = 0; s < my_state.size(); ++s)
      my_state[s] = state + static_cast<std::int64_t>(s) * stride + mine.begin;
    simd::run<detail::ApplyLoop<R>>(parameters + mine.begin,
                                    gradients == nullptr ? nullptr : gradients + mine.begin, scale, my_state,
                                    mine.size(), constants);
  });
}

/// The sum of the squares of the directions in which `apply` would move the same parameters. Its bits depend
/// only on `n` and the values, not on the number of threads.
template <Rule R>
double direction_squares(int threads, const float* parameters, const float* gradients, float scale,
                         const float* state, std::int64_t stride, std::int64_t n,
                         const typename R::Constants& constants) {
  return memory::detail::sum_of_blocks(n, threads, [&](Range mine, double* sums) {
    detail::ConstSlots<R> my_state{};
    for (std::size_t s = 0; s < my_state.size(); ++s)
      my_state[s] = state + static_cast<std::int64_t>(s) * stride + mine.begin;
    simd::run<detail::DirectionSquaresLoop<R>>(parameters + mine.begin,
                                               gradients == nullptr ? nullptr : gradients + mine.begin, scale,
                                               my_state, mine.size(), constants, sums);
  });
}

CONVOY_INSTANTIATE(void apply<Sgd>(int, float*, const float*, float, float*, std::int64_t, std::int64_t,
                                   const Sgd::Constants&));
CONVOY_INSTANTIATE(void apply<Adam>(int, float*, const float*, float, float*, std::int64_t, std::int64_t,
                                    const Adam::Constants&));

}  // namespace convoy::optim
