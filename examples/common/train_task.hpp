// One rank's whole run of a task. Everything but the Exec is chosen at run time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "batches.hpp"
#include "progress.hpp"
#include "recording.hpp"
#include "step_log.hpp"
#include "summary.hpp"
#include "terminate.hpp"
#include "training.hpp"
#include "update.hpp"
#include <convoy/convoy.hpp>
#include <convoy/core/file.hpp>
#include <convoy/io/json.hpp>
#include <convoy/train/onnx.hpp>

namespace examples {

inline std::int64_t total_steps(const Options& o, std::size_t samples, int world) {
  const convoy::data::BatchPlan batches(samples, o.batch, {.world = world, .unsharded = o.unsharded}, true);
  const std::int64_t by_epochs = (batches.steps() + o.accumulate - 1) / o.accumulate * o.epochs;
  return o.steps > 0 ? std::min(o.steps, by_epochs) : by_epochs;
}

/// How many names there are, and the first few of them: `2 ('a', 'b')`.
inline std::string count_and_some(const std::vector<std::string>& names) {
  constexpr std::size_t most = 8;
  std::string text = std::to_string(names.size());
  for (std::size_t i = 0; i < std::min(names.size(), most); ++i)
    text += (i == 0 ? " (" : ", ") + convoy::io::cited(names[i]);
  if (names.size() > most) text += ", ...";
  return names.empty() ? text : text + ')';
}

/// Loads the initial weights that the options name. Throws CheckpointError if none of them fits.
template <class Trainer>
void load_weights_of(const Options& o, const Task& task, Trainer& trainer) {
  using namespace convoy;
  const auto loaded = train::load_weights(
      trainer, o.weights, o.partial_weights ? train::Match::partial : train::Match::complete, task.weights);
  if (loaded.complete()) return;
  std::vector<std::string> of_other_shape;
  for (const train::OfOtherShape& tensor : loaded.of_other_shape) of_other_shape.push_back(tensor.name);
  const std::string others =
      concat(count_and_some(loaded.missing), " of the model's missing, ", count_and_some(loaded.unexpected),
             " unexpected, ", count_and_some(of_other_shape), " of another shape");
  if (loaded.loaded == 0) fail<CheckpointError>(o.weights, " has no tensor that fits the model: ", others);
  if (trainer.rank() == 0 && !o.quiet)
    std::cout << o.weights << ": " << counted(loaded.loaded, "tensor") << " loaded, " << others << '\n';
}

/// Whether an exchange counts what it sends. MPI does not tell what MPI_Allreduce sends.
inline bool counts_traffic(std::string_view comm) { return comm != "native"; }

/// Evaluates the weights that were loaded or, with `checkpoints`, those of the newest; on the training set if
/// the task has no test set.
template <class Trainer>
void evaluate_only(const Options& o, const Task& task, Trainer& trainer,
                   convoy::train::Checkpoints<Trainer>* checkpoints) {
  using namespace convoy;
  std::string of = o.weights;
  if (checkpoints != nullptr) {
    const std::filesystem::path newest = checkpoints->newest();
    if (newest.empty()) fail<ConfigError>("--evaluate: there is no checkpoint in ", o.checkpoint);
    train::load_weights(trainer, newest / "model.safetensors");
    of = newest.string();
  }
  const std::string_view set = task.test ? "test" : "training";
  const train::Evaluation all = trainer.evaluate(task.test ? task.test : task.train);
  if (trainer.rank() != 0) return;
  std::cout << set << " loss:" << all.loss;
  if (all.accuracy) std::cout << ", " << set << " accuracy:" << *all.accuracy;
  std::cout << " (" << counted(all.rows, "row") << ", " << of << ")\n";
}

/// Says which options are not those of the run that is resumed.
inline void print_changed(const std::vector<convoy::train::ChangedOption>& changed) {
  for (const auto& option : changed)
    std::cout << "resumed with " << option.name << ' ' << option.is << ", the checkpoint's run had "
              << option.was << '\n';
}

/// Trains, and writes each step where the options say.
template <class Trainer, class Exec>
convoy::train::FitReport fit(const Options& o, const Task& task, Trainer& trainer,
                             convoy::train::Checkpoints<Trainer>* checkpoints, Recording<Exec>& recording) {
  using namespace convoy;
  const bool speaks = trainer.rank() == 0 && !o.quiet;
  bool begun = false;
  const ProgressBar bar(speaks);
  StepLog csv(
      trainer.rank() == 0 ? o.csv : "", task.unit, task.per_row,
      data::BatchPlan(task.train.size(), o.batch, {.world = trainer.workers(), .unsharded = o.unsharded}),
      o.accumulate, o.resume, !replays(o));
  return trainer.fit(task.train, {.epochs = o.epochs,
                                  .steps = o.steps,
                                  .validate = task.test,
                                  .on_step =
                                      [&](const train::StepReport& step) {
                                        if (!std::exchange(begun, true) && speaks && checkpoints != nullptr)
                                          print_changed(checkpoints->changed());
                                        bar(step);
                                        csv(step);
                                        if (!o.profile_out.empty()) recording(step);
                                        return told_to_end ? train::Control::stop : train::Control::go_on;
                                      },
                                  .on_epoch =
                                      [&](const train::EpochReport&) {
                                        recording.forget();
                                        return train::Control::go_on;
                                      },
                                  .log = o.quiet ? nullptr : &std::cout,
                                  .log_every = o.log_every,
                                  .per_row = task.per_row,
                                  .unit = task.unit,
                                  .readers = o.readers,
                                  .resident = o.resident,
                                  .keeper = checkpoints});
}

/// The type in which an Exec multiplies, if that depends on the machine; otherwise its precision.
template <class Exec>
std::string products_of(const Exec& exec, const std::string& precision) {
  if constexpr (requires { exec.products(); })
    return std::string(convoy::name_of(exec.products()));
  else
    return precision;
}

/// `sent`: bytes, by this rank. `exchange`: seconds of a step's exchange alone.
template <class Trainer>
Summary summary_of(const Options& o, const Task& task, Trainer& trainer, const std::string& transport,
                   int threads, std::int64_t sent, double exchange, const convoy::train::FitReport& report) {
  std::vector<std::pair<std::string, std::string>> options;
  trainer.visit_options(
      [&](std::string_view name, const std::string& text) { options.emplace_back(name, text); });
  return {.model = o.model,
          .comm = o.comm,
          .codec = o.codec,
          .transport = transport,
          .device = o.device,
          .precision = o.precision,
          .products = products_of(trainer.exec(), o.precision),
          .data = task.data,
          .arenas = std::string(convoy::comm::name_of(trainer.comm().traffic().arenas)),
          .unit = task.unit,
          .per_row = task.per_row,
          .world = trainer.workers(),
          .batch_per_rank = o.batch,
          .threads = threads,
          .shares = {trainer.shares().begin(), trainer.shares().end()},
          .parameters = task.plan.parameters(),
          .sent_bytes = counts_traffic(o.comm) ? std::optional(sent) : std::nullopt,
          .exchange_ms = exchange * 1e3,
          .options = std::move(options),
          .fit = report};
}

/// The last argument constructs the Comm of `workers` ranks.
template <class Exec, class Comm, class CommArgument>
void train_task(const Options& o, const Task& task, const std::string& transport, int workers,
                const typename Exec::Options& exec, CommArgument&& comm) {
  using namespace convoy;
  // Throws for a batch that the set cannot fill, before an Exec is made for it.
  if (!o.evaluate)
    static_cast<void>(
        data::BatchPlan(task.train.size(), o.batch, {.world = workers, .unsharded = o.unsharded}));
  if (!o.onnx.empty()) io::onnx::Model{task.plan};  // throws for a model that ONNX has no form for
  train::Timeline timeline(o.timeline.empty() ? 0 : 1 << 18);
  train::PlanTrainer<optim::Any, Comm, Exec> trainer{
      task.plan,
      {.batch = o.batch,
       .accumulate = o.accumulate,
       .optimizer = optimizer_of(o),
       .schedule = schedule_of(o, total_steps(o, task.train.size(), workers)),
       .guard = {.max_norm = o.clip, .measure = o.grad_norm},
       .buckets = buckets_of(o),
       .unsharded = o.unsharded,
       .overlap = !o.no_overlap,
       .sync_batch_norm = o.sync_batch_norm,
       .exec = exec,
       .seed = o.seed,
       .timeline = o.timeline.empty() ? nullptr : &timeline},
      std::forward<CommArgument>(comm)};
  if (!o.weights.empty()) load_weights_of(o, task, trainer);
  std::optional<train::Checkpoints<decltype(trainer)>> checkpoints;
  if (!o.checkpoint.empty()) {
    checkpoints.emplace(trainer, train::CheckpointOptions{.directory = o.checkpoint,
                                                          .every = o.checkpoint_every,
                                                          .resume = o.resume || o.evaluate});
    end_when_told();
  }
  auto* const kept = checkpoints ? &*checkpoints : nullptr;
  if (o.evaluate) return evaluate_only(o, task, trainer, kept);

  if (trainer.rank() == 0)
    for (const std::string& path : {o.json, o.timeline, o.onnx, o.profile_out})
      if (!path.empty()) expect_writable(path);
  if (!o.batches.empty() && trainer.rank() == 0)
    write_batches(o, task.train, workers, total_steps(o, task.train.size(), workers));
  Recording<Exec> recording(trainer.exec(), task.plan, trainer.most_rows(),
                            std::int64_t{o.batch} * workers * o.accumulate);
  const std::int64_t sent_before = trainer.comm().traffic().bytes;  // the initial parameters, to all ranks
  const train::FitReport report = fit(o, task, trainer, kept, recording);
  const std::int64_t sent = trainer.comm().traffic().bytes - sent_before;
  const double exchange = o.overlap ? trainer.exchange_seconds() : 0;
  std::optional<io::onnx::Model> model;
  if (!o.onnx.empty()) model.emplace(train::onnx_of(trainer));
  std::vector<std::vector<train::TimelineEvent>> events;
  if (!o.timeline.empty()) events = trainer.gather_timeline();
  if (trainer.rank() != 0) return;
  const Summary summary = summary_of(o, task, trainer, transport, exec.threads, sent, exchange, report);
  if (!o.quiet && report.steps == 0)
    std::cout << concat("the run ends at step ", total_steps(o, task.train.size(), workers),
                        ", which the checkpoint has reached: no step is left\n");
  else if (!o.quiet)
    print_table(summary);
  if (model) model->write(o.onnx);
  if (!o.json.empty()) write_json(summary, o.json);
  // After the result, which is worth more: a timeline is large, and the disk may be full.
  if (!o.timeline.empty()) train::write_timeline(o.timeline, events);
  if (!o.profile_out.empty()) recording.write(o.profile_out, o.model);  // last, because it may be refused
}

/// One rank's run in which operations take the time that the options say of its machine, and compute nothing.
void train_replay(const Options& o, const Task& task, convoy::comm::Any comm, const std::string& transport,
                  int threads);

#ifdef CONVOY_EXAMPLES_CUDA
/// Policies that GPUs execute without their hosts, each over the transport that its entry names.
std::span<const convoy::comm::Entry> gpu_policies();
std::span<const convoy::comm::Entry> gpu_transports();

/// Must be called before any other use of GPUs if ranks are threads, because their kernels wait for one
/// another.
void let_ranks_share_gpus();

/// One rank's run on a GPU in the chosen precision. The GPU is chosen by the rank's number on its host.
/// `comm` works in host memory.
void train_on_gpu(const Options& o, const Task& task, convoy::comm::Any comm, const std::string& transport,
                  int local_rank);
/// The same, but GPUs exchange without their hosts, over one of `gpu_transports`.
void train_between_gpus(const Options& o, const Task& task, const convoy::comm::AnyBootstrap& bootstrap,
                        const std::string& transport, int local_rank);
#endif

}  // namespace examples
