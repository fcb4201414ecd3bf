// Fields: what an options type consists of, listed once. Ranks compare that list, JSON and checkpoints are
// written from it. An options type is an aggregate that lists its members by name:
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
// A list that leaves a member out does not compile where it is read.
#pragma once

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace convoy::fields {

/// Marks a field in which ranks may differ.
struct Local {};
inline constexpr Local local{};

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

// Stands for a value of any type where an aggregate is initialised.
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

// Room for an object that is never made: its members have addresses, which is all that a list asks for.
template <class T>
union Room {
  char nothing;
  T object;
  constexpr Room() : nothing() {}
  constexpr ~Room() {}
};
template <class T>
consteval int listed() {
  int count = 0;
  Room<T> room;
  T::fields(room.object, Count{&count});
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

}  // namespace detail

/// A type that lists its fields.
template <class T>
concept Listed = std::is_aggregate_v<T> && requires(T& value) {
  T::fields(value, detail::Ignore{});
};

/// Whether the list of a type names as many members as the type has.
template <Listed T>
inline constexpr bool complete = detail::members<T>() == detail::listed<T>();

/// Calls `visit(name, member, agreed)` for each field in the order of the list; `agreed` is std::true_type
/// for a field in which ranks must not differ, else std::false_type.
template <class T, class Visit>
constexpr void for_each(T& options, Visit&& visit) {
  using Plain = std::remove_const_t<T>;
  static_assert(Listed<Plain>,
                "convoy: an options type must list its members in static fields(auto& self, auto&& field)");
  static_assert(complete<Plain>, "convoy: the list of fields of this options type leaves a member out");
  Plain::fields(options, detail::Visitor<std::remove_reference_t<Visit>>{visit});
}

/// A value as a text that tells it from every other of its type: numbers in as many digits as that needs,
/// enumerators by `name_of` where they have names.
template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_enum_v<T>) {
    if constexpr (requires { std::string(name_of(value)); })
      return std::string(name_of(value));
    else
      return std::to_string(static_cast<std::int64_t>(value));
  } else if constexpr (std::is_pointer_v<T>) {
    return value == nullptr ? "none" : "given";
  } else if constexpr (std::is_arithmetic_v<T>) {
    char text[64];
    return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
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
    return text_of(value.count());  // a duration, in its own unit
  } else if constexpr (Listed<T>) {
    std::string text = "{";
    for_each(value, [&](std::string_view name, const auto& member, auto) {
      text.append(text.size() > 1 ? ", " : "").append(name).append("=").append(text_of(member));
    });
    return text + "}";
  } else {
    std::string text = "[";
    for (const auto& element : value) text.append(text.size() > 1 ? ", " : "").append(text_of(element));
    return text + "]";
  }
}

/// Calls `visit(name, text, agreed)` for each field, those of fields that are options types themselves as
/// `outer.inner`.
template <Listed T, class Visit>
void for_each_text(std::string_view prefix, const T& options, Visit&& visit) {
  for_each(options, [&](std::string_view name, const auto& member, auto agreed) {
    std::string full(prefix);
    full.append(full.empty() ? "" : ".").append(name);
    const auto inner = [&](std::string_view inner_name, const std::string& text, bool inner_agreed) {
      visit(inner_name, text, agreed && inner_agreed);
    };
    if constexpr (requires { member.for_each_text(std::string_view(full), inner); })
      member.for_each_text(std::string_view(full), inner);
    else if constexpr (Listed<std::remove_cvref_t<decltype(member)>>)
      for_each_text(full, member, inner);
    else
      visit(std::string_view(full), text_of(member), static_cast<bool>(agreed));
  });
}

}  // namespace convoy::fields
