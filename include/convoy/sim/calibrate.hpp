// Calibration: fits the few physical parameters of a source of measurements by least squares over the
// simulator, so that the simulator predicts settings of the same source that were not measured.
//
//     cells (workload, batch, machines, measured seconds) ---> setting_of(source, values, cell) ---> simulate
//                         ^                                                                            |
//                         +------------------- least squares over log(simulated / measured) <----------+
//
// A source holds what is known of its hardware (a Cluster), how it exchanges gradients, and the unknown
// numbers (Parameter). A parameter belongs to a kind of machine, a workload or the whole source, never to a
// single cell.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/sim/least_squares.hpp>
#include <convoy/sim/simulate.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#endif

namespace convoy::sim {

/// A node of a measured setting.
struct Machine {
  std::string kind;  ///< machines of one kind are identical
  int workers = 1;

  friend bool operator==(const Machine&, const Machine&) = default;
};

/// A setting that was measured or is to be predicted.
struct Cell {
  std::string workload = {};
  int batch = 1;                       ///< samples of one worker in a step
  std::vector<Machine> machines = {};  ///< one for each node
  double seconds = 0;                  ///< of a step, over all repeats; 0: not measured
  int repeats = 0;

  int workers() const {
    int sum = 0;
    for (const Machine& machine : machines) sum += machine.workers;
    return sum;
  }
  /// Whether both are the same setting; measurements do not count.
  bool same_setting(const Cell& other) const {
    return workload == other.workload && batch == other.batch && machines == other.machines;
  }
};

/// "resnet18, batch 128, 3 lm1 + 2 lm6".
void append_to(std::string& text, const Cell& cell);

/// What a training exchanges in a step.
struct Workload {
  std::string name = {};
  std::vector<std::int64_t> buckets = {};  ///< bytes of each, in the order in which backward finishes them
};

/// The meaning of a parameter, which determines where it enters a setting.
enum class Role : unsigned char {
  sample_seconds,  ///< of a workload: compute seconds of a worker of speed 1 per sample
  speed,           ///< of a kind of machine: of its worker, relative to that of the first kind
  sharing,         ///< of a kind of machine: n workers on a node take 1 + sharing (1 - 1/n) times as long
  inside_rate,     ///< bytes per second between two workers of a node, as the exchange sees it
  nic_rate,        ///< bytes per second of a node's network card, as the exchange sees it
  nic_latency,     ///< seconds per message between nodes
  launch,          ///< seconds before a bucket's first message
  late,            ///< the fraction of the gradients' bytes that backward does not hide
  spread,          ///< relative standard deviation of the speeds of nominally identical nodes
  jitter,          ///< relative standard deviation of a worker's time from step to step
};

struct Parameter {
  Role role = Role::sample_seconds;
  std::string of = {};  ///< the workload, or the kind of machine
  Unknown unknown = {};
};

struct Source {
  std::string name = {};
  std::vector<Workload> workloads = {};
  Cluster known = {};  ///< what is known of the hardware; a cell replaces the nodes
  Exchange exchange = {};
  std::vector<Parameter> parameters = {};
  double noise = 0.01;                          ///< expected relative standard deviation of cells
  std::map<std::string, double> noise_of = {};  ///< the same for the kinds of machines that differ

  const Workload& workload(std::string_view of) const;
  /// The expected relative standard deviation of a cell: the root mean square over its workers.
  double expected_noise(const Cell& cell) const;
};

/// The setting of a cell, given values of the source's parameters in their order. Throws ConfigError for a
/// workload that the source does not have.
Setting setting_of(const Source& source, std::span<const double> values, const Cell& cell);

/// Predicted seconds of a step of a cell.
double predict(const Source& source, std::span<const double> values, const Cell& cell);

/// An error message about the first parameter that the cells do not determine; empty if there is none.
///
/// `sample_seconds` needs a cell of the workload. `speed` needs a cell with one worker of that kind and a
/// cell of the same workload on another kind. `sharing` needs a cell of that kind alone with several workers
/// on a node. `inside_rate` and `launch` need a cell of one node with several workers, `jitter` a cell of
/// several workers, all others a cell of several nodes.
std::string unmeasured(const Source& source, std::span<const Cell> cells);

/// Fits the parameters to the cells. A residual is log(predicted / measured) over the cell's expected noise.
/// A parameter that the cells do not determine stays at its prior. Throws ConfigError, with what is missing,
/// if such a parameter is a workload's seconds or has no prior, and for a cell that was not measured.
Fit calibrate(const Source& source, std::span<const Cell> cells);

#if CONVOY_DEFINITIONS
namespace detail {

// The quantile function of the standard normal distribution.
inline double normal_quantile(double probability) {
  double low = -10, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < probability ? low : high) = middle;
  }
  return (low + high) / 2;
}

