// Faults: what can be wrong with a model, as a value the builder records and as functions whose names show
// the operation and both shapes in a compiler's message (a throw in a constant expression shows neither in
// g++).
#pragma once

#include <cstddef>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/core/name.hpp>
#include <convoy/core/shape.hpp>

namespace convoy::graph {

enum class FaultKind : unsigned char {
  none,
  shapes_differ,
  window_does_not_fit,
  input_is_not_an_image,
  input_is_not_flat,
  extent_is_not_positive,
  padding_is_wrong,
  classes_differ,
  loss_is_not_a_number,
  name_too_long,
  name_taken,
  scopes_too_deep,
  no_loss,
  reported,  ///< a static_assert has said already what is wrong
};

struct Fault {
  FaultKind kind = FaultKind::none;
  Name where;
  Shape left, right;
};

#if defined(__clang__) && __clang_major__ < 15
// This compiler prints the characters of a Name as numbers, but those of a list of characters as characters.
template <char... name>
struct Called {};
template <Name name, std::size_t... i>
Called<name.text[i]...> spell(std::index_sequence<i...>);
template <Name name>
using Spelled = decltype(spell<name>(std::make_index_sequence<name.length>{}));
#else
template <Name name>
struct Called {};
template <Name name>
using Spelled = Called<name>;
#endif

// What is asserted of a faulty model: false, and its template arguments are what a compiler prints.
template <class, Shape...>
inline constexpr bool holds = false;

// One function for each fault. The operation's name and the shapes stand in its template arguments, so that
// every compiler prints them. Functions rather than classes: clang goes on after an assertion that fails
// inside a function.
template <class Operation, Shape left, Shape right>
consteval bool shapes_agree() {
  static_assert(holds<Operation, left, right>, "convoy: this operation needs two inputs of one shape");
  return false;
}
template <class Operation, Shape input, Shape window>
consteval bool window_fits() {
  static_assert(holds<Operation, input, window>,
                "convoy: the kernel of this operation is larger than its padded input");
  return false;
}
template <class Operation, Shape input>
consteval bool input_is_an_image() {
  static_assert(holds<Operation, input>,
                "convoy: this operation needs an input of [channels, height, width]");
  return false;
}
template <class Operation, Shape input>
consteval bool input_is_flat() {
  static_assert(holds<Operation, input>,
                "convoy: this operation needs a flat input of [features], so flatten it first");
  return false;
}
template <class Operation, Shape extents>
consteval bool extents_are_positive() {
  static_assert(holds<Operation, extents>,
                "convoy: shapes, channels, features, classes, kernel and stride must be positive");
  return false;
}
template <class Operation, Shape kernel, Shape padding>
consteval bool padding_is_sound() {
  static_assert(holds<Operation, kernel, padding>,
                "convoy: a padding is not negative, and in a pooling at most half the kernel");
  return false;
}
template <class Operation, Shape logits, Shape classes>
consteval bool classes_agree() {
  static_assert(holds<Operation, logits, classes>,
                "convoy: the label has another number of classes than the logits");
  return false;
}
template <class Operation, Shape loss>
consteval bool loss_is_a_number() {
  static_assert(holds<Operation, loss>, "convoy: a loss must be one number a row");
  return false;
}
template <class Operation>
consteval bool name_fits() {
  static_assert(
      holds<Operation>,
      "convoy: a name within its scopes must be of at most 63 characters, those of its parameters included");
  return false;
}
template <class Operation>
consteval bool name_is_unique() {
  static_assert(holds<Operation>, "convoy: two operations of the model have this name");
  return false;
}
template <class Operation>
consteval bool scopes_nest() {
  static_assert(holds<Operation>, "convoy: scopes nest at most 15 deep");
  return false;
}
template <class Model>
consteval bool model_has_a_loss() {
  static_assert(holds<Model>,
                "convoy: the model declares no loss, so nothing can be trained: call g.loss(...) in define");
  return false;
}

/// Instantiates the diagnostic of a fault, if there is one. True when the model is well formed.
template <class Model, const Fault& fault>
consteval bool diagnose() {
  if constexpr (fault.kind == FaultKind::shapes_differ)
    return shapes_agree<Spelled<fault.where>, fault.left, fault.right>();
  else if constexpr (fault.kind == FaultKind::window_does_not_fit)
    return window_fits<Spelled<fault.where>, fault.left, fault.right>();
  else if constexpr (fault.kind == FaultKind::input_is_not_an_image)
    return input_is_an_image<Spelled<fault.where>, fault.left>();
  else if constexpr (fault.kind == FaultKind::input_is_not_flat)
    return input_is_flat<Spelled<fault.where>, fault.left>();
  else if constexpr (fault.kind == FaultKind::extent_is_not_positive)
    return extents_are_positive<Spelled<fault.where>, fault.left>();
  else if constexpr (fault.kind == FaultKind::padding_is_wrong)
    return padding_is_sound<Spelled<fault.where>, fault.left, fault.right>();
  else if constexpr (fault.kind == FaultKind::classes_differ)
    return classes_agree<Spelled<fault.where>, fault.left, fault.right>();
  else if constexpr (fault.kind == FaultKind::loss_is_not_a_number)
    return loss_is_a_number<Spelled<fault.where>, fault.left>();
  else if constexpr (fault.kind == FaultKind::name_too_long)
    return name_fits<Spelled<fault.where>>();
  else if constexpr (fault.kind == FaultKind::name_taken)
    return name_is_unique<Spelled<fault.where>>();
  else if constexpr (fault.kind == FaultKind::scopes_too_deep)
    return scopes_nest<Spelled<fault.where>>();
  else if constexpr (fault.kind == FaultKind::no_loss)
    return model_has_a_loss<Model>();
  else
    return fault.kind == FaultKind::none;
}

/// The same faults at run time, as one sentence.
[[noreturn]] inline void raise(const Fault& fault) {
  const auto& [kind, where, left, right] = fault;
  switch (kind) {
    case FaultKind::shapes_differ:
      fail<ModelError>("model: ", where, " needs two inputs of one shape, not ", left, " and ", right);
    case FaultKind::window_does_not_fit:
      fail<ModelError>("model: ", where, " has a kernel of ", right, " on an input of ", left,
                       ", padding included");
    case FaultKind::input_is_not_an_image:
      fail<ModelError>("model: ", where, " needs an input of [channels x height x width], not ", left);
    case FaultKind::input_is_not_flat:
      fail<ModelError>("model: ", where, " needs a flat input, not ", left);
    case FaultKind::extent_is_not_positive:
      fail<ModelError>("model: ", where, " has an extent that is not positive among ", left);
    case FaultKind::padding_is_wrong:
      fail<ModelError>("model: ", where, " has a padding of ", right, " at a kernel of ", left,
                       "; it must not be negative, nor in a pooling more than half the kernel");
    case FaultKind::classes_differ:
      fail<ModelError>("model: ", where, " compares logits of ", left, " with a label of ", right,
                       " classes");
    case FaultKind::loss_is_not_a_number:
      fail<ModelError>("model: a loss must be one number a row, not ", left);
    case FaultKind::name_too_long:
      fail<ModelError>("model: the name beginning with ", where, " is longer than 63 characters");
    case FaultKind::name_taken:
      fail<ModelError>("model: two operations are named ", where);
    case FaultKind::scopes_too_deep:
      fail<ModelError>("model: scopes nest deeper than 15 at ", where);
    case FaultKind::no_loss:
      fail<ModelError>("model: it declares no loss, so nothing can be trained");
    case FaultKind::reported:
    case FaultKind::none:
      break;
  }
  fail<ModelError>("model: it is well formed");
}

}  // namespace convoy::graph
