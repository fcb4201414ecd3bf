// Fields: the members of an options type, listed once. The list serves rank comparison, JSON and checkpoints.
// An options type is an aggregate that lists its members by name:
//
//     struct Options {
//       float lr = 1e-3f;
//       int threads = 0;
//       static constexpr void fields(auto& self, auto&& field) {
//         field("lr", self.lr);
//         field("threads", self.threads, fields::local);  // each rank may have another value
//       }
//     };
//
// Using a list that omits a member is a compile error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <convoy/core/call.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

#if CONVOY_DEFINITIONS
#include <charconv>
#endif

namespace convoy::fields {

/// Marks a field whose value may differ between ranks.
struct Local {};
inline constexpr Local local{};

template <class T>
[[gnu::cold]] std::string text_of(const T& value);

namespace detail {

struct Ignore {
  constexpr void operator()(std::string_view, const auto&) const {}
  constexpr void operator()(std::string_view, const auto&, Local) const {}
};

struct Count {
  int* count;
  constexpr void operator()(std::string_view, const auto&) const { ++*count; }
  constexpr void operator()(std::string_view, const auto&, Local) const { ++*count; }
};

// Converts to any type; used to probe how many initializers an aggregate takes.
struct Anything {
  template <class T>
  operator T() const;
};

template <class T, std::size_t... i>
consteval bool takes(std::index_sequence<i...>) {
  return requires { T{(static_cast<void>(i), Anything{})...}; };
}

template <class T, std::size_t n = 0>
consteval int members() {
  if constexpr (takes<T>(std::make_index_sequence<n + 1>{}))
    return members<T, n + 1>();
  else
    return static_cast<int>(n);
}

// An object that is never constructed: `fields` only needs the addresses of its members. clang requires a
// definition if the type is in an unnamed namespace; GCC would emit that definition and its destructor into
// the program.
#if defined(__clang__)
template <class T>
union Room {
  char nothing = 0;
  T object;
  constexpr Room() {}
  constexpr ~Room() {}
};
template <class T>
inline Room<T> room;
template <class T>
consteval T& nowhere() {
  return room<T>.object;
}
#else
template <class T>
extern T unmade;
template <class T>
consteval T& nowhere() {
  return unmade<T>;
}
#endif

template <class T>
consteval int listed() {
  int count = 0;
  T::fields(nowhere<T>(), Count{&count});
  return count;
}

template <class Visit>
struct Visitor {
  Visit& visit;
  constexpr void operator()(std::string_view name, auto& member) const {
    visit(name, member, std::true_type{});
  }
  constexpr void operator()(std::string_view name, auto& member, Local) const {
    visit(name, member, std::false_type{});
  }
};

// Values of every type are converted by one of these. They are marked cold because they run once per
// training, and code optimized for size compiles faster.
[[gnu::cold]] std::string text(bool value);
[[gnu::cold]] std::string text(std::int64_t value);
[[gnu::cold]] std::string text(std::uint64_t value);
[[gnu::cold]] std::string text(float value);
[[gnu::cold]] std::string text(double value);
[[gnu::cold]] std::string text(long double value);

// Lists the fields of a type as "name=value".
struct Assignments {
  std::string& list;
  template <class T>
  void operator()(std::string_view name, const T& member) const {
    append(name, text_of(member));
  }
  template <class T>
  void operator()(std::string_view name, const T& member, Local) const {
    append(name, text_of(member));
  }
  [[gnu::cold]] void append(std::string_view name, const std::string& value) const;
};

}  // namespace detail

/// A type that lists its fields.
template <class T>
concept Listed = std::is_aggregate_v<T> && requires(T& value) {
  T::fields(value, detail::Ignore{});
};

/// Whether the list of a type has as many entries as the type has members.
template <Listed T>
inline constexpr bool complete = detail::members<T>() == detail::listed<T>();

/// Calls `visit(name, member, agreed)` for each field in the order of the list; `agreed` is std::true_type if
/// all ranks must have the same value, else std::false_type.
template <class T, class Visit>
constexpr void for_each(T& options, Visit&& visit) {
  using Plain = std::remove_const_t<T>;
  static_assert(Listed<Plain>,
                "convoy: an options type must list its members in static fields(auto& self, auto&& field)");
  static_assert(complete<Plain>, "convoy: the list of fields of this options type leaves a member out");
  Plain::fields(options, detail::Visitor<std::remove_reference_t<Visit>>{visit});
}

/// A value as text that distinguishes it from every other value of its type: numbers with as many digits as
/// necessary, enumerators by `name_of` if it exists, pointers, functions and the like only as "none" or
/// "given".
template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    if constexpr (requires { std::string(name_of(value)); })
      return std::string(name_of(value));
    else
      return detail::text(static_cast<std::int64_t>(value));
  } else if constexpr (std::is_pointer_v<T>) {
    return value == nullptr ? "none" : "given";
  } else if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T>) {
    return detail::text(value);
  } else if constexpr (std::is_integral_v<T>) {
    return detail::text(
        static_cast<std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>>(value));
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return std::string(std::string_view(value));
  } else if constexpr (requires {
                         value.has_value();
                         *value;
                       }) {
    return value.has_value() ? text_of(*value) : std::string("none");
  } else if constexpr (requires {
                         value.count();
                         typename T::period;
                       }) {
    return text_of(value.count());  // a duration in its own unit
  } else if constexpr (Listed<T>) {
    static_assert(complete<T>, "convoy: the list of fields of this options type leaves a member out");
    std::string list;
    T::fields(value, detail::Assignments{list});
    return concat('{', list, '}');
  } else if constexpr (requires { static_cast<bool>(value); }) {
    return static_cast<bool>(value) ? "given" : "none";
  } else {
    std::string list;
    for (const auto& element : value) append_item(list, text_of(element));
    return concat('[', list, ']');
  }
}

