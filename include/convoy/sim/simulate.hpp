// simulate: predicts the time of a step on a described cluster by executing the exchange's own schedules
// message by message.
#pragma once

#include <string_view>

#include <convoy/core/compiled.hpp>
#include <convoy/sim/outcome.hpp>
#include <convoy/sim/setting.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <convoy/sim/collective.hpp>
#include <convoy/sim/legs.hpp>
#include <convoy/sim/moment.hpp>
#include <convoy/sim/places.hpp>
#include <convoy/sim/serving.hpp>
#endif

namespace convoy::sim {

/// How a simulation is carried out, which does not change its results.
struct Manner {
  int shown = 0;  ///< the first `shown` ranks record spans
  /// From this number of ranks on, one unit of a cluster stands for all, if that is exact up to the rounding
  /// of chunks to cache lines (steps.hpp).
  int folds_from = 128;
};

/// Simulates a setting. Throws ConfigError if it is invalid.
Outcome simulate(const Setting& setting, const Manner& manner = {});

#if CONVOY_DEFINITIONS

namespace detail {

// The number of steps to simulate. The first, which all workers start together, does not count unless it is
// the only one, as in large worlds, where a step is expensive. Random times and workers that do not wait for
// each other need several steps, and fewer of them with more workers.
CONVOY_FUNCTION int steps_for(const Setting& setting) {
  constexpr int large = 512;
  if (setting.steps > 0) return setting.steps;
  const int ranks = setting.cluster.ranks();
  const bool together = !serves(setting.exchange) || setting.exchange.comm == "ps";
  if (together && ranks > large) return 1;
  return 1 + (together && setting.cluster.jitter == 0 ? 1 : std::clamp(large / ranks, 1, 16));
}

// Splits the step's critical path by cause.
CONVOY_FUNCTION void explain(Outcome& outcome, const Moment& last, double mean_compute) {
  const double scale = last.at > 0 ? outcome.step_seconds / last.at : 0;
  const auto part = [&](Cause cause) { return scale * last.path[static_cast<std::size_t>(cause)]; };
  Critical& critical = outcome.critical;
  critical = {part(Cause::compute), 0,
              part(Cause::launch),  part(Cause::latency),
              part(Cause::inside),  part(Cause::nic),
              part(Cause::fabric),  part(Cause::combining),
              part(Cause::staging)};
  critical.waiting = std::max(0.0, critical.compute - mean_compute);
  outcome.binds = "compute";
  double most = 0.01 * outcome.step_seconds;
  const auto candidate = [&](std::string_view name, double seconds) {
    if (seconds <= most) return;
    most = seconds;
    outcome.binds = name;
  };
  candidate("waiting for slower workers", critical.waiting);
  for (std::size_t cause = 1; cause < causes; ++cause)
    candidate(name_of(static_cast<Cause>(cause)), part(static_cast<Cause>(cause)));
}

CONVOY_FUNCTION void list_links(Outcome& outcome, const Places& places, const Network& network, double steps,
                                double seconds) {
  for (std::size_t i = 0; i < network.resources().size(); ++i) {
    const Resource& resource = network.resources()[i];
    if (resource.bytes == 0) continue;
    // Without sync, messages of workers that are ahead are under way when the last worker ends.
    const double over = std::max(seconds, resource.free.at);
    outcome.links.push_back({places.name_of(static_cast<int>(i)), std::string(name_of(resource.cause)),
                             resource.busy / steps, over > 0 ? resource.busy / over : 0,
                             resource.bytes / steps});
  }
  std::stable_sort(outcome.links.begin(), outcome.links.end(),
                   [](const Use& a, const Use& b) { return a.seconds > b.seconds; });
  outcome.messages = static_cast<std::int64_t>(static_cast<double>(network.sent() * places.units()) / steps);
  outcome.bytes = network.bytes() * places.units() / steps;
}

// The means over the steps after the first, or of the only one.
template <class Simulation>
Outcome means(const Setting& setting, const Simulation& simulation, int steps) {
  const Moment& last = simulation.last();
  const Places& places = simulation.places();
  const Work& work = setting.work;
  const int first = steps > 1 ? 1 : 0, workers = simulation.workers();
  Outcome outcome;
  outcome.step_seconds = simulation.step_seconds();
  double slowest = 0, all = 0;
  for (int step = first; step < steps; ++step) {
    double most = 0;
    for (int rank = 0; rank < workers; ++rank) {
      const double seconds = simulation.alone(rank, step);
      most = std::max(most, seconds);
      all += seconds / workers;
    }
    slowest += most;
  }
  outcome.exposed_seconds = std::max(0.0, outcome.step_seconds - slowest / (steps - first));
  const double count = workers * places.units();
  outcome.throughput = outcome.step_seconds > 0 ? count * work.samples / outcome.step_seconds : 0;
  outcome.scalability = outcome.step_seconds > 0 ? count * work.alone() / outcome.step_seconds : 0;
  explain(outcome, last, all / (steps - first));
  list_links(outcome, places, simulation.network(), simulation.steps_made(), last.at);
  outcome.spans = simulation.spans();
  return outcome;
}

}  // namespace detail

CONVOY_FUNCTION Outcome simulate(const Setting& setting, const Manner& manner) {
  setting.cluster.check();
  setting.work.check();
  if (setting.steps < 0)
    fail<ConfigError>("sim: the number of steps must be at least 0, not ", setting.steps);
  const int steps = detail::steps_for(setting);
  if (serves(setting.exchange)) {
    Serving simulation(setting, steps, manner.shown);
    simulation.run();
    return detail::means(setting, simulation, steps);
  }
  const bool folds = setting.cluster.ranks() >= manner.folds_from && Places::foldable(setting.cluster) &&
                     setting.exchange.weights.empty();
  const Legs legs = legs_of(setting.cluster, setting.work, setting.exchange, folds);
  Collective simulation(setting, legs, steps, manner.shown);
  simulation.run();
  return detail::means(setting, simulation, steps);
}
#endif

}  // namespace convoy::sim
