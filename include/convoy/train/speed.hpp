// Speed: how many rows per second this worker computes while all workers compute, and how long an exchange
// takes while none does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/core/range.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/initialize.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/train/report.hpp>

namespace convoy::train {

/// A batch of random inputs with label 0, for timing a model. Inputs used as indices have the largest valid
/// value, so that sequences have their full length.
class RandomBatch {
 public:
  RandomBatch(const Plan& plan, int rows) : rows_(rows) {
    Philox random(0x73706565645f3031ull, 0);
    for (int n = 0; n < plan.graph.count.nodes; ++n) {
      const graph::Node& node = plan.node(n);
      if (!node.given) continue;
      const auto size = static_cast<std::size_t>(node.shape.size()) * static_cast<std::size_t>(rows);
      auto& values = fields_.emplace_back(size * size_of(node.dtype));
      pointers_.push_back(values.data());
      const auto indices = plan.indices(n);
      if (node.dtype == DType::i32)
        std::fill_n(reinterpret_cast<i32*>(values.data()), size,
                    indices ? static_cast<i32>(indices->end - 1) : 0);
      if (node.dtype != DType::f32) continue;
      for (std::size_t i = 0; i < size; ++i) reinterpret_cast<float*>(values.data())[i] = random.normal();
    }
  }
  exec::BatchView view() const { return {pointers_, rows_}; }

 private:
  std::vector<Buffer<std::byte>> fields_;
  std::vector<const void*> pointers_;
  int rows_;
};

/// Rows per second of this worker, forward and backward, in batches of `rows`. All workers must call it, each
/// with its own `rows`. Each computes for as long as the slowest needs for a few passes, so that workers on
/// one machine slow each other as in training.
template <exec::Exec E, comm::Comm C>
double measured_speed(const Plan& plan, const exec::Kernels<E>& kernels, int rows,
                      const typename E::Options& options, C& comm) {
  // Long enough that brief load from other processes averages out.
  constexpr double least_seconds = 1;
  constexpr int least_passes = 4;
  typename E::Space space;
  E exec(plan, rows, options, space, kernels);
  exec::initialize(exec, plan, 0);
  const RandomBatch batch(plan, rows);
  const std::vector<float> scales(plan.losses.size(), 1.0f / static_cast<float>(rows));
  const auto pass = [&] {
    exec.forward(batch.view(), {});
    exec.backward(scales, exec::InOnePiece{});
    exec.result();
  };
  pass();  // touches all memory and chooses kernels
  comm.barrier();
  Stopwatch watch;
  pass();
  double slowest = watch.seconds();
  comm.all_reduce(std::span<double>(&slowest, 1), comm::max);
  const double enough = std::max(least_seconds, least_passes * slowest);
  watch.restart();
  std::int64_t passes = 0;
  double seconds = 0;
  do {
    pass();
    ++passes;
    seconds = watch.seconds();
  } while (seconds < enough);
  return static_cast<double>(passes) * rows / seconds;
}

/// Seconds that the exchange of one step takes without computation: the median of `repetitions` on the
/// slowest rank. Every worker must call it; with a codec that has state (error feedback, a count of first
/// steps), only after training. Throws ConfigError in the middle of a step and if servers make the updates.
template <class Replica>
[[gnu::cold]] double exchange_seconds(Replica& replica, int repetitions) {
  auto& comm = replica.comm();
  if (comm.has_servers())
    fail<ConfigError>(
        "trainer: the servers of the exchange ", comm.policy(),
        " update as they receive gradients, so an exchange without an update cannot be measured");
  if (replica.awaits_backward() || replica.has_gradients())
    fail<ConfigError>(
        "trainer: exchange_seconds must not come between a forward and the step that it belongs to, because "
        "it overwrites gradients");
  auto& space = replica.space();
  const std::span<float> gradients = replica.exec().gradients();
  space.fill(gradients.data(), static_cast<std::int64_t>(gradients.size()), 0.0f);
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    comm.barrier();
    const Stopwatch watch;
    for (std::size_t b = 0; b < replica.buckets().size(); ++b) comm.begin(static_cast<int>(b), space.mark());
    comm.finish([](Range, float) {});
    space.synchronize();
    seconds.push_back(watch.seconds());
  }
  double slowest[] = {median(seconds)};
  comm.all_reduce(std::span<double>(slowest), comm::max);
  return slowest[0];
}

}  // namespace convoy::train
