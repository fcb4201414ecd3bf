// Trains a ResNet on MNIST (or on digits that need no download) with data-parallel ranks.
#include <filesystem>
#include <iostream>
#include <memory>
#include <type_traits>

#include "common/options.hpp"
#include "common/processors.hpp"
#include "common/progress.hpp"
#include "common/summary.hpp"
#include <convoy/convoy.hpp>

using namespace convoy;

namespace {

constexpr int classes = 10;

/// The data sets of a run; the test set is empty when there is nothing to test on.
struct Data {
  std::string description;
  std::shared_ptr<const void> owner;
  data::DatasetRef train, test;
};

Data load(const examples::Options& options) {
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

optim::Any::Options optimizer(const examples::Options& o) {
  std::vector<optim::Setting> settings = {{"lr", o.lr}, {"weight_decay", o.weight_decay}};
  if (o.optimizer == "sgd") settings.push_back({"momentum", o.momentum});
  return optim::make(o.optimizer, settings);
}

std::int64_t total_steps(const examples::Options& o, std::size_t samples, int world) {
  const std::int64_t global = std::int64_t{o.batch} * world * o.accumulate;
  const std::int64_t by_epochs = (static_cast<std::int64_t>(samples) + global - 1) / global * o.epochs;
  return o.steps > 0 ? std::min(o.steps, by_epochs) : by_epochs;
}

/// A model is a type, traced while compiling, so each size of image is a model of its own.
template <int size>
const Plan& plan_sized(const examples::Options& o) {
  constexpr Image image{1, size, size};
  if (o.model == "resnet18") return plan_of<models::ResNet18<image, classes>>;
  if (o.model == "resnet50") return plan_of<models::ResNet50<image, classes>>;
  return plan_of<models::ResNet101<image, classes>>;
}

/// The operations of all these models: the program contains the kernels of no others.
constexpr std::uint64_t used = plan_of<models::ResNet18<Image{1, 28, 28}, classes>>.used |
                               plan_of<models::ResNet50<Image{1, 28, 28}, classes>>.used;

/// One rank's whole run: everything is chosen at run time, the model's plan, too.
void train(const examples::Options& o, const Data& sets, comm::Any comm, const std::string& transport,
           int threads) {
  const Plan& plan = o.image_size == 224 ? plan_sized<224>(o) : plan_sized<28>(o);
  const int world = comm.workers();
  train::Timeline timeline(o.timeline.empty() ? 0 : 1 << 18);
  optim::Schedule schedule{.warmup = o.warmup, .scale_with_world = o.scale_lr};
  if (o.decay != "none") {
    schedule.decay = o.decay == "linear" ? optim::Decay::linear : optim::Decay::cosine;
    schedule.total = total_steps(o, sets.train.size(), world);
  }
  train::PlanTrainer<optim::Any, comm::Any, exec::Host<f32>> trainer{
      plan,
      exec::kernels<exec::Host<f32>, used>,
      {.batch = o.batch,
       .accumulate = o.accumulate,
       .optimizer = optimizer(o),
       .schedule = schedule,
       .guard = {.max_norm = o.clip},
       .buckets = examples::buckets_of(o),
       .overlap = !o.no_overlap,
       .exec = {.threads = threads},
       .seed = o.seed,
       .timeline = o.timeline.empty() ? nullptr : &timeline},
      std::move(comm)};
  const examples::ProgressBar bar(trainer.rank() == 0 && !o.quiet);
  const auto report = trainer.fit(sets.train, {.epochs = o.epochs,
                                               .steps = o.steps,
                                               .validate = sets.test,
                                               .on_step =
                                                   [&](const train::StepReport& step) {
                                                     bar(step);
                                                     return train::Control::go_on;
                                                   },
                                               .log = o.quiet ? nullptr : &std::cout,
                                               .log_every = o.log_every});
  const std::int64_t sent = trainer.comm().traffic().bytes;
  const double exchange = o.overlap ? trainer.exchange_seconds() : 0;
  if (!o.timeline.empty()) {
    const auto events = trainer.gather_timeline();
    if (trainer.rank() == 0) train::write_timeline(o.timeline, events);
  }
  if (trainer.rank() != 0) return;
  const examples::Summary summary{.model = o.model,
                                  .comm = o.comm,
                                  .codec = o.codec,
                                  .transport = transport,
                                  .device = o.device,
                                  .precision = o.precision,
                                  .data = sets.description,
                                  .image_size = o.image_size,
                                  .world = world,
                                  .batch_per_rank = o.batch,
                                  .threads = threads,
                                  .shares = {trainer.shares().begin(), trainer.shares().end()},
                                  .parameters = plan.parameters(),
                                  .sent_bytes = sent,
                                  .exchange_ms = exchange * 1e3,
                                  .fit = report};
  if (!o.quiet) examples::print_table(summary);
  if (!o.json.empty()) examples::write_json(summary, o.json);
}

/// Threads for each of `ranks` ranks on the processors at hand; says so when they do not fit.
int threads_of(const examples::Options& o, int ranks, bool speak) {
  const int processors = examples::processors();
  const int threads = o.threads > 0 ? o.threads : std::max(1, processors / ranks);
  if (speak && threads * ranks > processors)
    std::cerr << "mnist_resnet: " << ranks << " ranks of " << threads << " threads share " << processors
              << " processors here (under mpirun, --bind-to none frees them)\n";
  return threads;
}

std::vector<std::string> optimizers() {
  std::vector<std::string> names;
  for (const auto& rule : optim::rules()) names.emplace_back(rule.name);
  return names;
}

int run(int argc, char** argv) {
  examples::Options o;
  int code = 0;
  if (!examples::parse(argc, argv, "Trains a ResNet on MNIST with data-parallel ranks",
                       {.models = {"resnet18", "resnet50", "resnet101"},
                        .optimizers = optimizers(),
                        .image_sizes = {28, 224}},
                       o, code))
    return code;
  if (o.overlap && o.comm.starts_with("ps"))
    fail<ConfigError>("--overlap needs an exchange that can be measured alone, and the servers of ", o.comm,
                      " update whatever they get");
  const comm::Options comm_options{.deadline = Seconds(o.deadline)};
  const comm::Choice choice = examples::choice_of(o);
#ifdef CONVOY_HAS_MPI
  if (o.transport == "mpi" || o.transport == "shm" || (o.transport.empty() && mpi::launched())) {
    mpi::Session session{argc, argv, Seconds(o.deadline)};
    const bool shared = o.transport == "shm" || (o.transport.empty() && o.comm == "direct");
    const Data sets = load(o);
    const int threads = threads_of(o, session.local_size(), session.rank() == 0 && !o.quiet);
    const Seconds limit(o.deadline);
    train(o, sets,
          shared ? comm::make(o.comm, transport::Shm(session.world(), limit), comm_options, choice)
                 : comm::make(o.comm, transport::Mpi(session.world(), limit), comm_options, choice),
          shared ? "shm" : "mpi", threads);
    return 0;
  }
#else
  if (o.transport == "mpi" || o.transport == "shm")
    fail<ConfigError>("this program was built without MPI; choose --transport threads");
#endif
  const Data sets = load(o);
  const int threads = threads_of(o, o.ranks, !o.quiet);
  transport::Threads::World(o.ranks).run([&](const transport::Threads& endpoint) {
    train(o, sets, comm::make(o.comm, endpoint, comm_options, choice), "threads", threads);
  });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "mnist_resnet: " << error.what() << std::endl;
    return 1;
  }
}