/// Callback that receives a field's name, its value as text, and whether ranks must agree on it.
using TextVisit = Call<void(std::string_view name, const std::string& text, bool agreed)>;

namespace detail {

// The visitor for a list of fields. It does not depend on the options type, so all options types share the
// instantiation for each member type.
class Texts {
 public:
  Texts(std::string_view prefix, TextVisit visit, bool agreed)
      : prefix_(prefix), visit_(visit), agreed_(agreed) {}

  template <class T>
  void operator()(std::string_view name, const T& member) const {
    field(name, member, agreed_);
  }
  template <class T>
  void operator()(std::string_view name, const T& member, Local) const {
    field(name, member, false);
  }

 private:
  template <class T>
  [[gnu::cold]] void field(std::string_view name, const T& member, bool agreed) const {
    const auto inner = [&](std::string_view inner_name, const std::string& text, bool inner_agreed) {
      visit_(inner_name, text, agreed && inner_agreed);
    };
    if constexpr (requires { member.for_each_text(name, inner); }) {
      member.for_each_text(std::string_view(full(name)), inner);
    } else if constexpr (Listed<T>) {
      static_assert(complete<T>, "convoy: the list of fields of this options type leaves a member out");
      T::fields(member, Texts(full(name), visit_, agreed));
    } else {
      visit(name, text_of(member), agreed);
    }
  }
  // Calls the callback with the full name.
  [[gnu::cold]] void visit(std::string_view name, const std::string& text, bool agreed) const;
  [[gnu::cold]] std::string full(std::string_view name) const;

  std::string_view prefix_;
  TextVisit visit_;
  bool agreed_;
};

#if CONVOY_DEFINITIONS
template <class Number>
[[gnu::cold]] std::string digits(Number value) {
  char buffer[64];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
}

CONVOY_FUNCTION std::string text(bool value) { return value ? "true" : "false"; }
CONVOY_FUNCTION std::string text(std::int64_t value) { return digits(value); }
CONVOY_FUNCTION std::string text(std::uint64_t value) { return digits(value); }
CONVOY_FUNCTION std::string text(float value) { return digits(value); }
CONVOY_FUNCTION std::string text(double value) { return digits(value); }
CONVOY_FUNCTION std::string text(long double value) { return digits(value); }

CONVOY_FUNCTION void Assignments::append(std::string_view name, const std::string& value) const {
  append_item(list, concat(name, '=', value));
}

CONVOY_FUNCTION std::string Texts::full(std::string_view name) const {
  std::string both(prefix_);
  both.append(both.empty() ? "" : ".").append(name);
  return both;
}

CONVOY_FUNCTION void Texts::visit(std::string_view name, const std::string& text, bool agreed) const {
  visit_(full(name), text, agreed);
}
#endif

}  // namespace detail

/// Calls `visit(name, text, agreed)` for each field. Fields of nested options types are named `outer.inner`.
/// `prefix`, unless empty, precedes every name in the same way.
template <Listed T>
void for_each_text(std::string_view prefix, const T& options, TextVisit visit) {
  static_assert(complete<T>, "convoy: the list of fields of this options type leaves a member out");
  T::fields(options, detail::Texts(prefix, visit, true));
}

}  // namespace convoy::fields
