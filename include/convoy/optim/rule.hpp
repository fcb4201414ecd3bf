// Rule: an optimizer as arithmetic on one element. The same function runs on floats, on vectors of floats and
// on a device, so that the update is one fused pass in every memory space.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <convoy/core/fields.hpp>
#include <convoy/core/hd.hpp>
#include <convoy/optim/matrix.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::optim {

/// The Euclidean norms of one tensor, over all ranks.
struct Norms {
  float gradient = 0;   ///< of the gradient after clipping; of the direction if the rule has one
  float parameter = 0;  ///< before the update, dead taps included
};

namespace detail {

template <class R>
concept HasOptions = requires {
  typename R::Options;
  requires fields::Listed<typename R::Options>;
};

// The options that hold the learning rate: for a decorator, those of the decorated rule.
template <class O>
CONVOY_HD constexpr auto& innermost(O& options) {
  if constexpr (requires { options.rule; })
    return innermost(options.rule);
  else
    return options;
}

template <class R>
concept HasRate = requires(const typename R::Options& options) {
  { innermost(options).lr } -> std::convertible_to<float>;
};

template <class R>
concept HasName = requires {
  { R::name } -> std::convertible_to<std::string_view>;
};

template <class R>
concept HasSlots = requires {
  { R::slots } -> std::convertible_to<int>;
  requires R::slots >= 0;
};

template <class R>
concept HasConstants = std::is_trivially_copyable_v<typename R::Constants>;

template <class R>
concept WantsNorms = requires {
  requires R::per_tensor_norms;
};

template <class R>
concept TakesMatrices = requires {
  { R::matrix_slots } -> std::convertible_to<int>;
};

template <class R>
concept UpdatesMatrices = requires(MatrixWork<memory::Host>& work, const MatrixPass& m,
                                   const typename R::Options& options) {
  requires R::matrix_slots >= 0 && R::matrix_slots <= R::slots;
  { R::matrix_needs } -> std::convertible_to<MatrixNeeds>;
  R::update_matrix(work, m, options);
};

template <class R>
concept MakesConstants = requires(const typename R::Options& options, std::int64_t step, float lr) {
  { R::at(options, step, lr) } -> std::same_as<typename R::Constants>;
};

template <class R>
concept MakesConstantsFromNorms = requires(const typename R::Options& options, std::int64_t step, float lr,
                                           const Norms& norms) {
  { R::at(options, step, lr, norms) } -> std::same_as<typename R::Constants>;
};

template <class R, class V>
concept UpdatesWithState = requires(V& p, const V& g, V (&state)[R::slots > 0 ? R::slots : 1],
                                    const typename R::Constants& k) {
  R::update(p, g, state, k);
};

template <class R, class V>
concept UpdatesWithoutState = requires(V& p, const V& g, const typename R::Constants& k) {
  R::update(p, g, k);
};

template <class R, class V>
concept Updates = (R::slots > 0 && UpdatesWithState<R, V>) || (R::slots == 0 && UpdatesWithoutState<R, V>);

// Of floats on a device, of vectors of floats on the host.
template <class R>
concept UpdatesElements = requires {
  requires Updates<R, float>;
  requires Updates<R, simd::Vec<float, 4>>;
};

template <class R, class V>
concept DirectsWithState = requires(V& d, const V& p, const V& g, V (&state)[R::slots > 0 ? R::slots : 1],
                                    const typename R::Constants& k) {
  R::direction(d, p, g, state, k);
};

template <class R, class V>
concept DirectsWithoutState = requires(V& d, const V& p, const V& g, const typename R::Constants& k) {
  R::direction(d, p, g, k);
};

template <class R, class V>
concept Directs = (R::slots > 0 && DirectsWithState<R, V>) || (R::slots == 0 && DirectsWithoutState<R, V>);

template <class R>
concept HasDirection = Directs<R, float>;

template <class R>
concept UpdatesByNorms = WantsNorms<R> && MakesConstantsFromNorms<R> && !TakesMatrices<R>;

template <class R>
concept UpdatesWithoutNorms =
    !WantsNorms<R> && MakesConstants<R> && !HasDirection<R> && (!TakesMatrices<R> || UpdatesMatrices<R>);

}  // namespace detail

/// A rule must have:
///   `Options`     an aggregate with defaults that lists its fields (core/fields.hpp), including `lr`. Groups
///                 of parameters may change a field `weight_decay`. A rule that decorates another (Ema,
///                 Lookahead) has the other rule's options as a field `rule` instead of these two;
///   `name`        compared between ranks and printed in logs;
///   `slots`       the number of floats of state per parameter; the state starts at zero;
///   `Constants`   what one step needs, trivially copyable, made by `at(options, step, lr)`, where `step`
///                 counts from 1 and `lr` is the learning rate after schedule and group;
///   `update`      `template <class V> CONVOY_INLINE static void update(V& p, const V& g, V (&state)[slots],
///                 const Constants&)`, without `state` if there are no slots. V is float, or a vector type
///                 with + - * / and a scalar operand, comparisons and ?: between vectors. Vectors have no
///                 functions of <cmath>; `optim::square_root(root, x)` takes floats and vectors. With a zero
///                 gradient, zero state and no weight decay, `update` must not change p: dead taps are then
///                 not updated at all.
///
/// A rule may have:
///   `check(options)`    throws ConfigError for invalid options;
///   `slot_names`        an array of `slots` names for checkpoints, such as PyTorch's; default "slot0", ...;
///   `per_tensor_norms`  if true, each tensor has its own constants, made by `at(options, step, lr, norms)`
///                       once the whole gradient is known;
///   `direction`         together with `per_tensor_norms`: `template <class V> CONVOY_INLINE static void
///                       direction(V& d, const V& p, const V& g, V (&state)[slots], const Constants&)`, the
///                       direction in which the update moves p; its norm replaces that of the gradient.
///                       `direction` gets constants made from norms of 0. It may write to `state`, but the
///                       result is discarded, and `update` computes it again. The state is thus read twice
///                       and written once, and a skipped step has nothing to undo.
///   `matrix_slots`      the number of slots of a matrix element, which are the first of `slots`. The rule
///                       updates each weight as a whole matrix, once its gradient is complete, by `template
///                       <class Work> static void update_matrix(Work&, const MatrixPass&, const Options&)`.
///                       Work is the MatrixWork of a space and provides what `matrix_needs` lists. `update`
///                       is for all other parameters: vectors, embeddings, the layer before a loss, and
///                       groups with `by_element`. Only in spaces that multiply matrices, and not together
///                       with `per_tensor_norms`.
template <class R>
concept Rule = detail::HasOptions<R> && fields::complete<typename R::Options> && detail::HasRate<R> &&
    detail::HasName<R> && detail::HasSlots<R> && detail::HasConstants<R> && detail::UpdatesElements<R> &&
    (detail::UpdatesByNorms<R> || detail::UpdatesWithoutNorms<R>);

