// Optimizers on a GPU: the same rules, one fused pass over the arena.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include <convoy/memory/device.cuh>
#include <convoy/optim/kernels.hpp>
#include <convoy/optim/registry.hpp>

namespace convoy::optim {

namespace detail {

/// Some of the treatments, as an argument of a kernel.
struct TreatmentsAtOnce {
  static constexpr int most = 64;
  Treatment treatment[most];
  int count = 0;
};

template <class R>
__global__ void make_constants(Optimizer<R> optimizer, TreatmentsAtOnce given, const Control* control,
                               const double* norms, std::byte* into, std::size_t bytes) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i >= given.count) return;
  const Verdict& verdict = control->verdict;
  const Treatment& treatment = given.treatment[i];
  Pass pass{control->step.number - verdict.skipped,
            control->step.lr * treatment.lr_scale,
            treatment.weight_decay,
            {}};
  if (norms != nullptr) pass.norms = norms_of(norms + 2 * i, optimizer.has_direction(), verdict);
  optimizer.constants(into + static_cast<std::size_t>(i) * bytes, pass);
}

template <class = void>
__global__ void decide(Guard guard, const double* squares, std::int64_t count, std::int64_t apart,
                       Verdict* verdict) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += squares[i * apart];
  judge(guard, sum, *verdict);
}

/// One element, or a vector's one after the other.
template <class R, int width>
__device__ void update_elements(const Passage& pass, float scale, const typename R::Constants& k,
                                std::int64_t at) {
  struct alignas(4 * width) Floats {
    float lane[width];
  };
  const auto load = [&](const float* from) { return *reinterpret_cast<const Floats*>(from + at); };
  const auto store = [&](float* to, const Floats& values) { *reinterpret_cast<Floats*>(to + at) = values; };
  constexpr int room = R::slots > 0 ? R::slots : 1;
  Floats p = load(pass.parameters), g{}, state[room]{};
  if (pass.gradients != nullptr) g = load(pass.gradients);
  for (int s = 0; s < R::slots; ++s) state[s] = load(pass.state + s * pass.stride);
  for (int lane = 0; lane < width; ++lane) {
    const float gradient = g.lane[lane] * scale;
    if constexpr (R::slots > 0) {
      float slots[room];
      for (int s = 0; s < R::slots; ++s) slots[s] = state[s].lane[lane];
      R::update(p.lane[lane], gradient, slots, k);
      for (int s = 0; s < R::slots; ++s) state[s].lane[lane] = slots[s];
    } else {
      R::update(p.lane[lane], gradient, k);
    }
  }
  store(pass.parameters, p);
  for (int s = 0; s < R::slots; ++s) store(pass.state + s * pass.stride, state[s]);
}

/// One fused pass; `width` 4 where every array starts at a multiple of 16 bytes.
template <class R, int width>
__global__ void update_range(Passage pass) {
  float scale = pass.scale;
  if (!applies(pass, scale)) return;
  const typename R::Constants k = *static_cast<const typename R::Constants*>(pass.constants);
  const std::int64_t vectors = pass.size / width, step = std::int64_t{gridDim.x} * blockDim.x;
  const std::int64_t first = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::int64_t v = first; v < vectors; v += step) update_elements<R, width>(pass, scale, k, v * width);
  const std::int64_t rest = vectors * width + first;
  if (rest < pass.size) update_elements<R, 1>(pass, scale, k, rest);
}

/// The direction in which element `i` would move.
template <class R>
__device__ float direction_of(const Passage& pass, float scale, const typename R::Constants& k,
                              std::int64_t i) {
  const float gradient = pass.gradients == nullptr ? 0.0f : pass.gradients[i] * scale;
  float direction = 0;
  if constexpr (R::slots > 0) {
    float slots[R::slots];
    for (int s = 0; s < R::slots; ++s) slots[s] = pass.state[s * pass.stride + i];
    R::direction(direction, pass.parameters[i], gradient, slots, k);
  } else {
    R::direction(direction, pass.parameters[i], gradient, k);
  }
  return direction;
}

template <class R>
__global__ void direction_squares_of_blocks(Passage pass, double* sums) {
  float scale = pass.scale;
  const bool moves = applies(pass, scale);
  const typename R::Constants k = *static_cast<const typename R::Constants*>(pass.constants);
  memory::detail::sum_squares_of_block(moves ? pass.size : 0, sums,
                                       [&](std::int64_t i) { return direction_of<R>(pass, scale, k, i); });
}

}  // namespace detail

