// Faults: what can be wrong with a model, as a value the builder records and as types whose names show the operation
// and both shapes in a compiler's message (a throw in a constant expression shows neither in g++).
#pragma once

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
  classes_differ,
  loss_is_not_a_number,
  name_too_long,
  name_taken,
  scopes_too_deep,
  no_loss,
};

struct Fault {
  FaultKind kind = FaultKind::none;
  Name where;
  Shape left, right;
};

// The operation's name and the shapes stand in the type, so that every compiler prints them.
template <Name operation, Shape left, Shape right>
struct ShapesAgree {
  static_assert(operation.empty(), "convoy: this operation needs two inputs of one shape: see ShapesAgree<operation, left, right>");
};
template <Name operation, Shape input, Shape window>
struct WindowFits {
  static_assert(operation.empty(), "convoy: the kernel of this operation is larger than its padded input: see WindowFits<operation, input, window>");
};
template <Name operation, Shape input>
struct InputIsAnImage {
  static_assert(operation.empty(), "convoy: this operation needs an input of [channels, height, width]: see InputIsAnImage<operation, input>");
};
template <Name operation, Shape input>
struct InputIsFlat {
  static_assert(operation.empty(), "convoy: this operation needs a flat input of [features], so flatten it first: see InputIsFlat<operation, input>");
};
template <Name operation, Shape extents>
struct ExtentsArePositive {
  static_assert(operation.empty(), "convoy: channels, features, classes, kernel and stride must be positive: see ExtentsArePositive<operation, extents>");
};
template <Name operation, Shape logits, Shape classes>
struct ClassesAgree {
  static_assert(operation.empty(), "convoy: the label has another number of classes than the logits: see ClassesAgree<operation, logits, classes>");
};
template <Name operation, Shape loss>
struct LossIsANumber {
  static_assert(operation.empty(), "convoy: a loss must be one number a row: see LossIsANumber<operation, shape>");
};
template <Name name>
struct NameFits {
  static_assert(name.empty(), "convoy: a name within its scopes must be of at most 63 characters: see NameFits<beginning>");
};
template <Name name>
struct NameIsUnique {
  static_assert(name.empty(), "convoy: two operations of the model have this name: see NameIsUnique<name>");
};
template <Name scope>
struct ScopesNest {
  static_assert(scope.empty(), "convoy: scopes nest at most 15 deep: see ScopesNest<scope>");
};
template <class Model>
struct ModelHasALoss {
  static_assert(sizeof(Model) == 0, "convoy: the model declares no loss, so nothing can be trained: call g.loss(...) in define");
};

/// Instantiates the diagnostic of a fault, if there is one. True when the model is well formed.
template <class Model, const Fault& fault>
consteval bool diagnose() {
  if constexpr (fault.kind == FaultKind::shapes_differ) (void)sizeof(ShapesAgree<fault.where, fault.left, fault.right>);
  else if constexpr (fault.kind == FaultKind::window_does_not_fit) (void)sizeof(WindowFits<fault.where, fault.left, fault.right>);
  else if constexpr (fault.kind == FaultKind::input_is_not_an_image) (void)sizeof(InputIsAnImage<fault.where, fault.left>);
  else if constexpr (fault.kind == FaultKind::input_is_not_flat) (void)sizeof(InputIsFlat<fault.where, fault.left>);
  else if constexpr (fault.kind == FaultKind::extent_is_not_positive) (void)sizeof(ExtentsArePositive<fault.where, fault.left>);
  else if constexpr (fault.kind == FaultKind::classes_differ) (void)sizeof(ClassesAgree<fault.where, fault.left, fault.right>);
  else if constexpr (fault.kind == FaultKind::loss_is_not_a_number) (void)sizeof(LossIsANumber<fault.where, fault.left>);
  else if constexpr (fault.kind == FaultKind::name_too_long) (void)sizeof(NameFits<fault.where>);
  else if constexpr (fault.kind == FaultKind::name_taken) (void)sizeof(NameIsUnique<fault.where>);
  else if constexpr (fault.kind == FaultKind::scopes_too_deep) (void)sizeof(ScopesNest<fault.where>);
  else if constexpr (fault.kind == FaultKind::no_loss) (void)sizeof(ModelHasALoss<Model>);
  return fault.kind == FaultKind::none;
}

/// The same faults at run time, as one sentence.
[[noreturn]] inline void raise(const Fault& fault) {
  const auto& [kind, where, left, right] = fault;
  switch (kind) {
    case FaultKind::shapes_differ: fail<ModelError>("model: ", where, " needs two inputs of one shape, not ", left, " and ", right);
    case FaultKind::window_does_not_fit: fail<ModelError>("model: ", where, " has a kernel of ", right, " on an input of ", left, ", padding included");
    case FaultKind::input_is_not_an_image: fail<ModelError>("model: ", where, " needs an input of [channels x height x width], not ", left);
    case FaultKind::input_is_not_flat: fail<ModelError>("model: ", where, " needs a flat input, not ", left);
    case FaultKind::extent_is_not_positive: fail<ModelError>("model: ", where, " has an extent that is not positive among ", left);
    case FaultKind::classes_differ: fail<ModelError>("model: ", where, " compares logits of ", left, " with a label of ", right, " classes");
    case FaultKind::loss_is_not_a_number: fail<ModelError>("model: the loss ", where, " has the shape ", left, " a row, not one number");
    case FaultKind::name_too_long: fail<ModelError>("model: the name beginning with ", where, " is longer than 63 characters");
    case FaultKind::name_taken: fail<ModelError>("model: two operations are named ", where);
    case FaultKind::scopes_too_deep: fail<ModelError>("model: scopes nest deeper than 15 at ", where);
    case FaultKind::no_loss: fail<ModelError>("model: it declares no loss, so nothing can be trained");
    case FaultKind::none: break;
  }
  fail<ModelError>("model: it is well formed");
}

}  // namespace convoy::graph
