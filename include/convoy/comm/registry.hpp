// The registry: every policy, codec and transport that can be chosen by name, one line each. `make`, the
// example trainers' `--help` and the error sentences read it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/codec/half.hpp>
#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/codec/power_sgd.hpp>
#include <convoy/comm/codec/top_k.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/engine.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/options.hpp>
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/any.hpp>
#include <convoy/comm/policy/background.hpp>
#include <convoy/comm/policy/compressed.hpp>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/none.hpp>
#include <convoy/comm/policy/weighted.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#endif

namespace convoy::comm {

/// Options of the policies and codecs that are chosen by name, in addition to comm::Options. Only
/// `background` may differ between ranks, because it concerns only the rank's own thread.
struct Choice {
  std::string_view codec = "none";   ///< codec of the gradients
  codec::TopK topk{};                ///< options of the codec topk
  codec::PowerSgd powersgd{};        ///< options of the codec powersgd
  int servers = 1;                   ///< how many ranks serve parameters
  bool servers_beside = false;       ///< the last ranks only serve; otherwise servers are workers too
  int staleness = 4;                 ///< ps-stale: how many steps a worker may be ahead of the slowest
  bool background = false;           ///< Background: a thread advances the exchange while the rank computes
  bool weighted = false;             ///< Weighted: shares of a batch follow the workers' measured speeds
  std::vector<double> weights = {};  ///< Weighted: shares of a batch are in proportion to these

  static constexpr void fields(auto& self, auto&& field) {
    field("codec", self.codec);
    field("topk", self.topk);
    field("powersgd", self.powersgd);
    field("servers", self.servers);
    field("servers_beside", self.servers_beside);
    field("staleness", self.staleness);
    field("background", self.background, convoy::fields::local);
    field("weighted", self.weighted);
    field("weights", self.weights);
  }

  /// The options of a codec.
  template <codec::Codec C>
  C of() const {
    if constexpr (std::is_same_v<C, codec::TopK>)
      return topk;
    else if constexpr (std::is_same_v<C, codec::PowerSgd>)
      return powersgd;
    else
      return {};
  }
};

/// The description of one choice.
struct Entry {
  std::string_view name;
  std::string_view about;    ///< in a few words
  std::string_view over;     ///< the transports that have it; empty: all
  std::string_view options;  ///< space-separated fields of Options and Choice that it uses, without deadline
};

/// `type` is the policy of `Line` on transport `T`; specialized in the header of that policy.
template <class Line, class T>
struct Offer {};

/// One line for each policy: `entry`; `over<T>`, whether transport `T` has the policy; `make`, which
/// constructs it over a transport::Any that has it. `make` is a template, so that a program that never calls
/// comm::make does not compile all policies.
namespace registry {

/// Base of the lines of all-reduces by schedule `S`.
template <class S>
struct AllReduceBy {
  template <class T>
  static constexpr bool over = true;
  static Any make(const auto& where, const Options& options, const Choice&) {
    return AnyAllReduce(where, Schedules::of<S>(), options);
  }
};
/// Base of the lines of policies that need a specific transport, found through Offer.
template <class Line>
struct Offered {
  template <class T>
  static constexpr bool over = requires {
    typename Offer<Line, T>::type;
  };
  template <class T>
  static Any make(const transport::Any& where, const Options& options) {
    return typename Offer<Line, T>::type(*where.get<T>(), options);
  }
};
/// Base of the lines of parameter servers.
struct Serving {
  template <class T>
  static constexpr bool over = true;

 protected:
  static AnyParameterServer served(const transport::Any& where, const Consistency& consistency,
                                   const Options& options, const Choice& choice) {
    return {where,
            {consistency, choice.servers, choice.servers_beside ? Placement::beside : Placement::among},
            options};
  }
};

template <codec::Codec... C>
struct CodecList {};
using Codecs = CodecList<codec::Bf16, codec::F16, codec::Int8, codec::TopK, codec::PowerSgd>;

struct None {
  static constexpr Entry entry{"none", "no exchange; for one rank only", "", ""};
  template <class T>
  static constexpr bool over = true;
  static Any make(const auto& where, const Options&, const Choice&) {
    if (where.size() > 1) fail<ConfigError>("comm \"none\" is for one rank, not ", where.size());
    return comm::None{};
  }
};

struct Ring {
  static constexpr Entry entry{"ring", "all-reduce with the fewest bytes", "", "segment_bytes window codec"};
  template <class T>
  static constexpr bool over = true;
  static Any make(const auto& where, const Options& options, const Choice& choice) {
    const Schedules ring = Schedules::of<schedule::Ring>();
    if (choice.codec == "none") return AnyAllReduce(where, ring, options);
    return encoded(Codecs{}, where, ring, options, choice);
  }

