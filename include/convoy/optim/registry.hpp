// The registry of the rules that can be chosen by name.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/any.hpp>
#include <convoy/optim/lamb.hpp>
#include <convoy/optim/lars.hpp>
#include <convoy/optim/muon.hpp>
#include <convoy/optim/sgd.hpp>

#if CONVOY_DEFINITIONS
#include <cmath>
#include <limits>
#endif

namespace convoy::optim {

template <class... R>
struct RuleList {
  /// Calls `visit(std::type_identity<R>{})` for each rule.
  template <class Visit>
  static constexpr void for_each(Visit&& visit) {
    (visit(std::type_identity<R>{}), ...);
  }
};

/// The rules known to `make`, `--optimizer` and `--help`. A user's rule need not be listed: its options
/// convert to Any::Options.
using Rules = RuleList<Sgd, Adam, AdamW, Lars, Lamb, Muon>;

/// A field of a rule's options and its value; flags are 0 or 1.
struct Setting {
  std::string_view name;
  double value = 0;
};

/// A description of a rule, for messages.
struct RuleEntry {
  std::string_view name;
  std::vector<std::string> fields;  ///< the fields of its options
};

/// Descriptions of all rules in the registry.
std::vector<RuleEntry> rules();

/// The options of the rule called `name` with some fields set: `make("adam", {{"lr", 1e-3}})`. Throws
/// ConfigError for an unknown rule or field, naming the known ones, and for an invalid value.
Any::Options make(std::string_view name, std::span<const Setting> settings);
inline Any::Options make(std::string_view name, std::initializer_list<Setting> settings = {}) {
  return make(name, std::span<const Setting>(settings.begin(), settings.size()));
}

#if CONVOY_DEFINITIONS

namespace detail {

template <class List>
std::string joined(const List& names) {
  std::string text;
  for (const auto& name : names) append_item(text, name);
  return text;
}

template <class R>
std::vector<std::string> field_names() {
  std::vector<std::string> names;
  const typename R::Options options{};
  fields::for_each(options, [&](std::string_view field, const auto&, auto) { names.emplace_back(field); });
  return names;
}

template <class R>
typename R::Options with(std::span<const Setting> settings) {
  typename R::Options options;
  for (const Setting& setting : settings) {
    bool found = false;
    fields::for_each(options, [&](std::string_view field, auto& member, auto) {
      using Member = std::remove_reference_t<decltype(member)>;
      if (field != setting.name) return;
      found = true;
      if constexpr (std::is_same_v<Member, int>)
        if (!(std::trunc(setting.value) == setting.value &&
              std::abs(setting.value) <= std::numeric_limits<int>::max()))
          fail<ConfigError>("optimizer ", R::name, ": ", setting.name, " must be a whole number, not ",
                            setting.value);
      if constexpr (std::is_same_v<Member, bool>) {
        if (setting.value != 0 && setting.value != 1)
          fail<ConfigError>("optimizer ", R::name, ": ", setting.name, " must be 0 or 1, not ",
                            setting.value);
        member = setting.value == 1;
      } else if constexpr (std::is_arithmetic_v<Member>) {
        member = static_cast<Member>(setting.value);
      } else {
        fail<ConfigError>("optimizer ", R::name, ": ", setting.name, " is not set by a number");
      }
    });
    if (!found)
      fail<ConfigError>("optimizer ", R::name, " has no option ", setting.name, "; it has ",
                        joined(field_names<R>()));
  }
  return options;
}

}  // namespace detail

CONVOY_FUNCTION std::vector<RuleEntry> rules() {
  std::vector<RuleEntry> all;
  Rules::for_each([&]<class R>(std::type_identity<R>) {
    all.push_back({R::name, detail::field_names<R>()});
  });
  return all;
}

CONVOY_FUNCTION Any::Options make(std::string_view name, std::span<const Setting> settings) {
  Any::Options made;
  bool found = false;
  std::vector<std::string_view> names;
  Rules::for_each([&]<class R>(std::type_identity<R>) {
    names.push_back(R::name);
    if (name != R::name) return;
    made = Any::Options::of<R>(detail::with<R>(settings));
    found = true;
  });
  if (!found) fail<ConfigError>("there is no optimizer called ", name, "; there are ", detail::joined(names));
  return made;
}

#endif

}  // namespace convoy::optim
