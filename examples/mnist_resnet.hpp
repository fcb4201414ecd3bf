// mnist_resnet: what its training on processors and on GPUs have in common.
#pragma once

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/options.hpp"
#include "common/progress.hpp"
#include "common/summary.hpp"
#include "common/terminate.hpp"
#include "common/update.hpp"
#include <convoy/convoy.hpp>

namespace examples {

using namespace convoy;

inline constexpr int classes = 10;

/// The data sets of a run; the test set is empty when there is nothing to test on.
struct Data {
  std::string description;
  std::shared_ptr<const void> owner;
  data::DatasetRef train, test;
};

inline Data load(const Options& options) {
  Data sets;
  const Image image{1, options.image_size, options.image_size};
  if (options.data == "synthetic") {
    const std::size_t size = options.samples > 0 ? static_cast<std::size_t>(options.samples) : 60'000;
    auto set = std::make_shared<data::Synthetic>(
        size,
        std::vector<data::RandomField>{{{"image", DType::f32, image}}, {{"label", DType::i32, {}}, classes}});
    sets.train = data::DatasetRef(set.get());
    if (options.evaluate) sets.test = sets.train;
    sets.owner = std::move(set);
    sets.description = concat("synthetic, ", size, " random images");
    return sets;
  }
  const bool generated = options.data == "digits";
  data::DigitsOptions digits;
  if (options.samples > 0) digits.train = static_cast<std::size_t>(options.samples);
  auto split =
      std::make_shared<data::ImageSplit>(generated ? data::digits(digits) : data::mnist(options.data));
  if (split->train.image() == image) {
    sets.train = data::DatasetRef(&split->train);
    sets.test = data::DatasetRef(&split->test);
    sets.owner = std::move(split);
  } else {
    using Larger = data::Resized<data::ImageSet>;
    auto resized =
        std::make_shared<std::pair<Larger, Larger>>(Larger(split->train, "image", image.height, image.width),
                                                    Larger(split->test, "image", image.height, image.width));
    sets.train = data::DatasetRef(&resized->first);
    sets.test = data::DatasetRef(&resized->second);
    sets.owner = std::move(resized);
  }
  sets.description =
      concat(generated ? "generated digits" : "MNIST", ", ", sets.train.size(), " + ", sets.test.size());
  return sets;
}

inline std::int64_t total_steps(const Options& o, std::size_t samples, int world) {
  const std::int64_t global = std::int64_t{o.batch} * world * o.accumulate;
  const std::int64_t by_epochs = (static_cast<std::int64_t>(samples) + global - 1) / global * o.epochs;
  return o.steps > 0 ? std::min(o.steps, by_epochs) : by_epochs;
}

/// A model is a type, traced while compiling, so each size of image is a model of its own.
template <int size>
const Plan& plan_sized(const Options& o) {
  constexpr Image image{1, size, size};
  if (o.model == "resnet18") return plan_of<models::ResNet18<image, classes>>;
  if (o.model == "resnet50") return plan_of<models::ResNet50<image, classes>>;
  return plan_of<models::ResNet101<image, classes>>;
}

/// The operations of all these models: the program contains the kernels of no others.
inline constexpr std::uint64_t used = plan_of<models::ResNet18<Image{1, 28, 28}, classes>>.used |
                                      plan_of<models::ResNet50<Image{1, 28, 28}, classes>>.used;

/// One rank's whole run: everything but where it computes is chosen at run time, the model's plan, too. The
/// last argument constructs the Comm of `workers` ranks.
template <class Exec, class Comm, class CommArgument>
void train(const Options& o, const Data& sets, const std::string& transport, int workers,
           const typename Exec::Options& exec, CommArgument&& comm) {
  const Plan& plan = o.image_size == 224 ? plan_sized<224>(o) : plan_sized<28>(o);
  train::Timeline timeline(o.timeline.empty() ? 0 : 1 << 18);
  train::PlanTrainer<optim::Any, Comm, Exec> trainer{
      plan,
      exec::kernels<Exec, used>,
      {.batch = o.batch,
       .accumulate = o.accumulate,
       .optimizer = optimizer_of(o),
       .schedule = schedule_of(o, total_steps(o, sets.train.size(), workers)),
       .guard = {.max_norm = o.clip},
       .buckets = buckets_of(o),
       .overlap = !o.no_overlap,
       .exec = exec,
       .seed = o.seed,
       .timeline = o.timeline.empty() ? nullptr : &timeline},
      std::forward<CommArgument>(comm)};
  using Checkpoints = train::Checkpoints<decltype(trainer)>;
  std::optional<Checkpoints> checkpoints;
  if (!o.checkpoint.empty()) {
    checkpoints.emplace(
        trainer,
        train::CheckpointOptions{.directory = o.checkpoint, .every = o.checkpoint_every, .resume = o.resume});
    end_when_told();
  }
  const ProgressBar bar(trainer.rank() == 0 && !o.quiet);
  const auto report =
      trainer.fit(sets.train, {.epochs = o.epochs,
                               .steps = o.steps,
                               .validate = sets.test,
                               .on_step =
                                   [&](const train::StepReport& step) {
                                     bar(step);
                                     return told_to_end ? train::Control::stop : train::Control::go_on;
                                   },
                               .log = o.quiet ? nullptr : &std::cout,
                               .log_every = o.log_every,
                               .keeper = checkpoints ? &*checkpoints : nullptr});
  const std::int64_t sent = trainer.comm().traffic().bytes;
  const double exchange = o.overlap ? trainer.exchange_seconds() : 0;
  if (!o.timeline.empty()) {
    const auto events = trainer.gather_timeline();
    if (trainer.rank() == 0) train::write_timeline(o.timeline, events);
  }
  if (trainer.rank() != 0) return;
  const Summary summary{.model = o.model,
                        .comm = o.comm,
                        .codec = o.codec,
                        .transport = transport,
                        .device = o.device,
                        .precision = o.precision,
                        .data = sets.description,
                        .image_size = o.image_size,
                        .world = workers,
                        .batch_per_rank = o.batch,
                        .threads = exec.threads,
                        .shares = {trainer.shares().begin(), trainer.shares().end()},
                        .parameters = plan.parameters(),
                        .sent_bytes = sent,
                        .exchange_ms = exchange * 1e3,
                        .fit = report};
  if (!o.quiet) print_table(summary);
  if (!o.json.empty()) write_json(summary, o.json);
}

#ifdef CONVOY_EXAMPLES_CUDA
/// One rank's run on a GPU in the precision that was chosen: each of the ranks of a host has one of its GPUs.
/// `comm` works in host memory.
void train_on_gpu(const Options& o, const Data& sets, comm::Any comm, const std::string& transport,
                  int local_rank);
#ifdef CONVOY_HAS_NCCL
/// The same over NCCL.
void train_over_nccl(const Options& o, const Data& sets, comm::AnyBootstrap bootstrap, int local_rank);
#endif
#endif

}  // namespace examples