 private:
  template <codec::Codec... C>
  static Any encoded(CodecList<C...>, const transport::Any& where, const Schedules& ring,
                     const Options& options, const Choice& choice) {
    std::optional<Any> any;
    const auto is = [&]<class One>(std::type_identity<One>) {
      if (choice.codec == One::name) any.emplace(AnyCompressed<One>(where, ring, options, choice.of<One>()));
    };
    (is(std::type_identity<C>{}), ...);
    if (any) return std::move(*any);
    std::string names = "none";
    (append_item(names, C::name), ...);
    fail<ConfigError>("there is no codec \"", choice.codec, "\"; choose one of ", names);
  }
};

struct HalvingDoubling : AllReduceBy<schedule::HalvingDoubling> {
  static constexpr Entry entry{"halving-doubling", "all-reduce in few messages, best for 2^k ranks", "",
                               "segment_bytes window"};
};
struct Tree : AllReduceBy<schedule::Tree> {
  static constexpr Entry entry{"tree", "all-reduce in few messages, for any number of ranks", "",
                               "segment_bytes window"};
};
struct Auto {
  static constexpr Entry entry{"auto", "the all-reduce with the lowest predicted cost at each size", "",
                               "segment_bytes window cost"};
  template <class T>
  static constexpr bool over = true;
  static Any make(const auto& where, const Options& options, const Choice&) {
    return AnyAllReduce(
        where, where.shares_memory() ? Schedules::of<schedule::Direct>() : Schedules::of<AutoSchedule>(),
        options);
  }
};
struct Sharded {
  static constexpr Entry entry{"sharded",
                               "each rank updates its own part and has only that part's optimizer state", "",
                               "segment_bytes window"};
  template <class T>
  static constexpr bool over = true;
  static Any make(const auto& where, const Options& options, const Choice&) {
    return AnyHalves(where, Schedules::of<schedule::Ring>(), false, true, options);
  }
};
struct Reproducible {
  static constexpr Entry entry{
      "reproducible", "sums in rank order: the same bits for every algorithm, bucket size and transport", "",
      "segment_bytes window"};
  template <class T>
  static constexpr bool over = true;
  static Any make(const auto& where, const Options& options, const Choice&) {
    return AnyHalves(where, Schedules::of<schedule::Ring>(), true, false, options);
  }
};
struct Ps : Serving {
  static constexpr Entry entry{"ps", "servers update with the sum of all workers' gradients", "",
                               "segment_bytes window servers servers_beside"};
  static Any make(const auto& where, const Options& options, const Choice& choice) {
    return served(where, Sync::consistency, options, choice);
  }
};
struct PsAsync : Serving {
  static constexpr Entry entry{"ps-async", "servers update with each worker's gradients as they come", "",
                               "segment_bytes window servers servers_beside"};
  static Any make(const auto& where, const Options& options, const Choice& choice) {
    return served(where, Async::consistency, options, choice);
  }
};
struct PsStale : Serving {
  static constexpr Entry entry{"ps-stale", "as ps-async, but no worker gets more than the staleness ahead",
                               "", "segment_bytes window servers servers_beside staleness"};
  static Any make(const auto& where, const Options& options, const Choice& choice) {
    return served(where, {false, choice.staleness}, options, choice);
  }
};
struct Direct : AllReduceBy<schedule::Direct> {
  static constexpr Entry entry{"direct", "all-reduce in shared memory", "threads and shm",
                               "segment_bytes window"};
  template <class T>
  static constexpr bool over = T::in_place && !requires {
    requires T::checks;
  };
};
struct Hierarchical : Offered<Hierarchical> {
  static constexpr Entry entry{"hierarchical", "shared memory inside nodes, a ring of messages between them",
                               "mpi", "segment_bytes window"};
};
struct Native : Offered<Native> {
  static constexpr Entry entry{"native", "MPI_Allreduce", "mpi", "segment_bytes window"};
};

template <class... Line>
struct PolicyList {
  static constexpr std::array<Entry, sizeof...(Line)> entries{Line::entry...};
};
using Policies = PolicyList<None, Ring, HalvingDoubling, Tree, Direct, Auto, Sharded, Reproducible, Ps,
                            PsAsync, PsStale, Hierarchical, Native>;

template <codec::Codec... C>
constexpr std::array<Entry, sizeof...(C) + 1> entries_of(CodecList<C...>) {
  return {Entry{"none", "f32, uncompressed", "", ""}, Entry{C::name, C::about, "", ""}...};
}

}  // namespace registry

/// The names that `make` accepts, with descriptions.
inline constexpr auto& policies = registry::Policies::entries;
inline constexpr auto codecs = registry::entries_of(registry::Codecs{});
inline constexpr std::array<Entry, 3> transports{{
    {"mpi", "processes on any nodes, over MPI", "", ""},
    {"shm", "processes of one node, in shared memory", "", ""},
    {"threads", "ranks as threads of one process", "", ""},
}};

namespace detail {

template <class T, class... Line>
constexpr std::array<bool, sizeof...(Line)> offered_by(registry::PolicyList<Line...>) {
  return {Line::template over<T>...};
}

/// Throws ConfigError for an option that the comm of that entry, or its codec, would ignore, because the
/// caller expects the option to have an effect. The deadline is accepted everywhere. The error names the
/// entries of `table` that have the option or, if none of them has it, those of `policies`.
void refuse_unused(std::span<const Entry> table, const Entry& entry, const Options& options,
                   const Choice& choice);
/// Throws ConfigError on every rank, with the same sentence, unless all ranks make the same choice. Policies
/// of different kinds could not tell: the first messages of each would meet those of another.
void agree_on(std::string_view policy, const transport::Any& where, const Options& options,
              const Choice& choice);
/// Whether the choice asks for Weighted. Throws ConfigError if it asks for measured shares and also gives
/// weights.
bool weighs(const Choice& choice);
/// The choice without the options of Weighted.
Choice unweighted(Choice choice);
/// "a, b and c"
std::string listing(const std::vector<std::string_view>& names);
/// Throws ConfigError: the transport has no such policy; `offered[i]` tells whether it has `policies[i]`.
[[noreturn]] void no_such(std::string_view policy, std::string_view transport,
                          const std::array<bool, policies.size()>& offered);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void agree_on(std::string_view policy, const transport::Any& where, const Options& options,
                              const Choice& choice) {
  Fingerprint chosen;
  chosen.add("comm", policy).add("comm", options).add("", choice);
  // A single rank makes an engine, too: it may be a group of a world whose other ranks make one.
  Engine engine(where, {.deadline = options.deadline});
  agree(engine, chosen);
}

CONVOY_FUNCTION bool weighs(const Choice& choice) {
  if (choice.weighted && !choice.weights.empty())
    fail<ConfigError>("weighted measures the shares, and weights gives them; choose one of the two");
  return choice.weighted || !choice.weights.empty();
}

CONVOY_FUNCTION Choice unweighted(Choice choice) {
  choice.weighted = false;
  choice.weights.clear();
  return choice;
}

CONVOY_FUNCTION std::string listing(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text.append(i == 0 ? "" : i + 1 < names.size() ? ", " : " and ").append(names[i]);
  return text;
}

// Whether `word` is one of the space-separated words of `text`.
CONVOY_FUNCTION bool has_word(std::string_view text, std::string_view word) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    if (text.substr(at, end - at) == word) return true;
    at = end + 1;
  }
  return false;
}