/// Whether R is a Rule; if not, the only failing static_assert says what R lacks, and the value is false.
template <class R>
consteval bool is_rule() {
  if constexpr (!detail::HasOptions<R>) {
    static_assert(detail::HasOptions<R>,
                  "convoy: an optimizer must have Options, an aggregate that lists its members in static "
                  "fields(auto& self, auto&& field), as optim::Sgd and optim::Adam do");
    return false;
  } else if constexpr (!fields::complete<typename R::Options>) {
    static_assert(fields::complete<typename R::Options>,
                  "convoy: the list of fields of this optimizer's Options leaves a member out");
    return false;
  } else if constexpr (!detail::HasRate<R>) {
    static_assert(detail::HasRate<R>,
                  "convoy: an optimizer's Options must have a learning rate, float lr, which the schedule "
                  "multiplies");
    return false;
  } else if constexpr (!detail::HasName<R>) {
    static_assert(detail::HasName<R>,
                  "convoy: an optimizer must have static constexpr std::string_view name, which ranks "
                  "compare");
    return false;
  } else if constexpr (!detail::HasSlots<R>) {
    static_assert(detail::HasSlots<R>,
                  "convoy: an optimizer must say how many numbers of state a parameter has, in static "
                  "constexpr int slots, 0 or more");
    return false;
  } else if constexpr (!detail::HasConstants<R>) {
    static_assert(detail::HasConstants<R>,
                  "convoy: an optimizer must have Constants, a trivially copyable type of what one step "
                  "needs");
    return false;
  } else if constexpr (detail::WantsNorms<R> && !detail::MakesConstantsFromNorms<R>) {
    static_assert(detail::MakesConstantsFromNorms<R>,
                  "convoy: an optimizer with per_tensor_norms must make its Constants by static Constants "
                  "at(const Options&, std::int64_t step, float lr, const optim::Norms&)");
    return false;
  } else if constexpr (!detail::WantsNorms<R> && !detail::MakesConstants<R>) {
    static_assert(detail::MakesConstants<R>,
                  "convoy: an optimizer must make its Constants by static Constants at(const Options&, "
                  "std::int64_t step, float lr)");
    return false;
  } else if constexpr (!detail::Updates<R, float>) {
    static_assert(detail::Updates<R, float>,
                  "convoy: an optimizer must have template <class V> static void update(V& p, const V& g, V "
                  "(&state)[slots], const Constants&), without state where slots is 0");
    return false;
  } else if constexpr (!detail::Updates<R, simd::Vec<float, 4>>) {
    static_assert(detail::Updates<R, simd::Vec<float, 4>>,
                  "convoy: an optimizer's update must be a template over V, which is float or a vector of "
                  "floats");
    return false;
  } else if constexpr (detail::HasDirection<R> && !detail::WantsNorms<R>) {
    static_assert(detail::WantsNorms<R>,
                  "convoy: an optimizer has a direction for its norms, so it must have static constexpr bool "
                  "per_tensor_norms = true as well");
    return false;
  } else if constexpr (detail::HasDirection<R> && !detail::Directs<R, simd::Vec<float, 4>>) {
    static_assert(detail::Directs<R, simd::Vec<float, 4>>,
                  "convoy: an optimizer's direction must be a template over V, which is float or a vector of "
                  "floats");
    return false;
  } else if constexpr (detail::TakesMatrices<R>) {
    static_assert(detail::UpdatesMatrices<R>,
                  "convoy: an optimizer with matrix_slots, from 0 to slots, must have static constexpr "
                  "optim::MatrixNeeds matrix_needs and template <class Work> static void "
                  "update_matrix(Work&, const optim::MatrixPass&, const Options&)");
    static_assert(!detail::WantsNorms<R>,
                  "convoy: an optimizer goes by norms of tensors or takes matrices, not both");
    return detail::UpdatesMatrices<R> && !detail::WantsNorms<R>;
  } else {
    return true;
  }
}

/// sqrt(x) for x >= 0, for floats and vectors of floats. Vectors use plain arithmetic: a bit trick for the
/// initial estimate of 1/sqrt(x) and three Newton steps, which leave an error of at most 2 units in the last
/// place. The root of a subnormal x is too small in vectors, and that of infinity is negative.
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
