// Nodes: which ranks share memory, determined at run time, and the schedules of the exchanges inside nodes
// and between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include <convoy/comm/schedule/parts.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/shared_schedule.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

/// The ranks of each node. Nodes may differ in size; their ranks need not follow one another.
class Nodes {
 public:
  Nodes() : Nodes(std::vector<int>{0}) {}
  /// `node_of[r]` is any number that is the same for the ranks of one node.
  explicit Nodes(const std::vector<int>& node_of) {
    std::vector<int> seen;
    for (std::size_t r = 0; r < node_of.size(); ++r) {
      const auto at = std::find(seen.begin(), seen.end(), node_of[r]);
      if (at == seen.end()) {
        seen.push_back(node_of[r]);
        members_.emplace_back();
      }
      const auto node =
          static_cast<std::size_t>(std::find(seen.begin(), seen.end(), node_of[r]) - seen.begin());
      members_[node].push_back(static_cast<int>(r));
      node_.push_back(static_cast<int>(node));
    }
    if (members_.empty()) fail<ConfigError>("there is no node without a rank");
  }

  int count() const { return static_cast<int>(members_.size()); }
  int node_of(int rank) const { return node_[static_cast<std::size_t>(rank)]; }
  const std::vector<int>& members(int node) const { return members_[static_cast<std::size_t>(node)]; }
  /// These nodes. Throws ConfigError unless they have `ranks` ranks.
  const Nodes& of_world(int ranks) const {
    if (node_.size() != static_cast<std::size_t>(ranks))
      fail<ConfigError>("hierarchical: the nodes list ", node_.size(), " ranks in a world of ", ranks,
                        "; list the node of each rank");
    return *this;
  }

 private:
  std::vector<std::vector<int>> members_;
  std::vector<int> node_;
};

namespace detail {

/// A half of the exchange inside a node over a buffer cut into `parts` shards.
template <class Half>
constexpr auto in_parts(int parts) {
  if constexpr (schedule::SharedSchedule<Half>)
    return Half{parts};
  else
    return schedule::InParts<Half>{parts};
}

/// The middle of a hierarchical all-reduce: `Inter` across nodes on each shard, among the ranks that hold the
/// shard after the reduce-scatter of `Intra` inside the nodes. There are as many shards as blocks in the node
/// with most blocks.
template <class Intra, schedule::Schedule Inter>
struct Across {
  static constexpr std::string_view name = "hierarchical";
  static constexpr schedule::Goal goal = schedule::Goal::all_reduce;
  static constexpr bool proved = true;  // no all-reduce by itself; proved with its two halves
  const Nodes* nodes = nullptr;
  int shards = 1;
  int segments = 1;
  int window = 4;
  friend constexpr bool operator==(const Across&, const Across&) = default;

  explicit Across(const Nodes& all) : nodes(&all) {
    for (int node = 0; node < all.count(); ++node) shards = std::max(shards, Intra{}.blocks(members(node)));
  }

  int blocks(int) const { return shards * Inter{}.blocks(nodes->count()); }
  int owner(int block, int) const {
    const int parts = Inter{}.blocks(nodes->count());
    return holder(block / parts, Inter{}.owner(block % parts, nodes->count()));
  }
  template <class Emit>
  void steps(int rank, int, Emit&& emit) const {
    const int node = nodes->node_of(rank), parts = Inter{}.blocks(nodes->count());
    const Inter inter = schedule::segmented(Inter{}, segments, window);
    for (int shard = 0; shard < shards; ++shard) {
      if (holder(shard, node) != rank) continue;
      inter.steps(node, nodes->count(), [&](const schedule::Step& step) {
        emit(schedule::Step{step.action, step.completes, holder(shard, step.peer),
                            shard * parts * segments + step.chunk, step.count});
      });
    }
  }

 private:
  int members(int node) const { return static_cast<int>(nodes->members(node).size()); }
  // The rank of a node that holds a shard between the two halves inside the node.
  int holder(int shard, int node) const {
    const int owner = in_parts<typename Intra::ReduceScatter>(shards).owner(shard, members(node));
    return nodes->members(node)[static_cast<std::size_t>(owner)];
  }
};

}  // namespace detail

}  // namespace convoy::comm
