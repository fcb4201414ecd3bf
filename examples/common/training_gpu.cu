// Tasks on GPUs.
#include "train_task.hpp"

using namespace convoy;

namespace examples {

namespace {

/// Calls `run(std::type_identity<P>{})` for the precision that was chosen.
template <class Run>
void in_precision(const std::string& name, Run&& run) {
  if (name == "tf32") return run(std::type_identity<tf32>{});
  if (name == "bf16") return run(std::type_identity<bf16>{});
  if (name == "f16") return run(std::type_identity<f16>{});
  run(std::type_identity<f32>{});
}

/// This thread's GPU: where ranks are more than GPUs, they share them.
void take_gpu(int local_rank) { device::use(local_rank % std::max(1, device::count())); }

}  // namespace

void train_on_gpu(const Options& o, const Task& task, comm::Any comm, const std::string& transport,
                  int local_rank) {
  take_gpu(local_rank);
  in_precision(o.precision, [&]<class P>(std::type_identity<P>) {
    const int workers = comm.workers();
    train_task<exec::Cuda<P>, comm::Staged<comm::Any, memory::Device>>(o, task, transport, workers, {},
                                                                       std::move(comm));
  });
}

#ifdef CONVOY_HAS_NCCL
void train_over_nccl(const Options& o, const Task& task, comm::AnyBootstrap bootstrap, int local_rank) {
  take_gpu(local_rank);
  comm::NcclOptions options;
  options.deadline = Seconds(o.deadline);
  in_precision(o.precision, [&]<class P>(std::type_identity<P>) {
    train_task<exec::Cuda<P>, comm::Nccl<memory::Device>>(o, task, "nccl", bootstrap.size(), {},
                                                          comm::Nccl<memory::Device>(bootstrap, options));
  });
}
#endif

}  // namespace examples
