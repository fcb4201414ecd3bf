// Trains a ResNet on MNIST (or on digits that need no download) with data-parallel ranks.
#include "mnist_resnet.hpp"

#include "common/processors.hpp"

using namespace convoy;
using namespace examples;

namespace {

/// Threads for each of `ranks` ranks on the processors at hand; says so when they do not fit.
int threads_of(const Options& o, int ranks, bool speak) {
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

/// What this build can compute on, and in which precision.
std::vector<std::string> devices() {
#ifdef CONVOY_EXAMPLES_CUDA
  return {"cpu", "cuda"};
#else
  return {"cpu"};
#endif
}
std::vector<std::string> precisions() {
#ifdef CONVOY_EXAMPLES_CUDA
  return {"f32", "tf32", "bf16", "f16"};
#else
  return {"f32"};
#endif
}

/// Policies that need a GPU.
std::vector<std::pair<std::string, std::string>> policies() {
#if defined(CONVOY_EXAMPLES_CUDA) && defined(CONVOY_HAS_NCCL)
  return {{"nccl", "NCCL's all-reduce, in memory of GPUs"}};
#else
  return {};
#endif
}

/// One rank's run where the options say.
void train_one(const Options& o, const Data& sets, comm::Any comm, const std::string& transport, int threads,
               [[maybe_unused]] int local_rank) {
#ifdef CONVOY_EXAMPLES_CUDA
  if (o.device == "cuda") return train_on_gpu(o, sets, std::move(comm), transport, local_rank);
#endif
  const int workers = comm.workers();
  train<exec::Host<f32>, comm::Any>(o, sets, transport, workers, {.threads = threads}, std::move(comm));
}

#if defined(CONVOY_EXAMPLES_CUDA) && defined(CONVOY_HAS_NCCL)
/// Ranks that mpirun started, or torchrun, or one alone.
int run_over_nccl(const Options& o, int argc, char** argv) {
  if (o.device != "cuda") fail<ConfigError>("--comm nccl exchanges memory of GPUs; choose --device cuda");
  const Data sets = load(o);
#ifdef CONVOY_HAS_MPI
  if (mpi::launched()) {
    mpi::Session session{argc, argv, Seconds(o.deadline)};
    const transport::Mpi world(session.world(), Seconds(o.deadline));
    train_over_nccl(o, sets, comm::AnyBootstrap(comm::MpiBootstrap(world)), session.local_rank());
    return 0;
  }
#endif
  const comm::World world = comm::environment_has_world() ? comm::world_of_environment() : comm::World{};
  train_over_nccl(o, sets, comm::AnyBootstrap(comm::TcpBootstrap(world, Seconds(o.deadline))),
                  world.local_rank);
  return 0;
}
#endif

int run(int argc, char** argv) {
  Options o;
  int code = 0;
  if (!parse(argc, argv, "Trains a ResNet on MNIST with data-parallel ranks",
             {.models = {"resnet18", "resnet50", "resnet101"},
              .optimizers = optimizers(),
              .devices = devices(),
              .precisions = precisions(),
              .image_sizes = {28, 224},
              .policies = policies()},
             o, code))
    return code;
  if (o.overlap && o.comm.starts_with("ps"))
    fail<ConfigError>("--overlap needs an exchange that can be measured alone, and the servers of ", o.comm,
                      " update whatever they get");
  if (o.device == "cpu" && o.precision != "f32")
    fail<ConfigError>("processors compute in f32 here, not in ", o.precision, "; choose --device cuda");
#if defined(CONVOY_EXAMPLES_CUDA) && defined(CONVOY_HAS_NCCL)
  if (o.comm == "nccl") return run_over_nccl(o, argc, argv);
#endif
  const comm::Options comm_options{.deadline = Seconds(o.deadline)};
  const comm::Choice choice = choice_of(o);
#ifdef CONVOY_HAS_MPI
  if (o.transport == "mpi" || o.transport == "shm" || (o.transport.empty() && mpi::launched())) {
    mpi::Session session{argc, argv, Seconds(o.deadline)};
    const bool shared = o.transport == "shm" || (o.transport.empty() && o.comm == "direct");
    const Data sets = load(o);
    const int threads = threads_of(o, session.local_size(), session.rank() == 0 && !o.quiet);
    const Seconds limit(o.deadline);
    train_one(o, sets,
              shared ? comm::make(o.comm, transport::Shm(session.world(), limit), comm_options, choice)
                     : comm::make(o.comm, transport::Mpi(session.world(), limit), comm_options, choice),
              shared ? "shm" : "mpi", threads, session.local_rank());
    return 0;
  }
#else
  if (o.transport == "mpi" || o.transport == "shm")
    fail<ConfigError>("this program was built without MPI; choose --transport threads");
#endif
  const Data sets = load(o);
  const int threads = threads_of(o, o.ranks, !o.quiet);
  transport::Threads::World(o.ranks).run([&](const transport::Threads& endpoint) {
    train_one(o, sets, comm::make(o.comm, endpoint, comm_options, choice), "threads", threads,
              endpoint.rank());
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
