// The reduction kernel: into[i] = into[i] op from[i], vectorized for the processor at hand. bf16 and f16 are
// added in f32 and rounded once a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <convoy/comm/engine/elements.hpp>
#include <convoy/comm/engine/fold.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::comm {

/// Combines `count` elements of `from` into `into`; a sum is then multiplied by `scale` unless `scale` is 1
/// (the last step of a mean).
using Reduce = void (*)(void* into, const void* from, std::int64_t count, double scale);

/// Combines `count` elements of `sources` buffers, in order, and stores the result to `places` buffers.
/// `streams`: stores may bypass the caches.
using Fold = void (*)(void* const* into, int places, const void* const* from, int sources, std::int64_t count,
                      double scale, bool streams);

/// How the ranks' elements are combined, as a value. It is made where element type and operation are known
/// (`reduction<float>(sum)`), so that a program contains only the loops that it uses. A default-constructed
/// Reduction is for bytes that are only moved.
struct Reduction {
  Reduce loop = nullptr;
  DType type = DType::u8;
  Op op = Op::sum;
  Fold fold = &detail::copy_with<1>;
  bool divides = true;  ///< whether a mean is divided when this exchange completes, not in a later one
};

/// For elements that are only moved.
constexpr Reduction moved(DType type) {
  Reduction none;
  none.type = type;
  switch (size_of(type)) {
    case 2:
      none.fold = &detail::copy_with<2>;
      break;
    case 4:
      none.fold = &detail::fold_with<f32, Op::sum>;  // with one source: a copy
      break;
    case 8:
      none.fold = &detail::copy_with<8>;
      break;
    default:
      break;
  }
  return none;
}

namespace detail {

template <class T, Op op>
struct ReduceLoop {
  static constexpr bool scales = op == Op::sum && !std::is_same_v<T, i32>;

  template <int W>
  CONVOY_INLINE static void run(T* into, const T* from, std::int64_t count, double scale) {
    using Vector = Elements<T, at_once<T, op, W>>;
    constexpr std::int64_t width = Vector::width;
    std::int64_t i = 0;
    if (scales && scale != 1) {
      for (; i + width <= count; i += width) one<Vector, true>(into + i, from + i, scale);
    } else {
      for (; i + 4 * width <= count; i += 4 * width) {
        CONVOY_UNROLL
        for (int k = 0; k < 4; ++k) one<Vector, false>(into + i + k * width, from + i + k * width, scale);
      }
      for (; i + width <= count; i += width) one<Vector, false>(into + i, from + i, scale);
    }
    if (i == count) return;
    // The tail goes through padded copies: the same arithmetic, and no read past the end.
    T a[width] = {}, b[width] = {};
    const std::size_t bytes = static_cast<std::size_t>(count - i) * sizeof(T);
    __builtin_memcpy(static_cast<void*>(a), into + i, bytes);
    __builtin_memcpy(static_cast<void*>(b), from + i, bytes);
    if (scales && scale != 1)
      one<Vector, true>(a, b, scale);
    else
      one<Vector, false>(a, b, scale);
    __builtin_memcpy(static_cast<void*>(into + i), a, bytes);
  }

 private:
  template <class Vector, bool scaled>
  CONVOY_INLINE static void one(T* into, const T* from, double scale) {
    typename Vector::Value a, b;
    Vector::load(a, into);
    Vector::load(b, from);
    combine<T, op>(a, b);
    if constexpr (scaled && scales) a = a * static_cast<Factor<T>>(scale);
    Vector::store(into, a);
  }
};

template <class T, Op op>
void reduce_with(void* into, const void* from, std::int64_t count, double scale) {
  simd::run<ReduceLoop<T, op>>(static_cast<T*>(into), static_cast<const T*>(from), count, scale);
}

CONVOY_INSTANTIATE(void reduce_with<f32, Op::sum>(void*, const void*, std::int64_t, double));
CONVOY_INSTANTIATE(void reduce_with<f64, Op::sum>(void*, const void*, std::int64_t, double));
CONVOY_INSTANTIATE(void reduce_with<f64, Op::max>(void*, const void*, std::int64_t, double));

}  // namespace detail

/// The reduction of elements of type `E` by `sum`, `mean`, `min` or `max`. Throws ConfigError for the mean of
/// i32 if the operation is known at run time only.
template <class E, OperationTag O>
constexpr Reduction reduction(O op) {
  if constexpr (!reducible<E, O>()) {
    return {};
  } else if constexpr (std::is_same_v<O, Op>) {
    if (op == Op::min) return reduction<E>(min);
    if (op == Op::max) return reduction<E>(max);
    if (op == Op::sum) return reduction<E>(sum);
    if constexpr (std::is_same_v<E, i32>)
      fail<ConfigError>("the mean of i32 is not defined; use sum, min or max, or reduce f32 or f64");
    else
      return reduction<E>(mean);
  } else {
    // A mean is a sum that is scaled where it completes: one loop serves both.
    constexpr Op loop = O::value == Op::mean ? Op::sum : op;
    return {&detail::reduce_with<E, loop>, dtype_of<E>, op, &detail::fold_with<E, loop>};
  }
}

}  // namespace convoy::comm