CONVOY_FUNCTION void refuse_unused(std::span<const Entry> table, const Entry& entry, const Options& options,
                                   const Choice& choice) {
  struct Given {
    std::string name, text;
  };
  const auto texts = [](const Choice& its, const Options& common) {
    std::vector<Given> all;
    const auto note = [&](std::string_view name, const std::string& text, bool) {
      all.push_back({std::string(name), text});
    };
    fields::for_each_text("", its, note);
    fields::for_each_text("", common, note);
    return all;
  };
  const std::vector<Given> given = texts(choice, options), unsaid = texts({}, {});
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string_view name = given[i].name, group = name.substr(0, name.find('.'));
    if (given[i].text == unsaid[i].text || name == "deadline") continue;
    const bool of_codec =
        std::any_of(codecs.begin(), codecs.end(), [&](const Entry& c) { return c.name == group; });
    if (of_codec) {
      if (choice.codec != group)
        fail<ConfigError>("codec \"", choice.codec, "\" does not use ", name, ", which is an option of ",
                          group);
      continue;
    }
    if (has_word(entry.options, group)) continue;
    const auto has = [&](const Entry& e) { return has_word(e.options, group); };
    if (std::none_of(table.begin(), table.end(), has)) table = policies;
    std::vector<std::string_view> users, others;
    for (const Entry& e : table) {
      std::vector<std::string_view>& names = has(e) ? users : others;
      // On GPUs a policy has an entry for each of its transports.
      if (std::find(names.begin(), names.end(), e.name) == names.end()) names.push_back(e.name);
    }
    fail<ConfigError>("comm \"", entry.name, "\" does not use ", group, ", which is an option of ",
                      users.size() > others.size() ? "all but " + listing(others) : listing(users));
  }
}