/// A rule runs on a GPU where its `at`, its `update` and its `direction` are marked CONVOY_HD.
template <class R>
struct Kernels<R, memory::Device> {
  static void constants(memory::Device& space, const Optimizer<R>& optimizer,
                        std::span<const Treatment> treatments, const Control* control, const double* norms,
                        std::byte* into, std::size_t bytes) {
    using detail::TreatmentsAtOnce;
    for (std::size_t i = 0; i < treatments.size(); i += TreatmentsAtOnce::most) {
      TreatmentsAtOnce some;
      some.count = static_cast<int>(std::min<std::size_t>(TreatmentsAtOnce::most, treatments.size() - i));
      std::copy_n(treatments.data() + i, some.count, some.treatment);
      device::launch({space.stream(), 1, TreatmentsAtOnce::most}, detail::make_constants<R>, optimizer, some,
                     control, norms == nullptr ? nullptr : norms + 2 * i, into + i * bytes, bytes);
    }
  }

  static void decide(memory::Device& space, const Guard& guard, const double* squares, std::int64_t count,
                     std::int64_t apart, Verdict* verdict) {
    device::launch({space.stream(), 1, 1}, detail::decide<>, guard, squares, count, apart, verdict);
  }

  static void direction_squares(memory::Device& space, const Optimizer<R>&, const Passage& pass,
                                double* sum) {
    if constexpr (Optimizer<R>::has_direction())
      space.sum_squares_of(pass.size, 1.0f, sum, [&](const device::Launch& where, double* sums) {
        device::launch(where, detail::direction_squares_of_blocks<R>, pass, sums);
      });
  }

  static void apply(memory::Device& space, const Optimizer<R>&, const Passage& pass) {
    constexpr int width = 4;
    bool aligned = pass.stride % width == 0;
    for (const float* p :
         {static_cast<const float*>(pass.parameters), pass.gradients, static_cast<const float*>(pass.state)})
      aligned = aligned && reinterpret_cast<std::uintptr_t>(p) % (width * sizeof(float)) == 0;
    const device::Launch where{space.stream(), device::blocks_for(aligned ? pass.size / width : pass.size)};
    if (pass.size <= 0) return;
    if (aligned)
      device::launch(where, detail::update_range<R, width>, pass);
    else
      device::launch(where, detail::update_range<R, 1>, pass);
  }
};

/// Of the registry's rules, that which was chosen.
template <>
struct Kernels<Any, memory::Device> {
  static void constants(memory::Device& space, const Optimizer<Any>& optimizer,
                        std::span<const Treatment> treatments, const Control* control, const double* norms,
                        std::byte* into, std::size_t bytes) {
    visit(optimizer, [&]<class R>(const Optimizer<R>& chosen) {
      Kernels<R, memory::Device>::constants(space, chosen, treatments, control, norms, into, bytes);
    });
  }
  static void decide(memory::Device& space, const Guard& guard, const double* squares, std::int64_t count,
                     std::int64_t apart, Verdict* verdict) {
    device::launch({space.stream(), 1, 1}, detail::decide<>, guard, squares, count, apart, verdict);
  }
  static void direction_squares(memory::Device& space, const Optimizer<Any>& optimizer, const Passage& pass,
                                double* sum) {
    visit(optimizer, [&]<class R>(const Optimizer<R>& chosen) {
      Kernels<R, memory::Device>::direction_squares(space, chosen, pass, sum);
    });
  }
  static void apply(memory::Device& space, const Optimizer<Any>& optimizer, const Passage& pass) {
    visit(optimizer, [&]<class R>(const Optimizer<R>& chosen) {
      Kernels<R, memory::Device>::apply(space, chosen, pass);
    });
  }

 private:
  template <class Visit>
  static void visit(const Optimizer<Any>& optimizer, Visit&& visit) {
    bool found = false;
    Rules::for_each([&]<class R>(std::type_identity<R>) {
      if (const Optimizer<R>* chosen = optimizer.template get_if<R>()) {
        visit(*chosen);
        found = true;
      }
    });
    if (!found)
      fail<ConfigError>(
          "optimizer ", optimizer.name(),
          " is none of the registry's, so that no GPU has it at run time; name it as Trainer's second "
          "argument");
  }
};

}  // namespace convoy::optim
