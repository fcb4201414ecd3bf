// Outcome: what a simulation finds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace convoy::sim {

/// How much of a step something was used.
struct Use {
  std::string name;        ///< "node 3 NIC 0 out"
  std::string kind;        ///< "nic"
  double seconds = 0;      ///< busy, a step
  double utilisation = 0;  ///< the share of the step
  double bytes = 0;        ///< that went through it, a step
};

/// When something happened on a rank, in seconds from the beginning of the last step.
struct Span {
  int rank = 0;
  int track = 0;  ///< 0: what the worker computes; from 1: the lanes of its buckets
  std::string name;
  double begin = 0, end = 0;
};

/// What is on the path that decides when a step ends, in seconds of the step: where nothing of it would be
/// faster, the step would not be.
struct Critical {
  double compute = 0;    ///< forward, backward and updates
  double waiting = 0;    ///< of that, what the slowest worker takes longer than all do in the mean
  double launch = 0;     ///< of buckets
  double latency = 0;    ///< of messages
  double inside = 0;     ///< bytes inside nodes
  double nic = 0;        ///< bytes through NICs
  double fabric = 0;     ///< bytes between leaves
  double combining = 0;  ///< reductions and codecs
  double staging = 0;    ///< copies between devices and hosts
};

/// What comes out, means over the steps.
struct Outcome {
  double step_seconds = 0;
  double exposed_seconds = 0;  ///< of the step, what is not the slowest worker's own computing
  double throughput = 0;       ///< samples a second of all workers
  double scalability = 0;      ///< throughput over that of one worker of speed 1 alone
  Critical critical;
  std::string binds;          ///< what takes most of what computing at speed does not: "nic", "latency", ...
  std::vector<Use> links;     ///< busiest first
  std::int64_t messages = 0;  ///< a step, of all ranks
  double bytes = 0;           ///< a step, of all ranks
  std::vector<Span> spans;    ///< of some ranks, where they were asked for
};

}  // namespace convoy::sim
