// The policies that comm_bench compares. A new policy or codec is a row.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "bounds.hpp"
#include <convoy/comm/policy/nodes.hpp>
#include <convoy/comm/registry.hpp>

namespace bench {

namespace comm = convoy::comm;
namespace transport = convoy::transport;
using convoy::concat;

struct Policy {
  std::string_view name;            ///< its name in cases
  std::string_view comm = name;     ///< its name for comm::make
  bool all_reduces = false;         ///< has its own all-reduce, not that of another row
  bool exact = false;               ///< an exchange leaves the sums in the gradients
  bool updates = false;             ///< an exchange writes the parameters
  bool serves = false;              ///< some ranks update for all
  bool weighted = false;            ///< rank r has a share of r + 1
  std::string_view codec = "none";  ///< of the ring
};

constexpr Policy all_reducing(std::string_view name) {
  return {.name = name, .all_reduces = true, .exact = true};
}
constexpr Policy served(std::string_view name) { return {.name = name, .updates = true, .serves = true}; }
constexpr Policy encoded(std::string_view name, std::string_view codec) {
  return {.name = name, .comm = "ring", .codec = codec};
}

inline constexpr Policy policies[] = {
    all_reducing("native"),
    all_reducing("ring"),
    all_reducing("halving-doubling"),
    all_reducing("tree"),
    all_reducing("auto"),
    all_reducing("direct"),
    all_reducing("hierarchical"),
    all_reducing("reproducible"),
    {.name = "sharded", .updates = true},
    {.name = "weighted", .comm = "ring", .exact = true, .weighted = true},
    served("ps"),
    served("ps-async"),
    served("ps-stale"),
    encoded("ring-bf16", "bf16"),
    encoded("ring-f16", "f16"),
    encoded("ring-int8", "int8"),
    encoded("ring-topk", "topk"),
    encoded("ring-powersgd", "powersgd"),
};

/// Whether a transport has the policy.
template <class T>
constexpr bool has(std::string_view policy) {
  return comm::offers<T>(policy);
}

/// Whether the policy's ranks reduce their buffers in place, in each other's memory.
template <class T>
constexpr bool combines_in_place(const Policy& policy) {
  return policy.name == "direct" || (policy.name == "auto" && T::in_place);
}

/// A transport, and what connects its ranks.
template <class T>
struct Place {
  T where;
  Links links;
  comm::Nodes nodes;
  double beta;  ///< seconds per byte of a link
  comm::Options options;
  int servers;  ///< for the policies that serve

  int rank() const { return where.rank(); }
  int size() const { return where.size(); }
  double seconds(std::int64_t bytes) const { return beta * static_cast<double>(bytes); }
};

template <class T>
comm::Any comm_of(const Policy& policy, const Place<T>& place) {
  comm::Choice choice{.codec = policy.codec};
  if (policy.codec == "topk") choice.topk.warm_up_steps = 0;  // as in most steps of a training
  if (policy.codec == "powersgd") choice.powersgd.warm_up_steps = 0;
  if (policy.serves) choice.servers = place.servers;
  for (int r = 0; policy.weighted && r < place.size(); ++r) choice.weights.push_back(r + 1);
  return comm::make(policy.comm, place.where, place.options, choice);
}

}  // namespace bench
