// The options that every example trainer takes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "own_option.hpp"
#include "separate_files.hpp"
#include <convoy/comm/registry.hpp>
#include <convoy/graph/pass/buckets.hpp>

namespace examples {

struct Options {
  std::string model = "resnet18";
  std::string comm = {};  ///< empty: ring, or the first policy of GPUs
  std::string transport =
      {};         ///< empty: of GPUs where they have the policy, else mpi under a launcher or threads
  int ranks = 1;  ///< number of threads that act as ranks
  std::string codec = "none";
  convoy::comm::codec::TopK topk{};
  convoy::comm::codec::PowerSgd powersgd{};
  std::optional<std::int64_t> codec_warm_up = {};  ///< of topk and powersgd
  int servers = 1;                                 ///< parameter servers
  std::string placement = "among";                 ///< "among" the workers, or "beside" them
  int staleness = 4;                               ///< steps that a rank of ps-stale may be ahead
  bool background = false;          ///< a background thread executes the exchange during backward
  bool weighted = false;            ///< ranks take shares of a batch in proportion to their measured speed
  std::vector<double> shares = {};  ///< ranks take shares of a batch in proportion to these
  std::string device = "cpu";
  std::string precision = "f32";
  std::vector<std::string> replay = {};      ///< profiles to replay: one for all workers, or one for each
  std::vector<double> replay_rates = {};     ///< samples per second to replay, likewise
  std::vector<double> replay_roofline = {};  ///< TFLOP/s and GB/s to replay, of all workers
  std::string profile_out = {};              ///< where the profile of this run goes; empty: nowhere
  int threads = 0;  ///< of one rank; 0: the processors of this process, divided among its ranks
  std::string optimizer = "adam";
  float lr = 1e-3f;
  bool scale_lr = false;
  std::int64_t warmup = 0;  ///< steps
  double warmup_share = 0;  ///< as a fraction of the run, if `warmup` is 0
  std::string decay = "linear";
  float decay_end = 0, decay_power = 2, decay_gamma = 0.1f;
  std::int64_t decay_every = 0;
  std::vector<std::int64_t> milestones = {};
  /// None: the rule's own.
  std::optional<float> momentum = {}, beta1 = {}, beta2 = {}, epsilon = {}, weight_decay = {}, trust = {};
  float clip = 0;               ///< the largest norm of the whole gradient; 0: no limit
  bool grad_norm = false;       ///< measure the norm even without clipping
  std::string bucket_mib = {};  ///< empty: the model's own; a size in MiB; or "tensor": one each
  bool no_overlap = false;
  bool keep_dead_taps = false;
  bool unsharded = false;  ///< every rank reads all of the data
  bool sync_batch_norm = false;
  int batch = 128;
  int epochs = 1;
  std::int64_t steps = 0;
  int accumulate = 1;
  std::uint64_t seed = 0;
  std::string data = "digits";
  int readers = 1;                    ///< threads that read a rank's data
  bool resident = false;              ///< keep the training set in GPU memory
  std::string weights = {};           ///< a safetensors file of initial weights; empty: random
  bool partial_weights = false;       ///< load what fits
  bool evaluate = false;              ///< evaluate only
  bool overlap = false;               ///< measure the exchange alone, to report how much of it backward hides
  std::string checkpoint = {};        ///< a folder; empty: no checkpoints
  std::int64_t checkpoint_every = 0;  ///< steps; 0: after each epoch
  bool resume = false;
  double deadline = 60;
  std::string json = {};
  std::string csv = {};
  std::string batches = {};
  std::string onnx = {};
  std::string timeline = {};
  int log_every = 200;
  bool quiet = false;
};

/// What is compiled into a trainer and can be chosen.
struct Choices {
  std::vector<std::string> models, optimizers, devices, precisions;
  /// Policies that GPUs execute without their hosts, each over the transport that its entry names.
  std::span<const convoy::comm::Entry> gpu_policies = {}, gpu_transports = {};
};

/// Whether GPUs execute the exchange without their hosts.
bool between_gpus(const Choices& choices, const Options& options);

/// Whether operations only take time and compute nothing.
inline bool replays(const Options& options) {
  return !options.replay.empty() || !options.replay_rates.empty() || !options.replay_roofline.empty();
}

/// The exchange that the options choose, without the deadline.
convoy::comm::Choice choice_of(const Options& options);

/// The buckets that the options choose; none: the model's own.
std::optional<convoy::graph::BucketOptions> buckets_of(const Options& options);

/// The files that a run reads, by the program's `own` options or those of every trainer.
NamedFiles files_read(const Options& options, const std::vector<OwnOption>& own);

/// The files that a training writes.
NamedFiles files_of(const Options& options);

/// Throws ConfigError if the options name a file that a training writes, although they ask for `instead`, an
/// option with which nothing is trained.
void refuse_files(const Options& options, std::string_view instead);

/// Parses the command line; `own` adds options. On `--help` or an error, prints the help or the error and
/// returns false with the exit code in `code`.
bool parse(int argc, char** argv, const std::string& about, const Choices& choices,
           const std::vector<OwnOption>& own, Options& options, int& code);

}  // namespace examples
