// Cluster: the machines that a training runs on, as few physical numbers: how many workers each node has and
// how fast they are, what a message costs inside a node and between nodes, and what an exchange asks of the
// worker itself.
//
//     worker -- inside: a link for each pair, a port for each worker, or one bus -- worker      one node
//     worker -- NIC of the node -- leaf switch -- spine -- leaf switch -- NIC -- worker         two nodes
//
// A message of S bytes is at its receiver alpha + S * beta seconds after it was begun on a way that is free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

namespace convoy::sim {

/// A way on which one message follows the other.
struct Link {
  double alpha = 0;  ///< seconds until the first byte is there
  double beta = 0;   ///< seconds a byte

  static constexpr void fields(auto& self, auto&& field) {
    field("alpha", self.alpha);
    field("beta", self.beta);
  }
};

/// How the workers of a node reach each other.
enum class Wiring : unsigned char {
  pairs,   ///< every two workers have a link of their own in each direction (NVLink without a switch)
  ports,   ///< every worker has one way out and one way in, to all others (NVSwitch)
  bus,     ///< all workers of the node share one way to each other (a PCIe root)
  memory,  ///< workers are processes that share memory: a message is a load and a store of it
};

constexpr std::string_view name_of(Wiring wiring) {
  constexpr std::string_view names[] = {"pairs", "ports", "bus", "memory"};
  return names[static_cast<std::size_t>(wiring)];
}

/// What workers of one node are connected by.
struct Inside {
  Wiring wiring = Wiring::bus;
  double alpha = 0;  ///< seconds a message; at each of two barriers where workers share memory
  double beta = 0;  ///< seconds a byte of a message, and of a load or store elsewhere in the node; half of it
                    ///< of any load or store where workers share memory

  static constexpr void fields(auto& self, auto&& field) {
    field("wiring", self.wiring);
    field("alpha", self.alpha);
    field("beta", self.beta);
  }
};

/// The network cards of a node, each full duplex. Worker i of g goes through card i * count / g.
struct Nic {
  int count = 1;
  double alpha = 0;    ///< seconds a message, switches included
  double beta = 0;     ///< seconds a byte that a card sends
  double receive = 1;  ///< so many times as long a byte that it receives; 0: receiving never binds

  static constexpr void fields(auto& self, auto&& field) {
    field("count", self.count);
    field("alpha", self.alpha);
    field("beta", self.beta);
    field("receive", self.receive);
  }
};

/// What is between the cards: a fat tree of two levels (Leiserson, "Fat-trees", 1985).
struct Fabric {
  int nodes_per_leaf = 0;       ///< that share a leaf switch; 0: one switch for all
  double oversubscription = 1;  ///< the cards of a leaf's nodes send so many times what its uplinks carry

  /// Whether nodes of different leaves can be in each other's way.
  bool binds() const { return nodes_per_leaf > 0 && oversubscription > 1; }

  static constexpr void fields(auto& self, auto&& field) {
    field("nodes_per_leaf", self.nodes_per_leaf);
    field("oversubscription", self.oversubscription);
  }
};

/// Some nodes that are alike.
struct Nodes {
  int count = 1;
  int ranks = 1;     ///< workers on each of them
  double speed = 1;  ///< of a worker, relative to the one whose times Work holds

  static constexpr void fields(auto& self, auto&& field) {
    field("count", self.count);
    field("ranks", self.ranks);
    field("speed", self.speed);
  }
};

/// One worker's device, for a roofline of what it computes.
struct Device {
  double flops = 0;      ///< a second
  double bandwidth = 0;  ///< bytes a second of its memory; servers update at it where Work has no updates

  static constexpr void fields(auto& self, auto&& field) {
    field("flops", self.flops);
    field("bandwidth", self.bandwidth);
  }
};

struct Cluster {
  std::string name;
  std::string source;        ///< where the numbers are from
  std::vector<Nodes> nodes;  ///< ranks are counted through them in order
  Inside inside;
  Nic nic;
  Fabric fabric;
  Link staging;                ///< between a device and its host, for exchanges that cannot read the device
  double gamma = 0;            ///< seconds a byte that is combined
  double launch = 0;           ///< seconds before a bucket's first message, each time
  double hide = 1;             ///< the share of backward that an exchange can hide behind
  double hide_background = 1;  ///< the same where a thread goes on with the exchange
  double jitter = 0;           ///< relative standard deviation of the time that a worker computes in a step
  Device device;

