// Faults: what can be wrong with a model. A fault is a value that the builder records. At compile time it
// becomes a function whose template arguments show the operation and both shapes in the compiler's message;
// with a throw in a constant expression, g++ shows neither. Faults common to several operations are defined
// here, an operation's own faults with the operation.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/core/name.hpp>
#include <convoy/core/shape.hpp>

namespace convoy::graph {

/// Faults that are not specific to one operation.
enum class Common : int {
  shapes_differ,
  window_does_not_fit,
  input_is_not_an_image,
  input_is_an_image,
  input_is_not_a_sequence,
  extent_is_not_positive,
  extent_is_too_large,
  too_many_extents,
  padding_is_wrong,
  normalization_is_wrong,
  parameter_does_not_fit,
  input_is_of_another_dtype,
  loss_is_not_a_number,
  weight_is_not_positive,
  deviation_is_wrong,
  nothing_is_given,
  name_too_long,
  name_is_empty,
  name_taken,
  scopes_too_deep,
  no_loss,
  reported,  ///< a static_assert has already reported the fault
};

/// `which` is one of the faults of operation `op`, or of Common if `op` is `common`.
struct Fault {
  static constexpr int none = -1, common = -2;
  int op = none;
  int which = 0;
  Name where;
  Shape left, right;

  constexpr bool is(Common kind) const { return op == common && which == static_cast<int>(kind); }
};

#if defined(__clang__)
// clang 14 prints the characters of a Name as numbers, and clang 19 only the first ten. Both print a pack of
// char as characters.
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

// The false condition asserted for a faulty model. The compiler prints its template arguments.
template <class, Shape...>
inline constexpr bool holds = false;

/// Reports a common fault as the only failing static_assert. A function, because clang continues after an
/// assertion that fails inside one.
template <Common which, class Model, class Where, Shape left, Shape right>
consteval bool refuse() {
  if constexpr (which == Common::shapes_differ)
    static_assert(holds<Where, left, right>, "convoy: this operation needs two inputs of one shape");
  else if constexpr (which == Common::window_does_not_fit)
    static_assert(holds<Where, left, right>,
                  "convoy: the kernel of this operation is larger than its padded input");
  else if constexpr (which == Common::input_is_not_an_image)
    static_assert(holds<Where, left>, "convoy: this operation needs an input of [channels, height, width]");
  else if constexpr (which == Common::input_is_an_image)
    static_assert(holds<Where, left>,
                  "convoy: this operation needs a row or a sequence of features, so flatten the image or the "
                  "number first");
  else if constexpr (which == Common::input_is_not_a_sequence)
    static_assert(holds<Where, left>, "convoy: this operation needs a sequence of [positions, features]");
  else if constexpr (which == Common::extent_is_not_positive)
    static_assert(holds<Where, left>,
                  "convoy: shapes, channels, features, classes, kernel, stride and fans must be positive");
  else if constexpr (which == Common::extent_is_too_large)
    static_assert(holds<Where, left>, "convoy: an extent is at most 2147483647");
  else if constexpr (which == Common::too_many_extents)
    static_assert(holds<Where, left>,
                  "convoy: a value has at most three extents, [channels, height, width], those of one row of "
                  "the batch");
  else if constexpr (which == Common::padding_is_wrong)
    static_assert(holds<Where, left, right>,
                  "convoy: a padding is not negative, and in a pooling at most half the kernel");
  else if constexpr (which == Common::normalization_is_wrong)
    static_assert(
        holds<Where, left>,
        "convoy: the epsilon of a norm is at least 0, and the momentum of a batch norm from 0 to 1");
  else if constexpr (which == Common::parameter_does_not_fit)
    static_assert(holds<Where, left, right>,
                  "convoy: the parameter given to this operation has another shape than the one it needs");
  else if constexpr (which == Common::input_is_of_another_dtype)
    static_assert(holds<Where, left>, "convoy: this operation needs an input of another element type");
  else if constexpr (which == Common::loss_is_not_a_number)
    static_assert(holds<Where, left>, "convoy: a loss must be one number a row");
  else if constexpr (which == Common::weight_is_not_positive)
    static_assert(holds<Model>, "convoy: the weight of a loss must be positive and finite");
  else if constexpr (which == Common::deviation_is_wrong)
    static_assert(holds<Where>, "convoy: the standard deviation of a parameter is at least 0 and finite");
  else if constexpr (which == Common::nothing_is_given)
    static_assert(holds<Where>,
                  "convoy: this operation is given a Tensor, a Label or a Handle that was never assigned");
  else if constexpr (which == Common::name_too_long)
    static_assert(holds<Where>,
                  "convoy: a name within its scopes must be of at most 63 characters, those of its "
                  "parameters included");
  else if constexpr (which == Common::name_is_empty)
    static_assert(holds<Where>, "convoy: a name must not be empty or end with a dot");
  else if constexpr (which == Common::name_taken)
    static_assert(
        holds<Where>,
        "convoy: two operations, parameters, statistics, outputs or metrics of the model have this name");
  else if constexpr (which == Common::scopes_too_deep)
    static_assert(holds<Where>, "convoy: scopes nest at most 15 deep");
  else if constexpr (which == Common::no_loss)
    static_assert(
        holds<Model>,
        "convoy: the model declares no loss, so nothing can be trained: call g.loss(...) in define");
  return false;
}

/// The message for a common fault at run time.
inline std::string explain(Common which, const Name& where, const Shape& left, const Shape& right) {
  switch (which) {
    case Common::shapes_differ:
      return concat(where, " needs two inputs of one shape, not ", left, " and ", right);
    case Common::window_does_not_fit:
      return concat(where, " has a kernel of ", right, " on an input of ", left, ", padding included");
    case Common::input_is_not_an_image:
      return concat(where, " needs an input of [channels x height x width], not ", left);
    case Common::input_is_an_image:
      return concat(where, " needs a row or a sequence of features, not ",
                    left.rank == 0 ? "a number" : concat("an image of ", left), "; flatten it first");
    case Common::input_is_not_a_sequence:
      return concat(where, " needs a sequence of [positions x features], not ", left);
    case Common::extent_is_not_positive:
      return concat(where, " has an extent that is not positive among ", left);
    case Common::extent_is_too_large:
      return concat(where, " makes an extent of more than 2147483647 of ", left);
    case Common::too_many_extents:
      return concat(
          where, " has four extents, ", left,
          "; a value has at most three, [channels x height x width], those of one row of the batch");
    case Common::padding_is_wrong:
      return concat(where, " has a padding of ", right, " at a kernel of ", left,
                    "; it must not be negative, nor in a pooling more than half the kernel");
    case Common::normalization_is_wrong:
      return concat(where, " has an epsilon that is not at least 0 or a momentum that is not from 0 to 1");
    case Common::parameter_does_not_fit:
      return concat(where, " needs a parameter of ", right, ", not one of ", left);
    case Common::input_is_of_another_dtype:
      return concat(where, " needs an input of another element type than that of ", left);
    case Common::loss_is_not_a_number:
      return concat("a loss must be one number a row, not ", left);
    case Common::weight_is_not_positive:
      return "the weight of a loss must be positive and finite";
    case Common::deviation_is_wrong:
      return concat(where, " has a parameter whose standard deviation is not at least 0 and finite");
    case Common::nothing_is_given:
      return concat(where, " is given a Tensor, a Label or a Handle that was never assigned");
    case Common::name_too_long:
      return concat("the name beginning with ", where, " is longer than 63 characters");
    case Common::name_is_empty:
      return concat("the name '", where, "' is empty or ends with a dot");
    case Common::name_taken:
      return concat("two operations, parameters, statistics, outputs or metrics are named ", where);
    case Common::scopes_too_deep:
      return concat("scopes nest deeper than 15 at ", where);
    case Common::no_loss:
      return "it declares no loss, so nothing can be trained";
    case Common::reported:
      break;
  }
  return "it is not well formed";
}

}  // namespace convoy::graph
