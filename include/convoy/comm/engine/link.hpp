// Measures links between ranks.
#pragma once

#include <convoy/comm/options.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/engine.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/view.hpp>
#include <convoy/core/call.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/buffer.hpp>
#endif

namespace convoy::comm {

class Engine;

/// Measures a transport between rank 0 and rank 1 with messages of 64 bytes and 1 MiB, and the speed of a sum
/// of floats. All ranks call it; rank 0's result counts.
schedule::CostModel measure(Engine& engine);

/// Measures latency and bandwidth between ranks `first` < `second` of `where`, and the speed of a sum on rank
/// `first`. All ranks call it and get the same figures. Throws ConfigError unless there are two such ranks.
schedule::CostModel measure_link(const transport::Any& where, int first, int second,
                                 const Options& options = {});

#if CONVOY_DEFINITIONS
namespace detail {

// A round trip: rank 0's buffer goes to rank 1 and comes back.
struct Echo {
  static constexpr std::string_view name = "echo";
  static constexpr schedule::Goal goal = schedule::Goal::broadcast;
  static constexpr bool proved = true;  // among two ranks only
  int segments = 1;
  friend constexpr bool operator==(const Echo&, const Echo&) = default;

  constexpr int blocks(int) const { return 1; }
  constexpr int owner(int, int) const { return 0; }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    using schedule::Action, schedule::Step;
    if (rank > 1 || size < 2) return;
    emit(Step{rank == 0 ? Action::send : Action::receive, false, 1 - rank, 0});
    emit(Step{rank == 0 ? Action::receive : Action::send, false, 1 - rank, 0});
  }
};

// The shortest of `times` runs: other load on the machine can only make a run longer.
CONVOY_FUNCTION double shortest(int times, Call<void()> f) {
  double least = 0;
  for (int i = 0; i <= times; ++i) {
    const auto begin = Clock::now();
    f();
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (i == 1 || (i > 1 && seconds < least)) least = seconds;  // the first one warms up
  }
  return least;
}

}  // namespace detail

CONVOY_FUNCTION schedule::CostModel measure(Engine& engine) {
  constexpr std::int64_t few = 64, many = 1 << 20;
  // Gradients lie in such memory: messages from other memory may be copied on both sides.
  Buffer<std::byte> here(many, engine.memory()), there(many);
  const auto& echo = engine.program(schedule::View::of<detail::Echo>());
  const auto one_way = [&](int times, std::int64_t bytes) {
    return detail::shortest(times, [&] { engine.run(echo, here.data(), bytes, Reduction{}); }) / 2;
  };
  schedule::CostModel model;
  // Short and long messages alternate, so that other load on the machine affects both. Where that load makes
  // even the short message slow, half of the long message's time counts as bandwidth, so that no figure is
  // ever zero.
  double little = one_way(10, few), much = one_way(2, many);
  for (int round = 1; round < 4; ++round) {
    little = std::min(little, one_way(10, few));
    much = std::min(much, one_way(2, many));
  }
  model.alpha = std::min(little, much / 2);
  model.beta = (much - model.alpha) / static_cast<double>(many);
  const Reduction add = reduction<f32>(sum);
  model.gamma =
      detail::shortest(8, [&] { add.loop(here.data(), there.data(), many / std::int64_t{sizeof(f32)}, 1); }) /
      static_cast<double>(many);
  return model;
}

CONVOY_FUNCTION schedule::CostModel measure_link(const transport::Any& where, int first, int second,
                                                 const Options& options) {
  if (first < 0 || second <= first || second >= where.size())
    fail<ConfigError>("there is no link from rank ", first, " to rank ", second, " in a world of ",
                      where.size());
  const bool at_it = where.rank() == first || where.rank() == second;
  // The other ranks stand by, each in a group of its own.
  const auto members = at_it ? std::vector<int>{first, second} : std::vector<int>{where.rank()};
  Engine all(where, options);
  Engine pair(where.group(members), options);
  pair.belong_to(all, members);
  schedule::CostModel model = measure(pair);
  detail::broadcast_bytes(all, &model, sizeof model, first);
  return model;
}
#endif

}  // namespace convoy::comm
