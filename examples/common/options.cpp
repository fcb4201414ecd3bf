#include "options.hpp"

#include <algorithm>
#include <cstdlib>
#include <iomanip>
#include <limits>
#include <span>
#include <sstream>
#include <type_traits>
#include <variant>

#include <CLI/CLI.hpp>

#include "command_line.hpp"
#include "numbers.hpp"
#include <convoy/core/error.hpp>
#include <convoy/optim/schedule.hpp>

namespace examples {

namespace {

using convoy::comm::Entry;

std::vector<std::string> names_of_decays() {
  std::vector<std::string> names;
  for (const auto decay : convoy::optim::decays) names.emplace_back(convoy::optim::name_of(decay));
  return names;
}

// Every name once.
std::vector<std::string> names_of(std::span<const Entry> entries, std::span<const Entry> more = {}) {
  std::vector<std::string> names;
  for (const auto some : {entries, more})
    for (const Entry& entry : some)
      if (std::find(names.begin(), names.end(), entry.name) == names.end()) names.emplace_back(entry.name);
  return names;
}

void add(CLI::App& app, const OwnOption& own) {
  const auto check = [](CLI::Option& made, const auto& accepts) {
    using Rule = std::remove_cvref_t<decltype(accepts)>;
    if constexpr (std::is_same_v<Rule, Between>)
      made.check(within(accepts.least, accepts.most));
    else if constexpr (std::is_same_v<Rule, OneOf>)
      made.check(CLI::IsMember(accepts));
    else if (accepts == Accepts::positive)
      made.check(positive());
    else if (accepts == Accepts::not_negative)
      made.check(not_negative());
    else if (accepts == Accepts::file)
      made.check(path());
  };
  const auto add = [&](auto* value) {
    if constexpr (std::is_same_v<decltype(value), bool*>) {
      app.add_flag(own.name, *value, own.about);
    } else {
      CLI::Option& made = *app.add_option(own.name, *value, own.about);
      std::visit([&](const auto& accepts) { check(made, accepts); }, own.accepts);
      if (!own.needs.empty()) made.needs(own.needs);
    }
  };
  std::visit(add, own.value);
}

// A registry's entries, for the text below the options.
std::string table_of(std::string_view option, std::span<const Entry> entries) {
  std::ostringstream text;
  if (entries.empty()) return {};
  text << '\n' << option << ":\n";
  for (const Entry& entry : entries) {
    text << "  " << std::left << std::setw(18) << entry.name << entry.about;
    if (!entry.over.empty()) text << " (over " << entry.over << ')';
    text << '\n';
  }
  return text.str();
}

// Sets --comm and --transport to their defaults if they are not given.
void choose_exchange(const Choices& choices, Options& o) {
  const auto of_gpus =
      std::find_if(choices.gpu_policies.begin(), choices.gpu_policies.end(), [&](const Entry& entry) {
        return (o.comm.empty() || entry.name == o.comm) && (o.transport.empty() || entry.over == o.transport);
      });
  if (o.device != "cpu" && of_gpus != choices.gpu_policies.end()) {
    o.comm = of_gpus->name;
    o.transport = of_gpus->over;
  } else if (o.comm.empty()) {
    o.comm = "ring";
  }
}

// Each of these adds the options of one kind, in the order of --help.

void add_exchange(CLI::App& app, const Choices& choices, Options& o) {
  app.add_option("--comm", o.comm,
                 "Gradient exchange (default: ring; on GPUs, the first GPU policy listed below)")
      ->check(CLI::IsMember(names_of(convoy::comm::policies, choices.gpu_policies)));
  app.add_option("--transport", o.transport,
                 "Transport of the exchange (default: mpi under a launcher, otherwise threads; on GPUs, the "
                 "first GPU transport that has the policy)")
      ->check(CLI::IsMember(names_of(convoy::comm::transports, choices.gpu_transports)));
  app.add_option("--ranks", o.ranks, "Number of ranks (transport threads)")->check(positive());
  app.add_option("--codec", o.codec, "Gradient compression (comm ring and nccl)")
      ->check(CLI::IsMember(names_of(convoy::comm::codecs)));
  app.add_option("--codec-fraction", o.topk.fraction, "Fraction of the gradients that topk keeps")
      ->check(within(1e-6, 1));
  app.add_option("--codec-rank", o.powersgd.rank, "Rank of powersgd's low-rank factors")->check(positive());
  app.add_option("--codec-warmup", o.codec_warm_up,
                 "Steps before topk or powersgd begins to compress (default: the codec's own)")
      ->check(not_negative());
  app.add_option("--servers", o.servers, "Number of parameter servers (comm ps, ps-async, ps-stale)")
      ->check(positive());
  app.add_option("--placement", o.placement,
                 "Place parameter servers among the workers, or beside them as the last ranks")
      ->check(CLI::IsMember({"among", "beside"}));
  app.add_option("--staleness", o.staleness,
                 "Steps that a worker may be ahead of the slowest (comm ps-stale)")
      ->check(not_negative());
  app.add_flag("--background", o.background,
               "Advance the exchange in a background thread while the rank computes");
  app.add_flag("--weighted", o.weighted,
               "Divide each batch among ranks in proportion to their measured speeds");
  app.add_option("--shares", o.shares, "Divide each batch among ranks in these proportions, e.g. 2,1")
      ->delimiter(',')
      ->excludes("--weighted");
}

void add_computing(CLI::App& app, const Choices& choices, Options& o) {
  app.add_option("--device", o.device, "Compute device")->check(CLI::IsMember(choices.devices));
  app.add_option("--precision", o.precision,
                 "Precision of multiplied values; parameters, their gradients and sums are f32")
      ->check(CLI::IsMember(choices.precisions));
  CLI::Option* const replay =
      app.add_option(
             "--replay", o.replay,
             "Replay the times of this profile instead of computing (one for all workers, or one each)")
          ->delimiter(',');
  app.add_option("--replay-rate", o.replay_rates,
                 "Like --replay, with the times of a machine that alone trains this many samples/s")
      ->delimiter(',')
      ->check(positive())
      ->excludes(replay);
  app.add_option("--replay-roofline", o.replay_roofline,
                 "Like --replay, with the times of a device of this many TFLOP/s and GB/s, e.g. 15.7,900")
      ->delimiter(',')
      ->expected(2)
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw)  // TakeLast would take one number, too
      ->check(positive())
      ->excludes(replay)
      ->excludes("--replay-rate");
  app.add_option("--profile-out", o.profile_out,
                 "Write the time of each operation to this file, for --replay (--device cpu)")
      ->check(path())
      ->excludes(replay)
      ->excludes("--replay-rate")
      ->excludes("--replay-roofline");
  app.add_option("--threads", o.threads,
                 "Threads per rank (0: the available processors, divided among ranks)")
      ->check(not_negative());
}

void add_optimizer(CLI::App& app, const Choices& choices, Options& o) {
  app.add_option("--optimizer", o.optimizer, "Optimizer")->check(CLI::IsMember(choices.optimizers));
  app.add_option("--lr", o.lr, "Learning rate")->check(positive());
  app.add_flag("--scale-lr", o.scale_lr, "Multiply the learning rate by the world size");
  app.add_option("--warmup", o.warmup, "Steps of linear warm-up (0: --warmup-share of the run)")
      ->check(not_negative());
  app.add_option("--warmup-share", o.warmup_share, "Fraction of the run that is warm-up")
      ->check(within(0, 0.9));
  app.add_option("--decay", o.decay, "Learning-rate decay")->check(CLI::IsMember(names_of_decays()));
  app.add_option("--decay-end", o.decay_end,
                 "Final learning rate as a fraction of the peak (linear, cosine, polynomial)")
      ->check(not_negative());
  app.add_option("--decay-power", o.decay_power, "Exponent of polynomial decay")->check(positive());
  app.add_option("--decay-every", o.decay_every,
                 "Steps between reductions of the learning rate (--decay steps)")
      ->check(positive());
  app.add_option("--milestones", o.milestones,
                 "Steps at which the learning rate is reduced, e.g. 300,600 (--decay milestones)")
      ->delimiter(',');
  app.add_option("--decay-gamma", o.decay_gamma, "Factor of each reduction (--decay steps and milestones)")
      ->check(positive());
  app.add_option("--momentum", o.momentum, "Momentum of sgd, lars and muon (default: the optimizer's own)")
      ->check(within(0, 1));
  app.add_option("--beta1", o.beta1, "Decay of the mean gradient of adam, adamw, lamb and muon")
      ->check(within(0, 1));
  app.add_option("--beta2", o.beta2, "Decay of the mean squared gradient, likewise")->check(within(0, 1));
  app.add_option("--epsilon", o.epsilon, "Added to the root of the mean squared gradient, likewise")
      ->check(positive());
  app.add_option("--weight-decay", o.weight_decay,
                 "Weight decay, applied to weights only (default: the optimizer's own)")
      ->check(not_negative());
  app.add_option("--trust", o.trust, "Trust coefficient of lars (default: its own)")->check(positive());
  app.add_option("--clip", o.clip, "Clip the global gradient norm to this value (0: no clipping)")
      ->check(not_negative());
  app.add_flag("--grad-norm", o.grad_norm,
               "Measure the global gradient norm for --csv without --clip; costs a pass over the gradient");
}

void add_training(CLI::App& app, Options& o) {
  app.add_option("--bucket-mib", o.bucket_mib,
                 "Gradient bucket size in MiB, or tensor: a bucket per tensor (default: the model's own)")
      ->check(positive(std::numeric_limits<double>::infinity()) | CLI::IsMember({"tensor"}));
  app.add_flag("--no-overlap", o.no_overlap, "Exchange gradients after backward instead of during it");
  app.add_flag("--keep-dead-taps", o.keep_dead_taps,
               "Compute and exchange filter taps that only ever meet padding, as published runs do");
  app.add_flag("--sync-batch-norm", o.sync_batch_norm,
               "Compute batch-norm statistics over the rows of all ranks");
  app.add_flag("--unsharded", o.unsharded, "Every rank reads the whole data set, each in its own order");
  app.add_option("--batch", o.batch, "Rows per rank and micro-step")->check(positive());
  app.add_option("--epochs", o.epochs, "Passes over the training set")->check(positive());
  app.add_option("--steps", o.steps, "Maximum number of steps (0: limited by --epochs alone)")
      ->check(not_negative());
  app.add_option("--accumulate", o.accumulate, "Gradient accumulation: micro-steps per step")
      ->check(positive());
  app.add_option("--seed", o.seed, "Random seed of parameters and shuffling");
  app.add_option("--data", o.data, "Path of the data set, or name of a generated one");
  app.add_option("--readers", o.readers, "Threads per rank that read data ahead")->check(positive());
  app.add_flag("--resident", o.resident,
               "Keep the training set in GPU memory and make batches there (--device cuda)");
}

void add_weights(CLI::App& app, Options& o) {
  app.add_option("--weights", o.weights, "Load initial weights from this safetensors file")->check(path());
  app.add_flag("--partial-weights", o.partial_weights, "Load only the tensors that fit the model")
      ->needs("--weights");
  app.add_flag("--evaluate", o.evaluate, "Only evaluate --weights or the newest checkpoint");
}

void add_checkpoints(CLI::App& app, Options& o) {
  app.add_option("--checkpoint", o.checkpoint,
                 "Folder for checkpoints; SIGTERM and SIGINT write one, too, before the run ends")
      ->check(path());
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "Steps between checkpoints (0: one after each epoch)")
      ->check(not_negative())
      ->needs("--checkpoint");
  app.add_flag("--resume", o.resume, "Resume from the newest checkpoint, if there is one")
      ->needs("--checkpoint");
}

