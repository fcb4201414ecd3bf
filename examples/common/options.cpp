#include "options.hpp"

#include <algorithm>
#include <iomanip>
#include <span>
#include <sstream>
#include <type_traits>
#include <variant>

#include <CLI/CLI.hpp>

#include "numbers.hpp"
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
      made.check(CLI::Range(accepts.least, accepts.most));
    else if constexpr (std::is_same_v<Rule, OneOf>)
      made.check(CLI::IsMember(accepts));
    else if (accepts == Accepts::positive)
      made.check(positive());
    else if (accepts == Accepts::not_negative)
      made.check(not_negative());
  };
  const auto add = [&](auto* value) {
    if constexpr (std::is_same_v<decltype(value), bool*>) {
      app.add_flag(own.name, *value, own.about);
    } else {
      CLI::Option& made = *app.add_option(own.name, *value, own.about);
      std::visit([&](const auto& accepts) { check(made, accepts); }, own.accepts);
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
  const auto bytes = options.bucket_mib == "tensor"
                         ? std::int64_t{1}
                         : static_cast<std::int64_t>(std::stod(options.bucket_mib) * (1 << 20));
  return convoy::graph::BucketOptions{std::max<std::int64_t>(bytes, 1), std::max<std::int64_t>(bytes, 1)};
}

bool parse(int argc, char** argv, const std::string& about, const Choices& choices,
           const std::vector<OwnOption>& own, Options& o, int& code) {
  const std::string own_rule = o.optimizer;
  CLI::App app{about};
  app.get_formatter()->column_width(34);
  app.option_defaults()->always_capture_default();
  app.add_option("--model", o.model, "Which model to train")->check(CLI::IsMember(choices.models));
  app.add_option("--comm", o.comm,
                 "How gradients are exchanged; by default ring, and on GPUs their own all-reduce")
      ->check(CLI::IsMember(names_of(convoy::comm::policies, choices.gpu_policies)));
  app.add_option(
         "--transport", o.transport,
         "By default mpi under a launcher and threads otherwise; on GPUs their own where it has the policy")
      ->check(CLI::IsMember(names_of(convoy::comm::transports, choices.gpu_transports)));
  app.add_option("--ranks", o.ranks, "Ranks of the threads transport")->check(positive());
  app.add_option("--codec", o.codec, "How ring and nccl encode gradients")
      ->check(CLI::IsMember(names_of(convoy::comm::codecs)));
  app.add_option("--codec-fraction", o.topk.fraction, "Of the gradients that topk keeps")
      ->check(CLI::Range(1e-6, 1.0));
  app.add_option("--codec-rank", o.powersgd.rank, "Columns of the factors of powersgd")->check(positive());
  app.add_option("--codec-warmup", o.codec_warm_up,
                 "First steps whose gradients topk and powersgd send as they are")
      ->check(not_negative());
  app.add_option("--servers", o.servers, "How many ranks serve parameters (ps...)")->check(positive());
  app.add_option("--placement", o.placement, "Servers are among the workers, or the last ranks beside them")
      ->check(CLI::IsMember({"among", "beside"}));
  app.add_option("--staleness", o.staleness, "Steps that a rank may be ahead of the slowest (ps-stale)")
      ->check(not_negative());
  app.add_flag("--background", o.background, "A thread goes on with the exchange while the rank computes");
  app.add_flag("--weighted", o.weighted, "Measure the ranks' speeds, and share each batch out by them");
  app.add_option("--shares", o.shares, "Share each batch out in these proportions, such as 2,1")
      ->delimiter(',')
      ->excludes("--weighted");
  app.add_option("--device", o.device, "Where to compute")->check(CLI::IsMember(choices.devices));
  app.add_option("--precision", o.precision,
                 "Of what is multiplied; parameters, their gradients and sums are f32")
      ->check(CLI::IsMember(choices.precisions));
  CLI::Option* const replay =
      app.add_option(
             "--replay", o.replay,
             "Compute nothing, and take the seconds of this profile; of several, each rank of its own")
          ->delimiter(',');
  app.add_option("--replay-rate", o.replay_rates,
                 "The same with the seconds of a machine that trains so many samples a second alone")
      ->delimiter(',')
      ->check(positive())
      ->excludes(replay);
  app.add_option("--replay-roofline", o.replay_roofline,
                 "The same with the seconds of a device of so many TFLOP/s and GB/s, such as 15.7,900")
      ->delimiter(',')
      ->expected(2)
      ->check(positive())
      ->excludes(replay)
      ->excludes("--replay-rate");
  app.add_option("--profile-out", o.profile_out,
                 "Write what each operation takes to this file, for --replay (--device cpu)")
      ->excludes(replay)
      ->excludes("--replay-rate")
      ->excludes("--replay-roofline");
  app.add_option("--threads", o.threads, "Threads of one rank; 0: the processors there are, shared")
      ->check(not_negative());
  app.add_option("--optimizer", o.optimizer, "The update rule")->check(CLI::IsMember(choices.optimizers));
  app.add_option("--lr", o.lr, "Learning rate")->check(positive());
  app.add_flag("--scale-lr", o.scale_lr, "Multiply the learning rate by the world size");
  app.add_option("--warmup", o.warmup, "Steps of linear warm-up; 0: --warmup-share of the run")
      ->check(not_negative());
  app.add_option("--warmup-share", o.warmup_share, "Share of the run that is warm-up")
      ->check(CLI::Range(0.0, 0.9));
  app.add_option("--decay", o.decay, "Of the learning rate over the run")
      ->check(CLI::IsMember(names_of_decays()));
  app.add_option("--decay-end", o.decay_end, "Share of the rate at the end (linear, cosine, polynomial)")
      ->check(not_negative());
  app.add_option("--decay-power", o.decay_power, "Of polynomial")->check(positive());
  app.add_option("--decay-every", o.decay_every, "Steps between two reductions (steps)")->check(positive());
  app.add_option("--milestones", o.milestones, "Steps of the reductions, such as 300,600 (milestones)")
      ->delimiter(',');
  app.add_option("--decay-gamma", o.decay_gamma, "What a reduction multiplies by (steps, milestones)")
      ->check(positive());
  app.add_option("--momentum", o.momentum, "Of sgd and lars; none: the rule's own")
      ->check(CLI::Range(0.0f, 1.0f));
  app.add_option("--weight-decay", o.weight_decay, "Of weights only; none: the rule's own")
      ->check(not_negative());
  app.add_option("--trust", o.trust, "Trust coefficient of lars")->check(positive());
  app.add_option("--clip", o.clip, "Largest norm of the whole gradient; 0: any")->check(not_negative());
  app.add_flag("--grad-norm", o.grad_norm,
               "Measure the norm of the whole gradient for --csv, as --clip does; costs a pass over it");
  app.add_option("--bucket-mib", o.bucket_mib,
                 "Size of the buckets that are exchanged together, or tensor: each tensor alone")
      ->check(positive() | CLI::IsMember({"tensor"}));
  app.add_flag("--no-overlap", o.no_overlap, "Exchange gradients after backward, not beside it");
  app.add_flag("--keep-dead-taps", o.keep_dead_taps,
               "Compute and exchange filter taps that only ever meet padding, as published runs do");
  app.add_flag("--sync-batch-norm", o.sync_batch_norm, "Batch norms go by the rows of all ranks");
  app.add_flag("--unsharded", o.unsharded, "Every rank reads all of the data, in an order of its own");
  app.add_option("--batch", o.batch, "Rows of one rank in a step")->check(positive());
  app.add_option("--epochs", o.epochs, "Passes over the training set")->check(positive());
  app.add_option("--steps", o.steps, "Stop after so many steps; 0: by epochs alone")->check(not_negative());
  app.add_option("--accumulate", o.accumulate, "Micro-steps of one step")->check(positive());
  app.add_option("--seed", o.seed, "Of parameters and shuffling");
  app.add_option("--data", o.data, "Where the data set is, or which generated one it is");
  app.add_option("--readers", o.readers, "Threads that read a rank's data ahead")->check(positive());
  app.add_flag("--resident", o.resident,
               "Keep the training set in the GPU's memory, where its batches are made (--device cuda)");
  app.add_option("--weights", o.weights, "Begin with the weights of this safetensors file");
  app.add_flag("--partial-weights", o.partial_weights, "Take of them what fits the model")
      ->needs("--weights");
  app.add_flag("--evaluate", o.evaluate, "Only evaluate --weights, or the newest checkpoint");
  app.add_flag("--overlap", o.overlap,
               "Measure the exchange alone as well, and how much of it backward hides");
  app.add_option("--checkpoint", o.checkpoint,
                 "A folder that keeps the training's state, also when it is told to end");
  app.add_option("--checkpoint-every", o.checkpoint_every,
                 "Steps between checkpoints; 0: one after each epoch")
      ->check(not_negative())
      ->needs("--checkpoint");
  app.add_flag("--resume", o.resume, "Go on from the newest checkpoint, if there is one")
      ->needs("--checkpoint");
  app.add_option("--deadline", o.deadline, "Seconds that any wait for another rank may last")
      ->check(positive());
  app.add_option("--json", o.json, "Write the result as one JSON object to this file");
  app.add_option("--csv", o.csv, "Write a line for each step to this file");
  app.add_option("--batches", o.batches,
                 "Write the rows that the steps take, of all ranks, to this safetensors file");
  app.add_option("--timeline", o.timeline, "Write a Chrome trace of all ranks to this file");
  app.add_option("--log-every", o.log_every, "Steps between throughput lines")->check(positive());
  app.add_flag("--quiet", o.quiet, "Print nothing but errors");
  for (const OwnOption& option : own) add(app, option);
  app.footer(table_of("--comm", convoy::comm::policies) + table_of("--comm of GPUs", choices.gpu_policies) +
             table_of("--codec", convoy::comm::codecs) + table_of("--transport", convoy::comm::transports) +
             table_of("--transport of GPUs", choices.gpu_transports));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    code = app.exit(error);
    return false;
  }
  choose_exchange(choices, o);
  // The program's default momentum is for its default rule.
  if (o.optimizer != own_rule && app.count("--momentum") == 0) o.momentum.reset();
  return true;
}

}  // namespace examples
