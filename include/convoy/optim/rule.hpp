// Rule: an optimizer as arithmetic on one element. The same function runs on a float, on a vector of floats
// and on a device, so that the update is one fused pass wherever the arenas lie.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>

#include <convoy/core/hd.hpp>

namespace convoy::optim {

/// What an optimizer must have:
///   `Options`   an aggregate with defaults, `lr` and `weight_decay` among them;
///   `name`      what ranks compare and logs print;
///   `slots`     how many numbers of state each parameter has (0 to 2), starting at zero;
///   `Constants` what one step needs, made on the host by `at(options, step, lr, decay)`, step counting from
///   1; `update`    `template <class V> static void update(V& p, const V& g, V (&state)[slots], const
///   Constants&)`, where
///               V is float, or a vector type with + - * / and a scalar operand.
template <class R>
concept Rule = requires(const typename R::Options& options, std::int64_t step, float lr, bool decay, float& p,
                        const float& g, float (&state)[R::slots > 0 ? R::slots : 1]) {
  { options.lr } -> std::convertible_to<float>;
  { options.weight_decay } -> std::convertible_to<float>;
  { R::name } -> std::convertible_to<std::string_view>;
  requires R::slots >= 0 && R::slots <= 2;
  { R::at(options, step, lr, decay) } -> std::same_as<typename R::Constants>;
  R::update(p, g, state, R::at(options, step, lr, decay));
};

/// sqrt(x) for x >= 0 in plain arithmetic, so that one function serves floats and vectors of them: a bit
/// trick's first guess of 1/sqrt(x) and three steps of Newton's, which leave an error of at most 2 units in
/// the last place.
template <class V>
CONVOY_HD inline __attribute__((always_inline)) void square_root(V& root, const V& x) {
  if constexpr (std::same_as<V, float>) {
    root = __builtin_sqrtf(x);
  } else {
    using Bits = decltype(x < x);
    V inverse = reinterpret_cast<V>(0x5f3759df - (reinterpret_cast<Bits>(x) >> 1));
    const V half = 0.5f * x;
    inverse = inverse * (1.5f - half * inverse * inverse);
    inverse = inverse * (1.5f - half * inverse * inverse);
    inverse = inverse * (1.5f - half * inverse * inverse);
    root = x * inverse;
  }
}

}  // namespace convoy::optim
