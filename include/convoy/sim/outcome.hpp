// Outcome: the result of a simulation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::sim {

/// The use of a resource in a step.
struct Use {
  std::string name;        ///< "node 3 NIC 0 out"
  std::string kind;        ///< "nic"
  double seconds = 0;      ///< busy, per step
  double utilization = 0;  ///< the fraction of the step
  double bytes = 0;        ///< that passed through it, per step
};

/// An interval on a rank in the last step, in seconds from the beginning of the simulation.
struct Span {
  int rank = 0;
  int track = 0;  ///< 0: what the worker computes; from 1: the lanes of its buckets; of servers, 1 for all
  std::string name;
  double begin = 0, end = 0;
};

/// The critical path of a step, in seconds: a step gets shorter only if something on this path does.
struct Critical {
  double compute = 0;    ///< forward, backward and updates
  double waiting = 0;    ///< of that, the excess of the slowest worker over the mean of all
  double launch = 0;     ///< of buckets
  double latency = 0;    ///< of messages
  double inside = 0;     ///< bytes inside nodes
  double nic = 0;        ///< bytes through NICs
  double fabric = 0;     ///< bytes between leaves
  double combining = 0;  ///< reductions and codecs
  double staging = 0;    ///< copies between devices and hosts
};

/// The result of a simulation; times and counts are means over the steps.
struct Outcome {
  double step_seconds = 0;
  double exposed_seconds = 0;  ///< of the step, beyond the slowest worker's own compute time
  double throughput = 0;       ///< samples per second of all workers
  double scalability = 0;      ///< throughput over that of one worker of speed 1 alone
  Critical critical;
  /// The largest cause besides compute: "launch", "latency", "inside", "nic", "fabric", "combining",
  /// "staging" or "waiting for slower workers"; "compute" if none is above 1% of the step.
  std::string binds;
  std::vector<Use> links;     ///< busiest first
  std::int64_t messages = 0;  ///< per step, over all ranks
  double bytes = 0;           ///< per step, over all ranks
  std::vector<Span> spans;    ///< of the ranks that were asked for
};

}  // namespace convoy::sim
