// Places: where each rank is, and which resources a message passes from one rank to another.
//
// A cluster of identical nodes can be folded: the places are then those of one unit (a node, or the nodes of
// a leaf if leaves share uplinks), and a peer is identified by its number in the unit and its distance in
// units.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/sim/cluster.hpp>
#include <convoy/sim/moment.hpp>

namespace convoy::sim {

/// Something that carries one message at a time.
struct Resource {
  double beta = 0;  ///< seconds per byte
  Cause cause = Cause::inside;
  Moment free;      ///< when it becomes free
  double busy = 0;  ///< seconds
  double bytes = 0;
};

/// The resources that a message passes, in order.
struct Way {
  int hops = 0;
  std::array<int, 4> at{};
  double alpha = 0;

  void through(int resource) { at[static_cast<std::size_t>(hops++)] = resource; }
};

class Places {
 public:
  /// All ranks of a cluster or, if `folded`, those of one unit.
  Places(const Cluster& cluster, bool folded);

  /// Whether a cluster consists of identical units.
  static bool foldable(const Cluster& cluster);

  int ranks() const { return static_cast<int>(node_.size()); }
  int nodes() const { return static_cast<int>(first_.size()) - 1; }
  int node_of(int rank) const { return node_[at(rank)]; }
  int first_of(int node) const { return first_[at(node)]; }
  /// The number of units; 1 if the cluster is not folded.
  int units() const { return units_; }

  /// The way from rank `from` to rank `to`, which is `apart` units further.
  Way way(int from, int to, int apart) const;

  std::vector<Resource> resources() const { return resources_; }
  /// A resource's name, such as "node 3 NIC 0 out".
  std::string name_of(int resource) const;

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  int add(int count, double beta, Cause cause) {
    const int first = static_cast<int>(resources_.size());
    resources_.insert(resources_.end(), at(count), {beta, cause, {}, 0, 0});
    return first;
  }
  int card_of(int rank) const {
    const int node = node_of(rank), ranks = first_of(node + 1) - first_of(node);
    return node * nic_.count + (rank - first_of(node)) * nic_.count / ranks;
  }
  int leaf_of(int rank) const { return node_of(rank) / fabric_.nodes_per_leaf; }

  Inside inside_;
  Nic nic_;
  Fabric fabric_;
  int units_ = 1;
  std::vector<int> node_;   // of each rank
  std::vector<int> first_;  // first rank of each node, and the number of ranks
  std::vector<Resource> resources_;
  std::vector<int> inside_at_;                // first resource of each node
  int out_ = 0, in_ = 0, up_ = 0, down_ = 0;  // first resource of each kind
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION bool Places::foldable(const Cluster& cluster) {
  return cluster.uniform() && cluster.jitter == 0 &&
         (!cluster.fabric.binds() || cluster.node_count() % cluster.fabric.nodes_per_leaf == 0);
}

CONVOY_FUNCTION Places::Places(const Cluster& cluster, bool folded)
    : inside_(cluster.inside), nic_(cluster.nic), fabric_(cluster.fabric) {
  int left = cluster.node_count();
  if (folded) {
    const int unit = fabric_.binds() ? fabric_.nodes_per_leaf : 1;
    units_ = left / unit;
    left = unit;
  }
  first_.push_back(0);
  for (const Nodes& some : cluster.nodes)
    for (int i = 0; i < some.count && left > 0; ++i, --left) {
      node_.insert(node_.end(), at(some.ranks), nodes());
      first_.push_back(ranks());
    }
  for (int node = 0; node < nodes(); ++node) {
    const int ranks = first_of(node + 1) - first_of(node);
    const int ways = inside_.wiring == Wiring::pairs   ? ranks * ranks
                     : inside_.wiring == Wiring::ports ? 2 * ranks
                                                       : 1;
    inside_at_.push_back(add(ways, inside_.beta, Cause::inside));
  }
  out_ = add(nodes() * nic_.count, nic_.beta, Cause::nic);
  in_ = add(nodes() * nic_.count, nic_.beta * nic_.receive, Cause::nic);
  if (!fabric_.binds()) return;
  const double uplinks = nic_.beta * fabric_.oversubscription / (fabric_.nodes_per_leaf * nic_.count);
  const int leaves = (nodes() + fabric_.nodes_per_leaf - 1) / fabric_.nodes_per_leaf;
  up_ = add(leaves, uplinks, Cause::fabric);
  down_ = add(leaves, uplinks, Cause::fabric);
}

CONVOY_FUNCTION Way Places::way(int from, int to, int apart) const {
  Way way;
  const int node = node_of(from);
  if (apart == 0 && node == node_of(to)) {
    const int first = first_of(node), base = inside_at_[at(node)], ranks = first_of(node + 1) - first;
    way.alpha = inside_.alpha;
    if (inside_.wiring == Wiring::memory || (inside_.wiring == Wiring::bus && from != to)) {
      way.through(base);
    } else if (from != to && inside_.wiring == Wiring::pairs) {
      way.through(base + (from - first) * ranks + to - first);
    } else if (from != to) {
      way.through(base + from - first);
      way.through(base + ranks + to - first);
    }
    return way;
  }
  way.alpha = nic_.alpha;
  way.through(out_ + card_of(from));
  if (fabric_.binds() && (apart != 0 || leaf_of(from) != leaf_of(to))) {
    way.through(up_ + leaf_of(from));
    way.through(down_ + leaf_of(to));
  }
  if (nic_.receive > 0) way.through(in_ + card_of(to));
  return way;
}

CONVOY_FUNCTION std::string Places::name_of(int resource) const {
  if (fabric_.binds() && resource >= up_)
    return resource < down_ ? concat("leaf ", resource - up_, " up")
                            : concat("leaf ", resource - down_, " down");
  if (resource >= out_) {
    const bool sends = resource < in_;
    const int card = resource - (sends ? out_ : in_);
    return concat("node ", card / nic_.count, " NIC ", card % nic_.count, sends ? " out" : " in");
  }
  int node = 0;
  while (node + 1 < nodes() && inside_at_[at(node + 1)] <= resource) ++node;
  const int i = resource - inside_at_[at(node)], ranks = first_of(node + 1) - first_of(node);
  if (inside_.wiring == Wiring::bus || inside_.wiring == Wiring::memory)
    return concat("node ", node, ' ', sim::name_of(inside_.wiring));
  if (inside_.wiring == Wiring::ports)
    return concat("node ", node, " port ", i % ranks, i < ranks ? " out" : " in");
  return concat("node ", node, " link ", i / ranks, " to ", i % ranks);
}
#endif

}  // namespace convoy::sim
