// Optimizers on a GPU: the same rules, as one fused pass over the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <convoy/memory/device.cuh>
#include <convoy/optim/kernels.hpp>
#include <convoy/optim/matrix_device.cuh>
#include <convoy/optim/registry.hpp>

namespace convoy::optim {

namespace detail {

template <class R>
__global__ void make_constants(Optimizer<R> optimizer, const Treatment* treatments, int count,
                               const Control* control, const double* norms, std::byte* into,
                               std::size_t bytes) {
  const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const Verdict& verdict = control->verdict;
  const Treatment& treatment = treatments[i];
  UpdatePass pass{control->step.number - verdict.skipped,
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

inline constexpr int pass_threads = 256;

/// The part of a run that lies in a thread block's chunk and in the passage's range. The chunk may begin
/// before the range and the run; `at` and `in_run` are then negative.
struct Part {
  int begin, end;           ///< relative to the chunk's first element
  std::int64_t at, in_run;  ///< index of the chunk's first element in the range and in the run

  __device__ bool empty() const { return begin >= end; }
};

/// Calls `visit(run, index, part)`, in all threads alike, for each run that has a part in the chunk.
template <class Visit>
__device__ void for_each_part_of_chunk(const Passage& pass, std::int64_t chunk, Visit&& visit) {
  const std::int64_t first = chunk * Runs::chunk, last = first + Runs::chunk;
  const std::int64_t begin = pass.over.range.begin > first ? pass.over.range.begin : first,
                     end = pass.over.range.end < last ? pass.over.range.end : last;
  int r = pass.runs.first[chunk - pass.runs.first_chunk];
  bool more = r < pass.over.end;
  while (more) {
    const Run run = pass.runs.run[r];
    const Part part{static_cast<int>((run.range.begin > begin ? run.range.begin : begin) - first),
                    static_cast<int>((run.range.end < end ? run.range.end : end) - first),
                    first - pass.over.range.begin, first - run.range.begin};
    more = run.range.end < end && r + 1 < pass.over.end;
    visit(run, r, part);
    ++r;
  }
}

/// A vector of elements with everything their update reads.
template <class R, int width>
struct Elements {
  using Floats = device::Lanes<float, width>;
  static constexpr int room = R::slots > 0 ? R::slots : 1;
  Floats p, g, state[room];

  /// `at` is relative to the first element of the passage's range, `of_state` to that of a slot.
  __device__ void load(const Passage& pass, std::int64_t at, std::int64_t of_state) {
    p = *reinterpret_cast<const Floats*>(pass.parameters + at);
    g = pass.gradients == nullptr ? Floats{} : device::load_once<width>(pass.gradients + at);
    for (int s = 0; s < R::slots; ++s)
      state[s] = device::load_once<width>(pass.state + of_state + s * pass.stride);
  }
  __device__ void update(float scale, const typename R::Constants& k) {
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
  }
  /// Writes the direction in which the element of a lane would move.
  __device__ void direct(float& direction, int lane, float scale, const typename R::Constants& k) const {
    const float gradient = g.lane[lane] * scale;
    if constexpr (R::slots > 0) {
      float slots[room];
      for (int s = 0; s < R::slots; ++s) slots[s] = state[s].lane[lane];
      R::direction(direction, p.lane[lane], gradient, slots, k);
    } else {
      R::direction(direction, p.lane[lane], gradient, k);
    }
  }
  __device__ void store(const Passage& pass, std::int64_t at, std::int64_t of_state) const {
    *reinterpret_cast<Floats*>(pass.parameters + at) = p;
    for (int s = 0; s < R::slots; ++s)
      device::store_once<width>(pass.state + of_state + s * pass.stride, state[s]);
    device::store_rounded<width>(pass.copy, at, p);
  }
};

/// One fused pass over all runs of a range, one chunk of the arena per thread block. `width` is 4 if all
/// arrays are aligned for vectors at the same elements, else 1.
template <class R, int width>
__global__ void __launch_bounds__(pass_threads, 3) update_runs(Passage pass) {
  float scale = pass.scale;
  if (!applies(pass.verdict, scale)) return;
  const std::int64_t chunk = pass.over.first_chunk() + blockIdx.x;
  for_each_part_of_chunk(pass, chunk, [&](const Run& run, int, const Part& part) {
    if (part.empty() || !run.has_state() || run.matrix >= 0) return;
    const typename R::Constants k = *static_cast<const typename R::Constants*>(pass.constants_of(run));
    constexpr int at_once = 8 / width, step = pass_threads * width;
    static_assert(Runs::chunk == at_once * step);
    const std::int64_t of_state = run.state + part.in_run;
    const int first = static_cast<int>(threadIdx.x) * width;
    const auto whole = [&](int i) { return i >= part.begin && i + width <= part.end; };
    Elements<R, width> elements[at_once];
    for (int n = 0; n < at_once; ++n)
      if (const int i = first + n * step; whole(i)) elements[n].load(pass, part.at + i, of_state + i);
    for (int n = 0; n < at_once; ++n)
      if (const int i = first + n * step; whole(i)) {
        elements[n].update(scale, k);
        elements[n].store(pass, part.at + i, of_state + i);
      }
    if constexpr (width > 1) {
      // The elements of a part before its first whole vector and after its last.
      const int lane = static_cast<int>(threadIdx.x) % width;
      const int head = part.begin / width * width + lane, tail = (part.end - 1) / width * width + lane;
      const int i = threadIdx.x < width ? head : tail;
      if (threadIdx.x >= 2 * width || (threadIdx.x >= width && tail == head) || i < part.begin ||
          i >= part.end || whole(i - lane))
        return;
      Elements<R, 1> element;
      element.load(pass, part.at + i, of_state + i);
      element.update(scale, k);
      element.store(pass, part.at + i, of_state + i);
    }
  });
}

/// The directions in which `width` elements would move; `at` is the first one's index in the range,
/// `of_state` that in a slot.
template <class R, int width>
__device__ device::Lanes<float, width> directions_of(const Passage& pass, float scale,
                                                     const typename R::Constants& k, std::int64_t at,
                                                     std::int64_t of_state) {
  Elements<R, width> elements;
  elements.load(pass, at, of_state);
  device::Lanes<float, width> directions{};
  for (int lane = 0; lane < width; ++lane) elements.direct(directions.lane[lane], lane, scale, k);
  return directions;
}

/// The sums of squares of each part. Run r's part in chunk c has index r + c, which is unique because
/// consecutive parts differ in run, chunk or both. R is void if the squares are of gradients. `width` is as
/// for `update_runs`; which thread adds an element does not depend on it.
template <class R, int width>
__global__ void __launch_bounds__(pass_threads, 4)
    squares_of_parts(Passage pass, bool of_parameters, double* sums) {
  __shared__ double scratch[pass_threads / device::warp_size];
  float scale = pass.scale;
  const bool moves = applies(pass.verdict, scale);
  const std::int64_t chunk = pass.over.first_chunk() + blockIdx.x;
  for_each_part_of_chunk(pass, chunk, [&](const Run& run, int r, const Part& part) {
    if (part.empty()) return;
    double squares = 0, of_parameter = 0;
    const auto add_up = [&](auto&& values_at) {
      const auto add = [&]<int lanes>(int at) {
        const device::Lanes<float, lanes> values = values_at.template operator()<lanes>(at);
        for (const double x : values.lane) squares += x * x;
        if (!of_parameters) return;
        const auto parameters = device::load_floats<lanes>(pass.parameters + part.at + at);
        for (const double p : parameters.lane) of_parameter += p * p;
      };
      constexpr int fours = static_cast<int>(Runs::chunk) / (4 * pass_threads);
      static_assert(fours * 4 * pass_threads == Runs::chunk);
      for (int n = 0; n < fours; ++n) {
        const int i = 4 * (n * pass_threads + static_cast<int>(threadIdx.x));
        if (width == 4 && i >= part.begin && i + 4 <= part.end) {
          add.template operator()<4>(i);
          continue;
        }
        for (int lane = i; lane < i + 4; ++lane)
          if (lane >= part.begin && lane < part.end) add.template operator()<1>(lane);
      }
    };
    const auto zeros = [&]<int lanes>(int) { return device::Lanes<float, lanes>{}; };
    if constexpr (std::is_void_v<R>) {
      if (pass.gradients != nullptr)
        add_up([&]<int lanes>(int i) { return device::load_floats<lanes>(pass.gradients + part.at + i); });
      else
        add_up(zeros);
    } else {
      const typename R::Constants k = *static_cast<const typename R::Constants*>(pass.constants_of(run));
      const std::int64_t of_state = run.state + part.in_run;
      if (moves && run.has_state())
        add_up([&]<int lanes>(int i) {
          return directions_of<R, lanes>(pass, scale, k, part.at + i, of_state + i);
        });
      else
        add_up(zeros);
    }
    squares = device::block_sum<pass_threads>(squares, scratch);
    if (of_parameters) of_parameter = device::block_sum<pass_threads>(of_parameter, scratch);
    if (threadIdx.x == 0) {
      double* const to = sums + 2 * (r + chunk - pass.runs.first_chunk);
      to[0] = squares;
      to[1] = of_parameter;
    }
  });
}

/// Adds the sums of the parts to those of their constants. Block b handles the consecutive runs from run b of
/// the range on that add to the same sums; it has nothing to do if the run before adds to them too.
template <class = void>
__global__ void __launch_bounds__(pass_threads)
    add_squares_of_parts(Passage pass, Squares what, const double* sums) {
  __shared__ double scratch[pass_threads / device::warp_size];
  int r = pass.over.begin + static_cast<int>(blockIdx.x);
  double* const into = what.sums_of(pass.runs.run[r]);
  if (blockIdx.x > 0 && what.sums_of(pass.runs.run[r - 1]) == into) return;
  double squares = 0, of_parameters = 0;
  for (; r < pass.over.end; ++r) {
    const Run run = pass.runs.run[r];
    if (what.sums_of(run) != into) break;
    const std::int64_t begin =
        run.range.begin > pass.over.range.begin ? run.range.begin : pass.over.range.begin;
    const std::int64_t end = run.range.end < pass.over.range.end ? run.range.end : pass.over.range.end;
    for (std::int64_t c = begin / Runs::chunk + threadIdx.x; c <= (end - 1) / Runs::chunk;
         c += pass_threads) {
      const double* const from = sums + 2 * (r + c - pass.runs.first_chunk);
      squares += from[0];
      of_parameters += from[1];
    }
  }
  squares = device::block_sum<pass_threads>(squares, scratch);
  of_parameters = device::block_sum<pass_threads>(of_parameters, scratch);
  if (threadIdx.x != 0) return;
  const double factor = what.of_directions ? 1.0 : static_cast<double>(pass.scale);
  into[0] += factor * factor * squares;
  if (what.of_parameters) into[1] += of_parameters;
}

}  // namespace detail

/// A rule runs on a GPU if its `at`, `update`, `direction` and functions of matrix elements are marked
/// CONVOY_HD.
template <class R>
struct Kernels<R, memory::Device> {
  static constexpr bool writes_copies = true;

  static void constants(memory::Device& space, const Optimizer<R>& optimizer, const Treatment* treatments,
                        std::size_t count, const Control* control, const double* norms, std::byte* into,
                        std::size_t bytes) {
    if (count == 0) return;
    constexpr int threads = 64;
    device::launch({space.stream(), static_cast<unsigned>((count + threads - 1) / threads), threads},
                   detail::make_constants<R>, optimizer, treatments, static_cast<int>(count), control, norms,
                   into, bytes);
  }

  static void decide(memory::Device& space, const Guard& guard, const double* squares, std::int64_t count,
                     std::int64_t apart, Verdict* verdict) {
    device::launch({space.stream(), 1, 1}, detail::decide<>, guard, squares, count, apart, verdict);
  }

  static void squares(memory::Device& space, const Optimizer<R>&, const Passage& pass, const Squares& what,
                      double* work) {
    if (pass.over.range.empty()) return;
    const device::Launch where{space.stream(), static_cast<unsigned>(pass.over.chunks()),
                               detail::pass_threads};
    const bool vectors = takes_vectors(pass);
    bool enqueued = false;
    if constexpr (Optimizer<R>::has_direction())
      if (what.of_directions) {
        device::launch(where, vectors ? detail::squares_of_parts<R, 4> : detail::squares_of_parts<R, 1>, pass,
                       what.of_parameters, work);
        enqueued = true;
      }
    if (!enqueued)
      device::launch(where, vectors ? detail::squares_of_parts<void, 4> : detail::squares_of_parts<void, 1>,
                     pass, what.of_parameters, work);
    device::launch(
        {space.stream(), static_cast<unsigned>(pass.over.end - pass.over.begin), detail::pass_threads},
        detail::add_squares_of_parts<>, pass, what, work);
  }

  static void apply(memory::Device& space, const Optimizer<R>&, const Passage& pass) {
    if (pass.over.range.empty()) return;
    const device::Launch where{space.stream(), static_cast<unsigned>(pass.over.chunks()),
                               detail::pass_threads};
    device::launch(where, takes_vectors(pass) ? detail::update_runs<R, 4> : detail::update_runs<R, 1>, pass);
  }

  static void apply_matrix(memory::Device&, const Optimizer<R>& optimizer, MatrixWork<memory::Device>& work,
                           const MatrixPass& matrix) requires detail::HasUpdateOfMatrices<R, memory::Device> {
    optimizer.update_matrix(work, matrix);
  }

 private:
  // Whether the elements whose index in the arena is a multiple of 4 are aligned for vectors. Those of the
  // state are, by the Arena's layout.
  static bool takes_vectors(const Passage& pass) {
    const auto goes_along = [&](const void* first, std::size_t element) {
      return first == nullptr || (reinterpret_cast<std::uintptr_t>(first) -
                                  static_cast<std::uintptr_t>(pass.over.range.begin) * element) %
                                         (4 * element) ==
                                     0;
    };
    return goes_along(pass.parameters, sizeof(float)) && goes_along(pass.gradients, sizeof(float)) &&
           goes_along(pass.copy.at, size_of(pass.copy.type));
  }
};

/// Dispatches to the chosen rule of the registry.
template <>
struct Kernels<Any, memory::Device> {
  static constexpr bool writes_copies = true;

  static void constants(memory::Device& space, const Optimizer<Any>& optimizer, const Treatment* treatments,
                        std::size_t count, const Control* control, const double* norms, std::byte* into,
                        std::size_t bytes) {
    visit(optimizer, [&]<class R>(const Optimizer<R>& chosen) {
      Kernels<R, memory::Device>::constants(space, chosen, treatments, count, control, norms, into, bytes);
    });
  }
  static void decide(memory::Device& space, const Guard& guard, const double* squares, std::int64_t count,
                     std::int64_t apart, Verdict* verdict) {
    device::launch({space.stream(), 1, 1}, detail::decide<>, guard, squares, count, apart, verdict);
  }
  static void squares(memory::Device& space, const Optimizer<Any>& optimizer, const Passage& pass,
                      const Squares& what, double* work) {
    visit(optimizer, [&]<class R>(const Optimizer<R>& chosen) {
      Kernels<R, memory::Device>::squares(space, chosen, pass, what, work);
    });
  }
  static void apply(memory::Device& space, const Optimizer<Any>& optimizer, const Passage& pass) {
    visit(optimizer, [&]<class R>(const Optimizer<R>& chosen) {
      Kernels<R, memory::Device>::apply(space, chosen, pass);
    });
  }
  static void apply_matrix(memory::Device& space, const Optimizer<Any>& optimizer,
                           MatrixWork<memory::Device>& work, const MatrixPass& matrix) {
    visit(optimizer, [&]<class R>(const Optimizer<R>& chosen) {
      if constexpr (detail::TakesMatrices<R>)
        Kernels<R, memory::Device>::apply_matrix(space, chosen, work, matrix);
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
      fail<ConfigError>("optimizer ", optimizer.facts().name,
                        " is not in the registry, so that it cannot be chosen at run time for a GPU; name it "
                        "as Trainer's second template argument");
  }
};

}  // namespace convoy::optim
