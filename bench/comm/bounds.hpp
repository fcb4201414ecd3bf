// The lower bound of the time of an exchange by messages under a given policy: the bytes of the busiest link
// over its bandwidth.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/comm/engine/link.hpp>
#include <convoy/comm/policy/nodes.hpp>
#include <convoy/comm/schedule/all_to_all.hpp>
#include <convoy/comm/schedule/broadcast.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/halving_doubling.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/schedule/tree.hpp>

namespace bench {

/// Which ranks share a link to the others: the ranks of a node; with a single node, each rank has its own
/// link.
struct Links {
  std::vector<int> of;  ///< the link of each rank
  int ranks() const { return static_cast<int>(of.size()); }
  int count() const { return *std::max_element(of.begin(), of.end()) + 1; }

  static Links among(const convoy::comm::Nodes& nodes, int ranks) {
    Links links{std::vector<int>(static_cast<std::size_t>(ranks))};
    for (int r = 0; r < ranks; ++r)
      links.of[static_cast<std::size_t>(r)] = nodes.count() > 1 ? nodes.node_of(r) : r;
    return links;
  }
};

/// The bytes that the busiest link carries in one direction. `bytes_of(rank, step)` is the size of a message.
template <class S, class Bytes>
std::int64_t busiest(const S& schedule, const Links& links, Bytes&& bytes_of) {
  std::vector<std::int64_t> out(links.of.size()), in(links.of.size());
  for (int r = 0; r < links.ranks(); ++r)
    schedule.steps(r, links.ranks(), [&](const convoy::schedule::Step& step) {
      if (step.action != convoy::schedule::Action::send) return;
      const auto from = static_cast<std::size_t>(links.of[static_cast<std::size_t>(r)]);
      const auto to = static_cast<std::size_t>(links.of[static_cast<std::size_t>(step.peer)]);
      if (from == to) return;
      out[from] += bytes_of(r, step);
      in[to] += bytes_of(r, step);
    });
  return std::max(*std::max_element(out.begin(), out.end()), *std::max_element(in.begin(), in.end()));
}

/// The same for a buffer of `count` elements, divided into the schedule's blocks.
template <class S>
std::int64_t busiest(const S& schedule, const Links& links, std::int64_t count, std::int64_t element) {
  const std::int64_t grain = convoy::schedule::grain_of(element);
  return busiest(schedule, links, [&](int, const convoy::schedule::Step& step) {
    return element *
           convoy::schedule::range_of(step.chunk, step.count, count, schedule.blocks(links.ranks()), 1, grain)
               .size();
  });
}

inline std::int64_t busiest_in_order(const Links& links, std::int64_t count, std::int64_t element) {
  const std::int64_t grain = convoy::schedule::grain_of(element);
  return busiest(convoy::schedule::AllToAll{}, links, [&](int, const convoy::schedule::Step& step) {
    return element * convoy::share(count, step.peer, links.ranks(), grain).size();
  });
}

/// Every rank pushes its gradients to the first `servers` ranks and gets the parameters back.
inline std::int64_t busiest_served(const Links& links, int servers, std::int64_t count,
                                   std::int64_t element) {
  std::vector<std::int64_t> out(links.of.size()), in(links.of.size());
  for (int server = 0; server < servers; ++server) {
    const std::int64_t bytes = element * convoy::share(count, server, servers, 16).size();
    const auto there = static_cast<std::size_t>(links.of[static_cast<std::size_t>(server)]);
    for (const int link : links.of) {
      const auto here = static_cast<std::size_t>(link);
      if (here == there) continue;
      // The pushed bytes come back in the other direction.
      for (const auto end : {here, there}) out[end] += bytes, in[end] += bytes;
    }
  }
  return std::max(*std::max_element(out.begin(), out.end()), *std::max_element(in.begin(), in.end()));
}

/// The busiest link's bytes of a policy's all-reduce or of its exchange of one bucket; 0: no bound of this
/// kind.
inline std::int64_t network_bytes(std::string_view policy, const Links& links,
                                  const convoy::comm::Nodes& nodes, std::int64_t count,
                                  std::int64_t element) {
  namespace schedule = convoy::schedule;
  const auto ring = [&] { return busiest(schedule::Ring{1}, links, count, element); };
  if (policy == "ring" || policy == "sharded") return ring();
  if (policy == "halving-doubling") return busiest(schedule::HalvingDoubling{1}, links, count, element);
  if (policy == "tree") return busiest(schedule::Tree{1}, links, count, element);
  if (policy == "auto")
    return std::min({ring(), busiest(schedule::HalvingDoubling{1}, links, count, element),
                     busiest(schedule::Tree{1}, links, count, element)});
  if (policy == "reproducible")
    return busiest_in_order(links, count, element) +
           busiest(schedule::RingAllGather{1}, links, count, element);
  if (policy == "hierarchical" && nodes.count() > 1)
    return busiest(convoy::comm::detail::Across<schedule::Direct, schedule::Ring>(nodes), links, count,
                   element);
  if (policy == "native") {
    // The bound of any all-reduce: 2(n-1)/n of the buffer through each of n links.
    const std::int64_t n = links.count();
    return 2 * (n - 1) * count * element / n;
  }
  return 0;
}

/// Seconds per byte between rank 0 and the first rank on another link.
template <class T>
double measured_beta(const T& where, const Links& links) {
  const auto other =
      std::find_if(links.of.begin(), links.of.end(), [&](int link) { return link != links.of[0]; });
  if (other == links.of.end()) return 0;
  return convoy::comm::measure_link(where, 0, static_cast<int>(other - links.of.begin())).beta;
}

}  // namespace bench
