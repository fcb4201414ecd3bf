// The options that every example trainer takes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "own_option.hpp"
#include <convoy/comm/registry.hpp>
#include <convoy/graph/pass/buckets.hpp>

namespace examples {

struct Options {
  std::string model = "resnet18";
  std::string comm = {};  ///< empty: ring, or what GPUs exchange by themselves
  std::string transport =
      {};         ///< empty: of GPUs where they have the policy, else mpi under a launcher or threads
  int ranks = 1;  ///< threads that act as ranks
  std::string codec = "none";
  convoy::comm::codec::TopK topk{};
  convoy::comm::codec::PowerSgd powersgd{};
  std::optional<std::int64_t> codec_warm_up = {};  ///< of topk and powersgd
  int servers = 1;                                 ///< parameter servers
  std::string placement = "among";                 ///< the workers, or beside them
  int staleness = 4;                               ///< steps that a rank of ps-stale may be ahead
  bool background = false;          ///< a thread of its own goes on with the exchange during backward
  bool weighted = false;            ///< ranks take shares of a batch that go by their measured speed
  std::vector<double> shares = {};  ///< ranks take shares of a batch in proportion to these
  std::string device = "cpu";
  std::string precision = "f32";
  std::vector<std::string> replay = {};      ///< profiles to replay: one for all workers, or one for each
  std::vector<double> replay_rates = {};     ///< samples a second to replay, likewise
  std::vector<double> replay_roofline = {};  ///< TFLOP/s and GB/s to replay, of all workers
  std::string profile_out = {};              ///< where the profile of this run goes; empty: nowhere
  int threads = 0;  ///< of one rank; 0: the processors this process may use, shared among its ranks
  std::string optimizer = "adam";
  float lr = 1e-3f;
  bool scale_lr = false;
  std::int64_t warmup = 0;  ///< steps
  double warmup_share = 0;  ///< of the run, where no steps are said
  std::string decay = "linear";
  float decay_end = 0, decay_power = 2, decay_gamma = 0.1f;
  std::int64_t decay_every = 0;
  std::vector<std::int64_t> milestones = {};
  std::optional<float> momentum = {}, weight_decay = {}, trust = {};  ///< none: the rule's own
  float clip = 0;          ///< the largest norm of the whole gradient; 0: any
  bool grad_norm = false;  ///< measure it where nothing is clipped
  std::string bucket_mib =
      {};  ///< empty: the model's own; a size in MiB, or "tensor" for one bucket a tensor
  bool no_overlap = false;
  bool keep_dead_taps = false;
  bool unsharded = false;  ///< every rank reads all data
  bool sync_batch_norm = false;
  int batch = 128;
  int epochs = 1;
  std::int64_t steps = 0;
  int accumulate = 1;
  std::uint64_t seed = 0;
  std::string data = "digits";
  int readers = 1;                    ///< threads that read a rank's data
  bool resident = false;              ///< the training set lies in the GPU's memory
  std::string weights = {};           ///< a safetensors file to begin with; empty: random ones
  bool partial_weights = false;       ///< take of it what fits
  bool evaluate = false;              ///< nothing else
  bool overlap = false;               ///< measure the exchange alone, to say how much of it backward hides
  std::string checkpoint = {};        ///< a folder; empty: none are kept
  std::int64_t checkpoint_every = 0;  ///< steps; 0: after each epoch
  bool resume = false;
  double deadline = 60;
  std::string json = {};
  std::string csv = {};
  std::string batches = {};
  std::string timeline = {};
  int log_every = 200;
  bool quiet = false;
};

/// What of a trainer is compiled in, and so can be chosen.
struct Choices {
  std::vector<std::string> models, optimizers, devices, precisions;
  /// What GPUs exchange by themselves, each policy over the transport that its entry names.
  std::span<const convoy::comm::Entry> gpu_policies = {}, gpu_transports = {};
};

/// Whether the exchange is one that GPUs make by themselves.
bool between_gpus(const Choices& choices, const Options& options);

/// Whether operations only take time.
inline bool replays(const Options& options) {
  return !options.replay.empty() || !options.replay_rates.empty() || !options.replay_roofline.empty();
}

/// What the options say about the exchange, beside the deadline.
convoy::comm::Choice choice_of(const Options& options);

/// What they say about buckets; none: the model's own.
std::optional<convoy::graph::BucketOptions> buckets_of(const Options& options);

/// Parses the command line, to which `own` adds; on `--help` or an error, prints one and returns false with
/// the exit code in `code`.
bool parse(int argc, char** argv, const std::string& about, const Choices& choices,
           const std::vector<OwnOption>& own, Options& options, int& code);

}  // namespace examples
