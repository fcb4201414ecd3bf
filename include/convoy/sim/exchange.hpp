// Exchange: how gradients are exchanged, with the names of comm's registry and the trainers' options.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace convoy::sim {

/// A policy with its options, as in comm::Options and comm::Choice, and the trainer's options that affect it.
struct Exchange {
  /// A policy of comm's registry, or "nccl". "native" and "nccl" use a ring or a tree, whichever is cheaper
  /// for a bucket, one bucket after the other; "native" begins after backward.
  std::string comm = "ring";
  std::string codec = "none";        ///< only with "ring"
  double codec_fraction = 0.01;      ///< of topk: the fraction of elements that is sent
  int codec_rank = 4;                ///< of powersgd: columns of a factor
  bool overlap = true;               ///< buckets are exchanged during backward
  bool background = false;           ///< a background thread executes the exchange
  bool staged = false;               ///< gradients are staged in host memory
  int lanes = 0;                     ///< buckets in flight; 0: as Mpi between nodes, as Shm in one node
  std::size_t segment_bytes = 0;     ///< bytes of a message of a long block; 0: likewise
  int window = 0;                    ///< segments in flight; 0: likewise
  int servers = 1;                   ///< of ps, ps-async and ps-stale
  bool servers_beside = false;       ///< on the last ranks, apart from the workers, rather than among them
  int staleness = 4;                 ///< of ps-stale
  bool weighted = false;             ///< workers take shares of a batch in proportion to their speed
  std::vector<double> weights = {};  ///< or in proportion to these

  static constexpr void fields(auto& self, auto&& field) {
    field("comm", self.comm);
    field("codec", self.codec);
    field("codec_fraction", self.codec_fraction);
    field("codec_rank", self.codec_rank);
    field("overlap", self.overlap);
    field("background", self.background);
    field("staged", self.staged);
    field("lanes", self.lanes);
    field("segment_bytes", self.segment_bytes);
    field("window", self.window);
    field("servers", self.servers);
    field("servers_beside", self.servers_beside);
    field("staleness", self.staleness);
    field("weighted", self.weighted);
    field("weights", self.weights);
  }
};

}  // namespace convoy::sim
