// Replays: tasks at the pace of other machines.
#include <algorithm>

#include "train_task.hpp"
#include <convoy/exec/replay.hpp>
#include <convoy/io/profile.hpp>

using namespace convoy;

namespace examples {

namespace {

/// The entry of a list for a worker: its own, or the only one.
template <class T>
const T& own(const std::vector<T>& list, std::string_view option, int worker, int workers) {
  if (list.size() == 1) return list.front();
  if (static_cast<int>(list.size()) != workers)
    fail<ConfigError>(option, " names ", list.size(), " machines for ", counted(workers, "worker"),
                      ": name one for all, or one for each");
  return list[static_cast<std::size_t>(worker)];
}

/// The profile of the machine that worker `worker` simulates.
graph::Profile profile_of(const Options& o, const Plan& plan, int worker, int workers) {
  if (!o.replay.empty()) return io::read_profile(own(o.replay, "--replay", worker, workers), plan);
  if (!o.replay_rates.empty())
    return graph::spread(plan, o.batch, own(o.replay_rates, "--replay-rate", worker, workers));
  return graph::roofline(plan, o.batch, o.replay_roofline[0] * 1e12, o.replay_roofline[1] * 1e9);
}

}  // namespace

void train_replay(const Options& o, const Task& task, comm::Any comm, const std::string& transport,
                  int threads) {
  const int workers = comm.workers(), worker = std::min(comm.rank(), workers - 1);  // servers compute nothing
  const exec::ReplayOptions replay{.profile = profile_of(o, task.plan, worker, workers), .threads = threads};
  Options options = o;
  options.device = "replay";
  // A replay learns nothing, so that there is nothing to evaluate.
  const Task untested{.plan = task.plan,
                      .data = task.data,
                      .owner = task.owner,
                      .train = task.train,
                      .unit = task.unit,
                      .per_row = task.per_row};
  train_task<exec::Replay, comm::Any>(options, untested, transport, workers, replay, std::move(comm));
}

}  // namespace examples
