#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "printed.hpp"
#include "train_task.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/parallel/processors.hpp>

using namespace convoy;

namespace examples {

namespace {

/// Threads for each of `ranks` ranks on the available processors; prints a warning if they do not fit. A rank
/// that replays only sleeps and exchanges, for which one thread suffices.
int threads_of(const Options& o, const Program& program, int ranks, bool speak) {
  const int there = processors();
  const int threads = o.threads > 0 ? o.threads : replays(o) ? 1 : std::max(1, there / ranks);
  if (speak && !replays(o) && threads * ranks > there)
    std::cerr << concat(program.name, ": ", counted(ranks, "rank"), " of ", counted(threads, "thread"),
                        " on only ", counted(there, "processor"),
                        " here (under mpirun, --bind-to none frees them)\n");
  return threads;
}

/// The devices, precisions and exchanges of this build.
Choices choices_of(const Program& program) {
  Choices choices{.models = program.models, .optimizers = {}, .devices = {"cpu"}, .precisions = {"f32"}};
#ifdef CONVOY_HAS_HOST
  choices.precisions = {"f32", "bf16"};
#endif
  for (const auto& rule : optim::rules()) choices.optimizers.emplace_back(rule.name);
#ifdef CONVOY_EXAMPLES_CUDA
  choices.devices.push_back("cuda");
  choices.precisions = {"f32", "tf32", "bf16", "f16"};
  choices.gpu_policies = gpu_policies();
  choices.gpu_transports = gpu_transports();
#endif
  return choices;
}

template <class Operation>
bool has(const Plan& plan) {
  return (plan.used >> graph::index_of<Operation> & 1u) != 0;
}

/// The program's task for the options, including the dead taps of its filters if the options ask for them.
Task task_of(const Options& o, const Program& program) {
  const Task task = program.make(o);
  if (o.sync_batch_norm && !has<graph::BatchNorm>(task.plan))
    fail<ConfigError>("--sync-batch-norm is for models with batch norms, and ", o.model, " has none");
  if (o.keep_dead_taps && !has<graph::Conv2d>(task.plan))
    fail<ConfigError>("--keep-dead-taps is for models with convolutions, and ", o.model, " has none");
  if (!o.keep_dead_taps) return task;
  struct Kept {
    std::shared_ptr<const void> data;
    DynamicPlan plan;
  };
  const std::shared_ptr<const Kept> kept(
      new Kept{task.owner, {task.plan, PlanOptions{.keep_dead_taps = true}}});
  return {.plan = kept->plan,
          .data = task.data,
          .owner = kept,
          .train = task.train,
          .test = task.test,
          .unit = task.unit,
          .per_row = task.per_row,
          .weights = task.weights};
}

/// One rank's run on the device that the options choose.
void train_one(const Options& o, const Task& task, comm::Any comm, const std::string& transport, int threads,
               [[maybe_unused]] int local_rank) {
#ifdef CONVOY_EXAMPLES_CUDA
  if (o.device == "cuda") return train_on_gpu(o, task, std::move(comm), transport, local_rank);
#endif
  if (replays(o)) return train_replay(o, task, std::move(comm), transport, threads);
#ifdef CONVOY_HAS_HOST
  const int workers = comm.workers();
  const exec::HostOptions host{.threads = threads, .profile = !o.profile_out.empty()};
  if (o.precision == "bf16")
    train_task<exec::Host<bf16>, comm::Any>(o, task, transport, workers, host, std::move(comm));
  else
    train_task<exec::Host<f32>, comm::Any>(o, task, transport, workers, host, std::move(comm));
#else
  fail<ConfigError>(
      "this program was built without oneDNN, so that --device cpu can replay but not train; choose "
      "--device cuda");
#endif
}

#ifdef CONVOY_EXAMPLES_CUDA
/// Ranks that mpirun, srun or torchrun started, or threads of this process.
int run_between_gpus(const Options& o, const Program& program, [[maybe_unused]] int argc,
                     [[maybe_unused]] char** argv) {
  const Seconds limit(o.deadline);
  const Task task = task_of(o, program);
  const auto train = [&](comm::AnyBootstrap bootstrap, int local_rank) {
    train_between_gpus(o, task, bootstrap, o.transport, local_rank);
    return 0;
  };
#ifdef CONVOY_HAS_MPI
  if (mpi::launched()) {
    mpi::Session session{argc, argv, limit};
    return train(comm::MpiBootstrap(transport::Mpi(session.world(), limit)), session.local_rank());
  }
#endif
  if (comm::environment_has_world()) {
    const comm::World world = comm::world_of_environment();
    return train(comm::TcpBootstrap(world, limit), world.local_rank);
  }
  if (o.transport == "cuda-peer") let_ranks_share_gpus();
  transport::Threads::World(o.ranks).run([&](const transport::Threads& endpoint) {
    using Ring = comm::Ring<transport::Threads>;
    train(comm::CommBootstrap<Ring>(Ring(endpoint, {.deadline = limit})), endpoint.rank());
  });
  return 0;
}
#endif

/// Launched ranks that do not know of each other would each train alone. Throws ConfigError unless the
/// options ask for that and the ranks do not write the same files.
void refuse_strangers(const Options& o) {
  const int ranks = launched_ranks();
  if (ranks < 2) return;
  if (o.transport.empty())
    fail<ConfigError>("a launcher has started ", ranks,
                      " ranks without MPI, over which ranks on processors exchange; start a program that was "
                      "built with MPI by mpirun or srun --mpi=pmix (srun --mpi=list shows what there is), or "
                      "let each rank train alone with --transport threads");
  if (o.evaluate) return;
  auto written = files_of(o);
  written.emplace_back("--checkpoint", o.checkpoint);
  for (const auto& [option, path] : written)
    if (!path.empty())
      fail<ConfigError>("a launcher has started ", ranks,
                        " ranks, and with --transport threads each would train alone and write to the same ",
                        option, ' ', path, "; leave out one of the two options");
}

#ifdef CONVOY_HAS_MPI
/// Throws ConfigError unless all ranks chose the same transport; ranks of different ones would not meet.
void agree_on_transport(const mpi::Session& session, std::string_view transport, Seconds limit) {
  comm::Engine engine(transport::Any(transport::Mpi(session.world(), limit)), {.deadline = limit});
  agree(engine, comm::Fingerprint().add("transport", transport));
}
#endif

/// Throws ConfigError for options that contradict each other.
void expect_consistent(const Options& o) {
  if (o.overlap && o.comm.starts_with("ps"))
    fail<ConfigError>(
        "--overlap needs an exchange that can be measured without an update, but the servers of ", o.comm,
        " update with all gradients that they receive");
  if (o.grad_norm && o.comm.starts_with("ps"))
    fail<ConfigError>(
        "--grad-norm needs ranks that know the norm of the gradient, but only the servers of --comm ", o.comm,
        " know the whole gradient");
  if (o.clip > 0 && (o.comm == "ps-async" || o.comm == "ps-stale"))
    fail<ConfigError>("--comm ", o.comm, " updates before any rank has the whole gradient, so that --clip ",
                      o.clip, " cannot limit its norm; pass --clip 0");
  if (o.placement == "beside" && !o.comm.starts_with("ps"))
    fail<ConfigError>("--placement beside is for parameter servers, and --comm ", o.comm, " has none");
  if (o.codec_warm_up && o.codec != "topk" && o.codec != "powersgd")
    fail<ConfigError>("--codec-warmup is for the codecs topk and powersgd, not for --codec ", o.codec);
  if (replays(o) && o.precision != "f32")
    fail<ConfigError>("--precision ", o.precision, " does not apply to a replay, which computes nothing");
  if (o.device == "cpu" && o.precision != "f32" && o.precision != "bf16")
    fail<ConfigError>("processors compute in f32 or bf16, not in ", o.precision, "; choose --device cuda");
  if (o.device != "cpu" && (replays(o) || !o.profile_out.empty()))
    fail<ConfigError>("profiles are recorded and replayed on processors, not on ", o.device,
                      "; choose --device cpu");
  if (!o.batches.empty() && o.unsharded)
    fail<ConfigError>("--batches writes one order of the rows, but with --unsharded every rank has its own");
  if (!o.batches.empty() && o.resume)
    fail<ConfigError>(
        "--batches writes the rows from the first step on, but --resume continues after that step");
  for (const auto& [option, path] : {std::pair("--checkpoint", o.checkpoint), std::pair("--onnx", o.onnx)})
    if (!path.empty() && replays(o))
      fail<ConfigError>(
          option, ' ', path,
          " keeps what a training has learned, and a replay learns nothing; leave out one of the two");
  if (o.evaluate && replays(o))
    fail<ConfigError>("--evaluate does not apply to a replay, which computes nothing");
  if (o.evaluate && o.weights.empty() && o.checkpoint.empty())
    fail<ConfigError>("--evaluate needs --weights or --checkpoint");
  if (o.evaluate && !o.weights.empty() && !o.checkpoint.empty())
    fail<ConfigError>(
        "--evaluate evaluates either --weights or the newest checkpoint of --checkpoint; leave out one of "
        "the two options");
  if (o.evaluate) refuse_files(o, "--evaluate");
}

#ifdef CONVOY_HAS_MPI
/// Trains on one of the processes that a launcher has started as ranks of MPI.
void run_as_process(const Options& o, const Program& program, const comm::Choice& choice, int argc,
                    char** argv) {
  if (o.ranks > 1)
    fail<ConfigError>(
        "--ranks starts threads of one process as ranks; processes as ranks are started by mpirun -np ",
        o.ranks, ", or choose --transport threads");
  const Seconds limit(o.deadline);
  mpi::Session session{argc, argv, limit};
  const bool shared = o.transport == "shm" || (o.transport.empty() && o.comm == "direct");
  const std::string transport = shared ? "shm" : "mpi";
  const Task task = task_of(o, program);
  const int threads = threads_of(o, program, session.local_size(), session.rank() == 0 && !o.quiet);
  agree_on_transport(session, transport, limit);
  const comm::Options options{.deadline = limit};
  train_one(o, task,
            shared ? comm::make(o.comm, transport::Shm(session.world(), limit), options, choice)
                   : comm::make(o.comm, transport::Mpi(session.world(), limit), options, choice),
            transport, threads, session.local_rank());
}
#endif

/// Trains on threads of this process as ranks.
void run_as_threads(const Options& o, const Program& program, const comm::Choice& choice) {
  refuse_strangers(o);
  const Task task = task_of(o, program);
  const int threads = threads_of(o, program, o.ranks, !o.quiet);
  transport::Threads::World(o.ranks).run([&](const transport::Threads& endpoint) {
    train_one(o, task, comm::make(o.comm, endpoint, {.deadline = Seconds(o.deadline)}, choice), "threads",
              threads, endpoint.rank());
  });
}

int run_parsed(int argc, char** argv, const Program& program) {
  Options o = program.defaults;
  int code = 0;
  const Choices choices = choices_of(program);
  if (!parse(argc, argv, program.about, choices, program.options, o, code)) return code;
  expect_separate_files(files_read(o, program.options), files_of(o));
  expect_consistent(o);
  if (program.instead(o)) return 0;
#ifdef CONVOY_EXAMPLES_CUDA
  if (between_gpus(choices, o)) {
    if (o.device == "cpu")
      fail<ConfigError>("--comm ", o.comm, o.transport.empty() ? "" : " over ", o.transport,
                        " exchanges memory of GPUs; choose --device cuda");
    return run_between_gpus(o, program, argc, argv);
  }
#endif
  const comm::Choice choice = choice_of(o);
#ifdef CONVOY_HAS_MPI
  if (o.transport == "mpi" || o.transport == "shm" || (o.transport.empty() && mpi::launched())) {
    run_as_process(o, program, choice, argc, argv);
    return 0;
  }
#else
  if (o.transport == "mpi" || o.transport == "shm")
    fail<ConfigError>("this program was built without MPI; choose --transport threads");
#endif
  run_as_threads(o, program, choice);
  return 0;
}

}  // namespace

int launched_ranks() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})
    if (const char* size = std::getenv(variable)) return std::atoi(size);
  return comm::environment_has_world() ? comm::world_of_environment().size : 1;
}

int run(int argc, char** argv, const Program& program) {
  try {
    const int code = run_parsed(argc, argv, program);
    expect_printed();
    return code;
  } catch (const std::bad_alloc&) {
    std::cerr << concat(program.name,
                        ": there is not enough memory; a smaller batch, model or data set, or "
                        "fewer ranks and threads, need less\n");
    return 1;
  } catch (const std::exception& error) {
    std::cerr << concat(program.name, ": ", error.what(), '\n');  // as one string: ranks share a terminal
    return 1;
  }
}

}  // namespace examples
