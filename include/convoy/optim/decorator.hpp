// Decorator: the base of rules that extend another rule's step, with one more number of state per parameter.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <convoy/optim/rule.hpp>
#include <convoy/parallel/simd.hpp>

namespace convoy::optim::detail {

/// The characters of "word(inner)"; `size` must be their number. (nvcc rejects strings as template
/// arguments.)
template <std::size_t size>
constexpr std::array<char, size> bracketed(std::string_view word, std::string_view inner) {
  std::array<char, size> all{};
  std::size_t at = 0;
  for (const std::string_view part : {word, std::string_view("("), inner, std::string_view(")")})
    for (const char c : part) all[at++] = c;
  return all;
}

template <class R>
struct Decorator {
  static_assert(
      !TakesMatrices<R>,
      "convoy: Ema and Lookahead go on from a rule that updates elements, and this one updates whole "
      "matrices");
  static constexpr int slots = R::slots + 1;
  static constexpr int own = R::slots;  ///< the slot that the decorator adds
  static constexpr bool per_tensor_norms = WantsNorms<R>;

 protected:
  /// The decorated rule's check of its own options.
  static void check_rule(const typename R::Options& options) {
    if constexpr (requires { R::check(options); }) R::check(options);
  }

  /// The decorated rule's slot names and one more.
  static constexpr std::array<std::string_view, slots> names_with(std::string_view last) {
    std::array<std::string_view, slots> names{};
    if constexpr (R::slots > 0) {
      static_assert(
          requires { std::string_view(R::slot_names[0]); },
          "convoy: a rule that is decorated must name its state, in static constexpr "
          "std::array<std::string_view, slots> slot_names");
      for (int s = 0; s < R::slots; ++s)
        names[static_cast<std::size_t>(s)] = R::slot_names[static_cast<std::size_t>(s)];
    }
    names[static_cast<std::size_t>(own)] = last;
    return names;
  }

  /// The decorated rule's step on its part of the state.
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void inner_update(V& p, const V& g,
                                                                           V (&state)[slots],
                                                                           const typename R::Constants& k) {
    if constexpr (R::slots > 0) {
      V inner[R::slots]{};
      CONVOY_UNROLL
      for (int s = 0; s < R::slots; ++s) inner[s] = state[s];
      R::update(p, g, inner, k);
      CONVOY_UNROLL
      for (int s = 0; s < R::slots; ++s) state[s] = inner[s];
    } else {
      R::update(p, g, k);
    }
  }
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void inner_direction(
      V& d, const V& p, const V& g, V (&state)[slots], const typename R::Constants& k) {
    if constexpr (R::slots > 0) {
      V inner[R::slots]{};
      CONVOY_UNROLL
      for (int s = 0; s < R::slots; ++s) inner[s] = state[s];
      R::direction(d, p, g, inner, k);
    } else {
      R::direction(d, p, g, k);
    }
  }
};

}  // namespace convoy::optim::detail