  static constexpr void fields(auto& self, auto&& field) {
    field("name", self.name);
    field("source", self.source);
    field("nodes", self.nodes);
    field("inside", self.inside);
    field("nic", self.nic);
    field("fabric", self.fabric);
    field("staging", self.staging);
    field("gamma", self.gamma);
    field("launch", self.launch);
    field("hide", self.hide);
    field("hide_background", self.hide_background);
    field("jitter", self.jitter);
    field("device", self.device);
  }

  int node_count() const {
    int count = 0;
    for (const Nodes& some : nodes) count += some.count;
    return count;
  }
  int ranks() const {
    int count = 0;
    for (const Nodes& some : nodes) count += some.count * some.ranks;
    return count;
  }
  /// Whether no node differs from another.
  bool uniform() const {
    for (const Nodes& some : nodes)
      if (some.ranks != nodes.front().ranks || some.speed != nodes.front().speed) return false;
    return true;
  }

  /// Throws ConfigError, with the field, for numbers that no cluster has.
  void check() const;
  /// The first `count` nodes, each with `ranks` workers; 0 leaves either as it is. A cluster of one kind of
  /// nodes may grow. Throws ConfigError where nodes of several kinds would have to be invented.
  Cluster sized(int count, int ranks) const;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void Cluster::check() const {
  const auto expect = [&](bool right, std::string_view field, double value, std::string_view wanted) {
    if (!right) fail<ConfigError>("cluster \"", name, "\": ", field, " is ", value, "; it must be ", wanted);
  };
  constexpr int most = 1 << 20;
  const auto seconds = [&](std::string_view field, double value) {
    expect(value >= 0 && value < 1e9, field, value, "seconds, none below zero");
  };
  if (nodes.empty()) fail<ConfigError>("cluster \"", name, "\" has no nodes");
  double all = 0;
  for (const Nodes& some : nodes) {
    expect(some.count >= 1 && some.count <= most, "nodes.count", some.count, "1 to 2^20");
    expect(some.ranks >= 1 && some.ranks <= most, "nodes.ranks", some.ranks, "1 to 2^20");
    expect(some.speed > 0 && some.speed < 1e9, "nodes.speed", some.speed, "above zero");
    all += static_cast<double>(some.count) * some.ranks;
  }
  expect(all <= most, "the number of ranks", all, "at most 2^20");
  seconds("inside.alpha", inside.alpha);
  seconds("inside.beta", inside.beta);
  expect(nic.count >= 1 && nic.count <= 1024, "nic.count", nic.count, "1 to 1024");
  seconds("nic.alpha", nic.alpha);
  seconds("nic.beta", nic.beta);
  expect(nic.receive >= 0 && nic.receive < 1e9, "nic.receive", nic.receive, "a factor, not below zero");
  expect(fabric.nodes_per_leaf >= 0, "fabric.nodes_per_leaf", fabric.nodes_per_leaf,
         "0 or a number of nodes");
  expect(fabric.oversubscription >= 1 && fabric.oversubscription < 1e9, "fabric.oversubscription",
         fabric.oversubscription, "at least 1");
  seconds("staging.alpha", staging.alpha);
  seconds("staging.beta", staging.beta);
  seconds("gamma", gamma);
  seconds("launch", launch);
  expect(hide >= 0 && hide <= 1, "hide", hide, "a share, from 0 to 1");
  expect(hide_background >= 0 && hide_background <= 1, "hide_background", hide_background,
         "a share, from 0 to 1");
  expect(jitter >= 0 && jitter <= 1, "jitter", jitter, "from 0 to 1");
  expect(device.flops >= 0, "device.flops", device.flops, "not below zero");
  expect(device.bandwidth >= 0, "device.bandwidth", device.bandwidth, "not below zero");
}

CONVOY_FUNCTION Cluster Cluster::sized(int count, int ranks) const {
  Cluster some = *this;
  if (count > 0) {
    if (count > node_count() && nodes.size() > 1)
      fail<ConfigError>("cluster \"", name, "\" has ", node_count(), " nodes of ", nodes.size(),
                        " kinds; which kind would node ", count, " be");
    some.nodes.clear();
    for (Nodes part : nodes) {
      if (count > node_count()) part.count = count;
      part.count = part.count < count ? part.count : count;
      count -= part.count;
      if (part.count > 0) some.nodes.push_back(part);
    }
  }
  if (ranks > 0)
    for (Nodes& part : some.nodes) part.ranks = ranks;
  return some;
}
#endif

}  // namespace convoy::sim