// The approximate expectation of the i-th smallest of n standard normal draws (Blom, "Statistical Estimates
// and Transformed Beta-Variables", 1958).
inline double normal_order(int i, int n) { return n == 1 ? 0 : normal_quantile((i + 0.625) / (n + 0.25)); }

// The buckets of a workload; the last fraction `late` of their bytes is ready only when backward is over.
inline std::vector<Bucket> buckets_of(const Workload& workload, double backward, double late) {
  std::int64_t all = 0;
  for (const std::int64_t bytes : workload.buckets) all += bytes;
  const auto early = static_cast<std::int64_t>((1 - late) * static_cast<double>(all));
  std::vector<Bucket> buckets;
  std::int64_t before = 0;
  for (const std::int64_t bytes : workload.buckets) {
    const std::int64_t in_time = std::clamp<std::int64_t>(early - before, 0, bytes);
    before += bytes;
    if (in_time > 0)
      buckets.push_back(
          {in_time, backward * (static_cast<double>(std::min(before, early)) / static_cast<double>(all)), 0});
    if (in_time < bytes) buckets.push_back({bytes - in_time, backward, 0});
  }
  return buckets;
}

}  // namespace detail

CONVOY_FUNCTION void append_to(std::string& text, const Cell& cell) {
  text += concat(cell.workload, ", batch ", cell.batch, ", ");
  for (std::size_t i = 0, j = 0; i < cell.machines.size(); i = j) {
    while (j < cell.machines.size() && cell.machines[j] == cell.machines[i]) ++j;
    if (i > 0) text += " + ";
    if (j - i > 1) text += concat(j - i, " x ");
    text += concat(cell.machines[i].workers, ' ', cell.machines[i].kind);
  }
}

CONVOY_FUNCTION const Workload& Source::workload(std::string_view of) const {
  std::string names;
  for (const Workload& one : workloads) {
    if (one.name == of) return one;
    append_item(names, one.name);
  }
  fail<ConfigError>("the source \"", name, "\" has no workload \"", of, "\"; it has ", names);
}

CONVOY_FUNCTION double Source::expected_noise(const Cell& cell) const {
  double squares = 0;
  for (const Machine& machine : cell.machines) {
    const auto own = noise_of.find(machine.kind);
    const double one = own != noise_of.end() ? own->second : noise;
    squares += machine.workers * one * one;
  }
  return std::sqrt(squares / cell.workers());
}

CONVOY_FUNCTION Setting setting_of(const Source& source, std::span<const double> values, const Cell& cell) {
  const auto value = [&](Role role, std::string_view of, double otherwise) {
    for (std::size_t i = 0; i < source.parameters.size(); ++i)
      if (source.parameters[i].role == role && source.parameters[i].of == of) return values[i];
    return otherwise;
  };
  const Workload& workload = source.workload(cell.workload);
  Setting setting{.cluster = source.known, .work = {}, .exchange = source.exchange};
  Cluster& cluster = setting.cluster;
  cluster.inside.beta = 1 / value(Role::inside_rate, "", 1 / cluster.inside.beta);
  cluster.nic.beta = 1 / value(Role::nic_rate, "", 1 / cluster.nic.beta);
  cluster.nic.alpha = value(Role::nic_latency, "", cluster.nic.alpha);
  cluster.launch = value(Role::launch, "", cluster.launch);
  cluster.jitter = value(Role::jitter, "", cluster.jitter);
  if (cluster.jitter > 0) setting.steps = 65;
  const double spread = value(Role::spread, "", 0);
  cluster.nodes.clear();
  const int count = static_cast<int>(cell.machines.size());
  for (int i = 0; i < count; ++i) {
    const Machine& machine = cell.machines[static_cast<std::size_t>(i)];
    const double slower = 1 + value(Role::sharing, machine.kind, 0) * (1 - 1.0 / machine.workers);
    // The speeds of the nodes are the expected order statistics of `count` draws.
    const double drawn = std::max(0.1, 1 + spread * detail::normal_order(i, count));
    const double speed = value(Role::speed, machine.kind, 1) / (slower * drawn);
    if (!cluster.nodes.empty() && cluster.nodes.back().ranks == machine.workers &&
        cluster.nodes.back().speed == speed)
      ++cluster.nodes.back().count;
    else
      cluster.nodes.push_back({1, machine.workers, speed});
  }
  const double seconds = cell.batch * value(Role::sample_seconds, cell.workload, 0);
  setting.work.samples = cell.batch;
  setting.work.forward = seconds / 3;  // backward computes two matrix products for each one of forward
  setting.work.backward = seconds - setting.work.forward;
  setting.work.buckets = detail::buckets_of(workload, setting.work.backward,
                                            value(Role::late, "", source.exchange.overlap ? 0 : 1));
  if (cell.workers() == 1) setting.exchange = {.comm = "none"};
  return setting;
}

