// Groups: which parameters are updated how, like PyTorch's parameter groups.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>

namespace convoy::optim {

/// The options of the parameters whose names match.
struct GroupOptions {
  std::string match = "*";  ///< pattern of names; * stands for any number of any characters, including dots
  float lr_scale = 1;       ///< factor on the learning rate
  std::optional<float> weight_decay = {};  ///< replaces the rule's own, also for biases and norms; none:
                                           ///< unchanged
  bool frozen = false;                     ///< not updated, and not part of any norm
  bool by_element = false;  ///< a rule for matrices (Muon) updates them elementwise, as it always does
                            ///< embeddings and the layer before a loss

  static constexpr void fields(auto& self, auto&& field) {
    field("match", self.match);
    field("lr_scale", self.lr_scale);
    field("weight_decay", self.weight_decay);
    field("frozen", self.frozen);
    field("by_element", self.by_element);
  }
};

/// The properties of a parameter that grouping uses.
struct GroupedParameter {
  std::string_view name;
  bool decays = true;  ///< whether it decays by default: weights do, biases and norms do not
};

/// How the parameters of a group are updated.
struct Group {
  float lr_scale = 1;
  std::optional<float> weight_decay = {};  ///< none: the rule's own
  bool frozen = false, by_element = false;
  friend bool operator==(const Group&, const Group&) = default;
};

/// The distinct groups, and the index of each parameter's group.
struct Groups {
  std::vector<Group> list;
  std::vector<int> of;
};

/// Whether a pattern matches a name; * matches any number of any characters.
constexpr bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = pattern.size(), from = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      from = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star < pattern.size()) {  // extend the last star's match by one character
      p = star + 1;
      n = ++from;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

/// Assigns each parameter to the first group that matches its name. Weights decay by default; biases and
/// norms do not, unless `decay_all`. Throws ConfigError for a group that matches none of them, or none that
/// the groups before it leave, or whose learning-rate scale or weight decay is negative or not finite.
Groups group(std::span<const GroupedParameter> parameters, std::span<const GroupOptions> options,
             bool decay_all = false);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Groups group(std::span<const GroupedParameter> parameters,
                             std::span<const GroupOptions> options, bool decay_all) {
  Groups groups;
  std::vector<bool> matched(options.size()), used(options.size());
  for (const GroupedParameter& parameter : parameters) {
    Group own;
    if (!parameter.decays && !decay_all) own.weight_decay = 0.0f;
    bool placed = false;
    for (std::size_t i = 0; i < options.size(); ++i) {
      if (!matches(options[i].match, parameter.name)) continue;
      matched[i] = true;
      if (placed) continue;
      placed = used[i] = true;
      own.lr_scale = options[i].lr_scale;
      own.frozen = options[i].frozen;
      own.by_element = options[i].by_element;
      if (options[i].weight_decay) own.weight_decay = options[i].weight_decay;
    }
    std::size_t at = 0;
    while (at < groups.list.size() && groups.list[at] != own) ++at;
    if (at == groups.list.size()) groups.list.push_back(own);
    groups.of.push_back(static_cast<int>(at));
  }
  for (std::size_t i = 0; i < options.size(); ++i) {
    const GroupOptions& o = options[i];
    if (!matched[i])
      fail<ConfigError>("group ", i, ": no parameter that the model trains has a name like '", o.match, "'");
    if (!used[i])
      fail<ConfigError>("group ", i, " ('", o.match, "'): all parameters with such a name belong to groups ",
                        "before it; put the group before those");
    const auto check = [&](float value, std::string_view what) {
      if (!is_finite(value) || value < 0)
        fail<ConfigError>("group ", i, " ('", o.match, "'): the ", what,
                          " must be a number of at least 0, not ", value);
    };
    check(o.lr_scale, "scale of the learning rate");
    if (o.weight_decay) check(*o.weight_decay, "weight decay");
  }
  return groups;
}
#endif

}  // namespace convoy::optim
