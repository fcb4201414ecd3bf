// Cluster: the machines that a training runs on, described by a few physical numbers: the workers of each
// node and their speed, the cost of a message inside a node and between nodes, and the cost of an exchange to
// the worker itself.
//
//     worker -- inside: a link for each pair, a port for each worker, or one bus -- worker      one node
//     worker -- NIC of the node -- leaf switch -- spine -- leaf switch -- NIC -- worker         two nodes
//
// On an idle path, a message of S bytes arrives alpha + S * beta seconds after it was sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

namespace convoy::sim {

/// A link that carries one message at a time.
struct Link {
  double alpha = 0;  ///< seconds until the first byte arrives
  double beta = 0;   ///< seconds per byte

  static constexpr void fields(auto& self, auto&& field) {
    field("alpha", self.alpha);
    field("beta", self.beta);
  }
};

/// How the workers of a node are connected.
enum class Wiring : unsigned char {
  pairs,   ///< each pair of workers has its own link in each direction (NVLink without a switch)
  ports,   ///< each worker has one port out and one port in, for all peers (NVSwitch)
  bus,     ///< all workers of the node share one bus (a PCIe root)
  memory,  ///< workers are processes that share memory: a message is a load and a store of it
};

constexpr std::string_view name_of(Wiring wiring) {
  constexpr std::string_view names[] = {"pairs", "ports", "bus", "memory"};
  return names[static_cast<std::size_t>(wiring)];
}

/// The connection between the workers of a node.
struct Inside {
  Wiring wiring = Wiring::bus;
  double alpha = 0;  ///< seconds per message, and per barrier
  double beta = 0;   ///< seconds per byte of a message, and of a load or store of a peer's memory; with
                     ///< Wiring::memory, any load or store takes half

  static constexpr void fields(auto& self, auto&& field) {
    field("wiring", self.wiring);
    field("alpha", self.alpha);
    field("beta", self.beta);
  }
};

/// The network cards of a node, each full duplex. Worker i of g uses card i * count / g.
struct Nic {
  int count = 1;
  double alpha = 0;    ///< seconds per message, including switches
  double beta = 0;     ///< seconds per byte that a card sends
  double receive = 1;  ///< time to receive a byte, relative to beta; 0: receiving is never the bottleneck

  static constexpr void fields(auto& self, auto&& field) {
    field("count", self.count);
    field("alpha", self.alpha);
    field("beta", self.beta);
    field("receive", self.receive);
  }
};

/// The network between the cards: a two-level fat tree (Leiserson, "Fat-trees", 1985).
struct Fabric {
  int nodes_per_leaf = 0;       ///< nodes on a leaf switch; 0: one switch for all
  double oversubscription = 1;  ///< bandwidth of a leaf's cards over that of its uplinks

  /// Whether the uplinks of a leaf can be a bottleneck.
  bool binds() const { return nodes_per_leaf > 0 && oversubscription > 1; }

  static constexpr void fields(auto& self, auto&& field) {
    field("nodes_per_leaf", self.nodes_per_leaf);
    field("oversubscription", self.oversubscription);
  }
};

/// A group of identical nodes.
struct Nodes {
  int count = 1;
  int ranks = 1;     ///< workers on each node
  double speed = 1;  ///< of a worker, relative to the worker whose times Work holds

  static constexpr void fields(auto& self, auto&& field) {
    field("count", self.count);
    field("ranks", self.ranks);
    field("speed", self.speed);
  }
};

/// One worker's device, for a roofline model of its computation.
struct Device {
  double flops = 0;      ///< per second
  double bandwidth = 0;  ///< bytes per second of its memory; limits server updates if Work has no updates

  static constexpr void fields(auto& self, auto&& field) {
    field("flops", self.flops);
    field("bandwidth", self.bandwidth);
  }
};

struct Cluster {
  std::string name;
  std::string source;        ///< where the numbers are from
  std::vector<Nodes> nodes;  ///< ranks are numbered through them in order
  Inside inside;
  Nic nic;
  Fabric fabric;
  Link staging;                ///< between device and host, for exchanges that cannot read device memory
  double gamma = 0;            ///< seconds per byte that is reduced or coded
  double launch = 0;           ///< seconds before each bucket's first message
  double hide = 1;             ///< the fraction of backward that an exchange can overlap
  double hide_background = 1;  ///< the same with a background thread for the exchange
  double jitter = 0;           ///< relative standard deviation of a worker's compute time per step
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
  /// Whether all nodes are identical.
  bool uniform() const {
    for (const Nodes& some : nodes)
      if (some.ranks != nodes.front().ranks || some.speed != nodes.front().speed) return false;
    return true;
  }

  /// Throws ConfigError, with the field, for invalid numbers.
  void check() const;
  /// The first `count` nodes, each with `ranks` workers; 0 leaves either unchanged. Only a cluster with one
  /// kind of nodes can grow; growing any other throws ConfigError.
  Cluster sized(int count, int ranks) const;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void Cluster::check() const {
  const auto expect = [&](bool right, std::string_view field, double value, std::string_view wanted) {
    if (!right) fail<ConfigError>("cluster \"", name, "\": ", field, " is ", value, "; it must be ", wanted);
  };
  constexpr int most = 1 << 20;
  const auto seconds = [&](std::string_view field, double value) {
    expect(value >= 0 && value < 1e9, field, value, "seconds, at least 0 and below 1e9");
  };
  if (nodes.empty()) fail<ConfigError>("cluster \"", name, "\" has no nodes");
  double all = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Nodes& some = nodes[i];
    const std::string entry = concat("nodes[", i, "].");
    expect(some.count >= 1 && some.count <= most, entry + "count", some.count, "1 to 2^20");
    expect(some.ranks >= 1 && some.ranks <= most, entry + "ranks", some.ranks, "1 to 2^20");
    expect(inside.wiring != Wiring::pairs || some.ranks <= 1024, entry + "ranks", some.ranks,
           "at most 1024 with the wiring \"pairs\", which has a link for each pair of them");
    expect(some.speed > 0 && some.speed < 1e9, entry + "speed", some.speed, "above 0 and below 1e9");
    all += static_cast<double>(some.count) * some.ranks;
  }
  expect(all <= most, "the number of ranks", all, "at most 2^20");
  seconds("inside.alpha", inside.alpha);
  seconds("inside.beta", inside.beta);
  expect(nic.count >= 1 && nic.count <= 1024, "nic.count", nic.count, "1 to 1024");
  seconds("nic.alpha", nic.alpha);
  seconds("nic.beta", nic.beta);
  expect(nic.receive >= 0 && nic.receive < 1e9, "nic.receive", nic.receive,
         "a factor, at least 0 and below 1e9");
  expect(fabric.nodes_per_leaf >= 0 && fabric.nodes_per_leaf <= most, "fabric.nodes_per_leaf",
         fabric.nodes_per_leaf, "0, or 1 to 2^20 nodes");
  expect(fabric.oversubscription >= 1 && fabric.oversubscription < 1e9, "fabric.oversubscription",
         fabric.oversubscription, "at least 1 and below 1e9");
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
                        " kinds and cannot grow to ", count,
                        " nodes; only a cluster with one kind of nodes can grow");
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
