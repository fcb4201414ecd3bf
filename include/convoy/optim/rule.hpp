// Rule: an optimizer as arithmetic on one element. The same function runs on a float, on a vector of floats
// and on a device, so that the update is one fused pass wherever the arenas lie.
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
  float gradient = 0;   ///< of the gradient that the update takes, after clipping; of the direction where the
                        ///< rule has one
  float parameter = 0;  ///< before the update; dead taps are part of all norms
};

namespace detail {

template <class R>
concept HasOptions = fields::Listed<typename R::Options>;

// The options that have the learning rate: of a decorator those of the rule that it decorates.
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
concept UpdatesMatrices = R::matrix_slots >= 0 &&
                          R::matrix_slots <= R::slots&& requires(MatrixWork<memory::Host>& work,
                                                                 const MatrixPass& m,
                                                                 const typename R::Options& options) {
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

}  // namespace detail

/// What an optimizer must have:
///   `Options`     an aggregate with defaults that lists its fields (core/fields.hpp), `lr` among them; one
///                 named `weight_decay` is what groups of parameters change; a rule that decorates another
///                 one (Ema, Lookahead) has that one's options, `rule`, in the place of both;
///   `name`        what ranks compare and logs print;
///   `slots`       how many numbers of state each parameter has, starting at zero;
///   `Constants`   what one step needs, trivially copyable, made by `at(options, step, lr)`, step counting
///                 from 1 and `lr` being the rate after schedule and group;
///   `update`      `template <class V> CONVOY_INLINE static void update(V& p, const V& g, V (&state)[slots],
///                 const Constants&)`, without `state` where there are no slots. V is float, or a vector type
///                 with + - * / and a scalar operand, comparisons and ?: between vectors. It has no functions
///                 of <cmath>: `optim::square_root(root, x)` takes both. Zero gradients, zero state and no
///                 weight decay must leave p as it is: dead taps are then left alone.
///
/// What it may have:
///   `check(options)`    throws ConfigError for options that make no sense;
///   `slot_names`        an array of `slots` names for checkpoints, such as PyTorch's; else "slot0", "slot1";
///   `per_tensor_norms`  true: the constants are made by `at(options, step, lr, norms)`, for each tensor its
///                       own, once the whole gradient is known;
///   `direction`         beside `per_tensor_norms`: `template <class V> CONVOY_INLINE static void
///                       direction(V& d, const V& p, const V& g, V (&state)[slots], const Constants&)`, the
///                       direction in which the update moves p, whose norm takes the place of the
///                       gradient's. It goes by constants made from norms of 0 and may write into `state`, of
///                       which nothing is kept: `update` does the same again. So the state is read twice but
///                       written once, and a step that is skipped has nothing to undo.
///   `matrix_slots`      how many of the slots, the first ones, a matrix has: the rule updates weights as
///                       whole matrices, once the gradient of each is there, by `template <class Work> static
///                       void update_matrix(Work&, const MatrixPass&, const Options&)`, where Work is the
///                       MatrixWork of a space, which has what `matrix_needs` says. `update` is for all else:
///                       vectors, embeddings, the layer before a loss, and what groups say. Only in spaces
///                       that multiply, and not beside `per_tensor_norms`.
template <class R>
concept Rule = detail::HasOptions<R> && fields::complete<typename R::Options> && detail::HasRate<R> &&
               detail::HasName<R> && detail::HasSlots<R> && detail::HasConstants<R> &&
               ((detail::WantsNorms<R> && detail::MakesConstantsFromNorms<R>) ||
                (!detail::WantsNorms<R> && detail::MakesConstants<R>)) &&
               (detail::WantsNorms<R> ||
                !detail::HasDirection<R>)&&(!detail::TakesMatrices<R> ||
                                            (detail::UpdatesMatrices<R> && !detail::WantsNorms<R>)) &&
               detail::Updates<R, float>&& detail::Updates<R, simd::Vec<float, 4>>;

/// Whether R is a Rule; if not, the one failing static_assert says what it lacks, and the value is false.
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
