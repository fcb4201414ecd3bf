// Tasks on GPUs.
#include "train_task.hpp"

using namespace convoy;

namespace examples {

namespace {

/// Calls `run(std::type_identity<P>{})` for the chosen precision.
template <class Run>
void in_precision(const std::string& name, Run&& run) {
  if (name == "tf32") return run(std::type_identity<tf32>{});
  if (name == "bf16") return run(std::type_identity<bf16>{});
  if (name == "f16") return run(std::type_identity<f16>{});
  run(std::type_identity<f32>{});
}

using Comm = comm::AnyIn<memory::Device>;

/// Selects this thread's GPU; ranks share GPUs if there are fewer GPUs than ranks.
void take_gpu(int local_rank) { device::use(local_rank % std::max(1, device::count())); }

void train(const Options& o, const Task& task, const std::string& transport, int workers, Comm comm) {
  in_precision(o.precision, [&]<class P>(std::type_identity<P>) {
    train_task<exec::Cuda<P>, Comm>(o, task, transport, workers, {}, std::move(comm));
  });
}

}  // namespace

std::span<const comm::Entry> gpu_policies() { return comm::gpu_policies<memory::Device>; }
std::span<const comm::Entry> gpu_transports() { return comm::gpu_transports; }

void let_ranks_share_gpus() { device::let_ranks_share_gpus(); }

void train_on_gpu(const Options& o, const Task& task, comm::Any comm, const std::string& transport,
                  int local_rank) {
  take_gpu(local_rank);
  const int workers = comm.workers();
  train(o, task, transport, workers,
        Comm(std::in_place_type<comm::Staged<comm::Any, memory::Device>>, std::move(comm)));
}

void train_between_gpus(const Options& o, const Task& task, const comm::AnyBootstrap& bootstrap,
                        const std::string& transport, int local_rank) {
  take_gpu(local_rank);
  train(o, task, transport, bootstrap.size(),
        comm::make<memory::Device>(o.comm, transport, bootstrap, {.deadline = Seconds(o.deadline)},
                                   choice_of(o)));
}

}  // namespace examples
