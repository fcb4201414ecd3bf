// Exchange: how gradients travel, by the names that comm's registry and the trainers' options have for it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace convoy::sim {

/// A policy with its options, as comm::Options and comm::Choice say them, and what the trainer does around.
struct Exchange {
  /// A policy of comm's registry, or "nccl". "native" and "nccl" go by a ring or a tree, whichever is cheaper
  /// for a bucket, one bucket after the other; "native" begins once backward is over.
  std::string comm = "ring";
  std::string codec = "none";        ///< of a ring
  double codec_ratio = 0.01;         ///< of topk: the share of elements that travels
  int codec_rank = 4;                ///< of powersgd: columns of a factor
  bool overlap = true;               ///< buckets travel while backward goes on
  bool background = false;           ///< a thread goes on with them
  bool staged = false;               ///< gradients go through the memory of the host
  int lanes = 0;                     ///< buckets under way at a time; 0: as the engine has them over MPI
  std::size_t segment_bytes = 0;     ///< of messages of a long block; 0: as over MPI
  int window = 0;                    ///< segments under way at a time; 0: likewise
  int servers = 1;                   ///< of ps, ps-async and ps-stale
  bool servers_beside = false;       ///< on ranks of their own, the last, rather than among the workers
  int staleness = 4;                 ///< of ps-stale
  bool weighted = false;             ///< workers take shares of a batch in proportion to their speed
  std::vector<double> weights = {};  ///< or in proportion to these

  static constexpr void fields(auto& self, auto&& field) {
    field("comm", self.comm);
    field("codec", self.codec);
    field("codec_ratio", self.codec_ratio);
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