CONVOY_FUNCTION double predict(const Source& source, std::span<const double> values, const Cell& cell) {
  return simulate(setting_of(source, values, cell)).step_seconds;
}

namespace detail {

// The error message for one parameter; empty if the cells determine it.
inline std::string unmeasured(const Parameter& p, std::span<const Cell> cells) {
  const auto any = [&](auto&& tells) { return std::any_of(cells.begin(), cells.end(), tells); };
  const auto several_inside = [](const Cell& cell) {
    return std::any_of(cell.machines.begin(), cell.machines.end(),
                       [](const Machine& machine) { return machine.workers > 1; });
  };
  const auto several_nodes = [](const Cell& cell) { return cell.machines.size() > 1; };
  const auto only = [](const Cell& cell, const std::string& kind) {
    return std::all_of(cell.machines.begin(), cell.machines.end(),
                       [&](const Machine& machine) { return machine.kind == kind; });
  };
  bool told = false;
  std::string_view wanted;
  switch (p.role) {
    case Role::sample_seconds:
      told = any([&](const Cell& cell) { return cell.workload == p.of; });
      wanted = "a setting of that workload";
      break;
    case Role::speed:
      told = any([&](const Cell& cell) {
        return cell.workers() == 1 && only(cell, p.of) &&
               any([&](const Cell& other) { return other.workload == cell.workload && !only(other, p.of); });
      });
      wanted = "a setting of one worker of that machine, and one of the same workload on another machine";
      break;
    case Role::sharing:
      told = any([&](const Cell& cell) { return only(cell, p.of) && several_inside(cell); });
      wanted = "a setting of that machine alone with several workers";
      break;
    case Role::inside_rate:
    case Role::launch:
      told = any([&](const Cell& cell) { return !several_nodes(cell) && several_inside(cell); });
      wanted = "a setting of one node with several workers";
      break;
    case Role::nic_rate:
    case Role::nic_latency:
    case Role::late:
    case Role::spread:
      told = any(several_nodes);
      wanted = "a setting of several nodes";
      break;
    case Role::jitter:
      told = any([](const Cell& cell) { return cell.workers() > 1; });
      wanted = "a setting of several workers";
      break;
  }
  if (told) return {};
  return concat("the measured settings do not determine \"", p.unknown.name, "\"; also measure ", wanted);
}

}  // namespace detail

CONVOY_FUNCTION std::string unmeasured(const Source& source, std::span<const Cell> cells) {
  for (const Parameter& p : source.parameters)
    if (std::string sentence = detail::unmeasured(p, cells); !sentence.empty()) return sentence;
  return {};
}

CONVOY_FUNCTION Fit calibrate(const Source& source, std::span<const Cell> cells) {
  for (const Cell& cell : cells)
    if (!(cell.seconds > 0))
      fail<ConfigError>(cell, " has no measured time of a step: ", cell.seconds, " seconds");
  std::vector<Unknown> unknowns;
  for (const Parameter& p : source.parameters) {
    Unknown& unknown = unknowns.emplace_back(p.unknown);
    if (p.role == Role::sample_seconds || !(unknown.prior > 0))
      if (const std::string sentence = detail::unmeasured(p, cells); !sentence.empty())
        fail<ConfigError>(sentence);
    // A measured quotient, which has the right magnitude, starts the search.
    if (p.role == Role::sample_seconds)
      for (const Cell& cell : cells)
        if (cell.workload == p.of) unknown.start = cell.seconds / cell.batch;
    // Bounds keep a long step of the search from an invalid cluster.
    if (unknown.scale == Scale::logarithmic) {
      unknown.lower = std::max(unknown.lower, unknown.start * 1e-6);
      unknown.upper = std::min(unknown.upper, unknown.start * 1e6);
    }
  }
  std::vector<double> noise;
  for (const Cell& cell : cells) noise.push_back(source.expected_noise(cell));
  const auto residuals = [&](std::span<const double> values, std::span<double> out) {
    for (std::size_t i = 0; i < cells.size(); ++i)
      out[i] = std::log(predict(source, values, cells[i]) / cells[i].seconds) / noise[i];
  };
  // A simulation of random step times is smooth only over differences that are not too small.
  return least_squares(unknowns, static_cast<int>(cells.size()), residuals,
                       {.noise = 1, .tolerance = 1e-6, .difference = 1e-4});
}
#endif

}  // namespace convoy::sim