void add_output(CLI::App& app, Options& o) {
  app.add_option("--json", o.json, "Write the result to this file as a JSON object")->check(path());
  app.add_option("--csv", o.csv, "Write one CSV line per step to this file; --resume goes on in it")
      ->check(path());
  app.add_option("--batches", o.batches,
                 "Write the rows of all ranks, in the order of the steps, to this safetensors file")
      ->check(path());
  app.add_option("--onnx", o.onnx, "Write the trained model to this file in ONNX")->check(path());
  app.add_option("--timeline", o.timeline, "Write a Chrome trace of all ranks to this file")->check(path());
  app.add_option("--log-every", o.log_every, "Steps between throughput lines")->check(positive());
  app.add_flag("--quiet", o.quiet, "Print only errors");
}

}  // namespace

bool between_gpus(const Choices& choices, const Options& o) {
  const auto names = [](std::span<const Entry> entries, const std::string& name) {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
  };
  return names(choices.gpu_transports, o.transport) ||
         (names(choices.gpu_policies, o.comm) && !names(convoy::comm::policies, o.comm));
}

convoy::comm::Choice choice_of(const Options& o) {
  convoy::comm::Choice choice{.codec = o.codec,
                              .topk = o.topk,
                              .powersgd = o.powersgd,
                              .servers = o.servers,
                              .servers_beside = o.placement == "beside",
                              .staleness = o.staleness,
                              .background = o.background,
                              .weighted = o.weighted,
                              .weights = o.shares};
  if (o.codec_warm_up && o.codec == "powersgd")
    choice.powersgd.warm_up_steps = *o.codec_warm_up;
  else if (o.codec_warm_up)
    choice.topk.warm_up_steps = *o.codec_warm_up;
  return choice;
}