CONVOY_FUNCTION void no_such(std::string_view policy, std::string_view transport,
                             const std::array<bool, policies.size()>& offered) {
  std::vector<std::string_view> here, words;
  for (std::size_t i = 0; i < policies.size(); ++i) {
    if (offered[i])
      here.push_back(policies[i].name);
    else if (std::find(words.begin(), words.end(), policies[i].over) == words.end())
      words.push_back(policies[i].over);
  }
  std::string elsewhere;
  for (const std::string_view where : words) {
    std::vector<std::string_view> there;
    for (std::size_t i = 0; i < policies.size(); ++i)
      if (!offered[i] && policies[i].over == where) there.push_back(policies[i].name);
    elsewhere += concat(elsewhere.empty() ? " (" : "; ", listing(there), there.size() > 1 ? " are" : " is",
                        " for ", where);
  }
  fail<ConfigError>("there is no comm \"", policy, "\" over ", transport, "; choose ", listing(here),
                    elsewhere, elsewhere.empty() ? "" : ")");
}
#endif

/// The registry's policies that one transport has.
struct TransportPolicies {
  std::array<bool, policies.size()> offered{};
  /// Factory for policies that need the unwrapped transport; null for all others.
  std::array<Any (*)(const transport::Any& where, const Options& options), policies.size()> own{};
};

template <class T, class Line>
constexpr auto own_maker() -> Any (*)(const transport::Any&, const Options&) {
  if constexpr (std::is_base_of_v<registry::Offered<Line>, Line>)
    if constexpr (Line::template over<T>) return &Line::template make<T>;
  return nullptr;
}
template <class T, class... Line>
constexpr TransportPolicies policies_of(registry::PolicyList<Line...> list) {
  return {offered_by<T>(list), {own_maker<T, Line>()...}};
}

template <class... Line>
Any make(registry::PolicyList<Line...> list, std::string_view policy, const transport::Any& where,
         const TransportPolicies& available, const Options& options, const Choice& choice);

#if CONVOY_DEFINITIONS
template <class... Line>
std::optional<Any> make_listed(registry::PolicyList<Line...>, std::string_view policy,
                               const transport::Any& where, const TransportPolicies& available,
                               const Options& options, const Choice& choice) {
  std::optional<Any> any;
  std::size_t i = 0;
  const auto is = [&]<class One>(std::type_identity<One>) {
    if (policy == One::entry.name && available.offered[i]) {
      if constexpr (std::is_base_of_v<registry::Offered<One>, One>)
        any.emplace(available.own[i](where, options));
      else
        any.emplace(One::make(where, options, choice));
    }
    ++i;
  };
  (is(std::type_identity<Line>{}), ...);
  return any;
}

template <class... Line>
Any make(registry::PolicyList<Line...> list, std::string_view policy, const transport::Any& where,
         const TransportPolicies& available, const Options& options, const Choice& choice) {
  if (weighs(choice))
    return Weighted<Any>({choice.weights}, make(list, policy, where, available, options, unweighted(choice)));
  if (choice.background) {
    Choice plain = choice;
    plain.background = false;
    return Background<Any>(make(list, policy, where, available, options, plain));
  }
  for (const Entry& entry : policies)
    if (entry.name == policy) refuse_unused(policies, entry, options, choice);
  std::optional<Any> any = make_listed(list, policy, where, available, options, choice);
  if (!any) no_such(policy, where.name(), available.offered);
  return std::move(*any);
}
#endif

CONVOY_INSTANTIATE(Any make(registry::Policies, std::string_view, const transport::Any&,
                            const TransportPolicies&, const Options&, const Choice&));

}  // namespace detail

/// Whether a transport has the policy of that name.
template <transport::Transport T>
constexpr bool offers(std::string_view policy) {
  constexpr auto offered = detail::offered_by<T>(registry::Policies{});
  for (std::size_t i = 0; i < offered.size(); ++i)
    if (offered[i] && policies[i].name == policy) return true;
  return false;
}

/// Makes the Comm called `policy` on a transport, wrapped in Weighted and Background if the choice asks for
/// them; `policies` and `codecs` list the names. All ranks call it together. Throws ConfigError if ranks make
/// different choices, for an option that the Comm would ignore, for an unknown codec, and for a policy that
/// the transport does not have.
template <transport::Transport T>
Any make(std::string_view policy, const T& where, const Options& options = {}, const Choice& choice = {}) {
  constexpr registry::Policies list;
  const transport::Any any(where);
  detail::agree_on(policy, any, options, choice);
  return detail::make(list, policy, any, detail::policies_of<T>(list), options, choice);
}

}  // namespace convoy::comm
