// Settings for tests of the simulator.
#pragma once

#include <convoy/sim/setting.hpp>

namespace convoy::test {

/// Nodes of one worker each, without any contention: the assumption of a schedule's cost formula.
inline sim::Cluster apart(int nodes, double alpha, double beta, double gamma) {
  sim::Cluster cluster;
  cluster.name = "apart";
  cluster.nodes = {{nodes, 1, 1}};
  cluster.nic = {1, alpha, beta, 0};
  cluster.gamma = gamma;
  return cluster;
}

/// Nodes whose ranks share one network card per node.
inline sim::Cluster shared(int nodes, int ranks, sim::Wiring wiring = sim::Wiring::ports) {
  sim::Cluster cluster;
  cluster.name = "shared";
  cluster.nodes = {{nodes, ranks, 1}};
  cluster.inside = {wiring, 2e-6, 1 / 100e9};
  cluster.nic = {1, 5e-6, 1 / 10e9, 1};
  cluster.gamma = 1 / 500e9;
  return cluster;
}

/// One bucket of so many bytes, without computation.
inline sim::Work bytes_alone(std::int64_t bytes) {
  sim::Work work;
  work.buckets = {{bytes, 0, 0}};
  return work;
}

/// A step of several buckets, the last of which is ready when backward ends.
inline sim::Work some_work() {
  sim::Work work;
  work.samples = 32;
  work.forward = 0.01;
  work.backward = 0.02;
  work.buckets = {
      {1 << 20, 0.004, 1e-5}, {12 << 20, 0.012, 1e-4}, {12 << 20, 0.017, 1e-4}, {3 << 20, 0.02, 3e-5}};
  return work;
}

inline sim::Setting setting(const sim::Cluster& cluster, const sim::Work& work, const char* comm) {
  sim::Setting setting;
  setting.cluster = cluster;
  setting.work = work;
  setting.exchange.comm = comm;
  return setting;
}

}  // namespace convoy::test