std::optional<convoy::graph::BucketOptions> buckets_of(const Options& options) {
  if (options.bucket_mib.empty()) return std::nullopt;
  constexpr double most = 0x1p60;  // larger than any model, and a std::int64_t
  const auto bytes = options.bucket_mib == "tensor"
                         ? std::int64_t{1}
                         : static_cast<std::int64_t>(
                               std::min(std::strtod(options.bucket_mib.c_str(), nullptr) * (1 << 20), most));
  return convoy::graph::BucketOptions{std::max<std::int64_t>(bytes, 1), std::max<std::int64_t>(bytes, 1)};
}

NamedFiles files_read(const Options& o, const std::vector<OwnOption>& own) {
  NamedFiles files = {{"--data", o.data}, {"--weights", o.weights}};
  for (const std::string& profile : o.replay) files.emplace_back("--replay", profile);
  for (const OwnOption& option : own)
    if (const auto* accepts = std::get_if<Accepts>(&option.accepts); accepts && *accepts == Accepts::file)
      files.emplace_back(option.name, *std::get<std::string*>(option.value));
  return files;
}

NamedFiles files_of(const Options& o) {
  return {{"--json", o.json},       {"--csv", o.csv},   {"--timeline", o.timeline},
          {"--batches", o.batches}, {"--onnx", o.onnx}, {"--profile-out", o.profile_out}};
}

void refuse_files(const Options& o, std::string_view instead) {
  for (const auto& [option, path] : files_of(o))
    if (!path.empty())
      convoy::fail<convoy::ConfigError>(option, ' ', path, " is about a training, and with ", instead,
                                        " there is none; leave out one of the two options");
}

bool parse(int argc, char** argv, const std::string& about, const Choices& choices,
           const std::vector<OwnOption>& own, Options& o, int& code) {
  const std::string own_rule = o.optimizer;
  CLI::App app{about};
  app.get_formatter()->column_width(34);
  // The last one wins, so that a script's caller can override the options of the script.
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--model", o.model, "Model to train")->check(CLI::IsMember(choices.models));
  add_exchange(app, choices, o);
  add_computing(app, choices, o);
  add_optimizer(app, choices, o);
  add_training(app, o);
  add_weights(app, o);
  app.add_flag("--overlap", o.overlap,
               "Also time the exchange alone, and report how much of it backward hides");
  add_checkpoints(app, o);
  app.add_option("--deadline", o.deadline, "Timeout in seconds of each wait for another rank")
      ->check(positive());
  add_output(app, o);
  for (const OwnOption& option : own) add(app, option);
  app.footer(table_of("--comm", convoy::comm::policies) + table_of("--comm of GPUs", choices.gpu_policies) +
             table_of("--codec", convoy::comm::codecs) + table_of("--transport", convoy::comm::transports) +
             table_of("--transport of GPUs", choices.gpu_transports));
  if (const auto ends = parse_command_line(app, argc, argv)) {
    code = *ends;
    return false;
  }
  choose_exchange(choices, o);
  // The program's default momentum and epsilon are for its default rule.
  if (o.optimizer != own_rule && app.count("--momentum") == 0) o.momentum.reset();
  if (o.optimizer != own_rule && app.count("--epsilon") == 0) o.epsilon.reset();
  return true;
}

}  // namespace examples
