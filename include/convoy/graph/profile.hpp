// Profile: the seconds that each operation of a plan takes, forward and backward, for one batch on one
// device. A profile is recorded on the device, or computed from the plan's prices and the device's
// characteristics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/graph/plan.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstddef>

#include <convoy/core/error.hpp>
#endif

namespace convoy::graph {

/// One operation of a plan, and its seconds for the batch of the profile.
struct OperationTime {
  std::string name;       ///< of its node: "layer1.0.conv1"
  std::string operation;  ///< "conv2d"
  std::string shape;      ///< of its value, for one sample: "[64x7x7]"
  double forward = 0, backward = 0;

  static constexpr void fields(auto& self, auto&& field) {
    field("name", self.name);
    field("operation", self.operation);
    field("shape", self.shape);
    field("forward", self.forward);
    field("backward", self.backward);
  }
  friend bool operator==(const OperationTime&, const OperationTime&) = default;
};

/// The times of a plan's operations on one device. The time of a fused stage is divided among its operations.
struct Profile {
  std::string machine, exec, precision, model;  ///< its origin; for the reader only
  int rows = 0;                                 ///< of the batch
  std::vector<OperationTime> operations;        ///< one for each computed node, in the plan's order
  double update = 0;                            ///< seconds of the optimizer's update, once per step

  /// Seconds of all operations.
  double forward() const;
  double backward() const;
  /// Seconds of a step that exchanges nothing.
  double step() const { return forward() + backward() + update; }

  static constexpr void fields(auto& self, auto&& field) {
    field("machine", self.machine);
    field("exec", self.exec);
    field("precision", self.precision);
    field("model", self.model);
    field("rows", self.rows);
    field("operations", self.operations);
    field("update", self.update);
  }
  friend bool operator==(const Profile&, const Profile&) = default;
};

/// Bytes that Adam moves to update one f32 parameter: it reads the gradient, the parameter and two moments,
/// and writes the latter three.
inline constexpr double moved_by_adam = 7 * sizeof(float);

/// Whether `seconds` is a plausible duration: not negative, and at most about thirty years.
constexpr bool is_time(double seconds) { return seconds >= 0 && seconds <= 1e9; }

/// The computed nodes of a plan, in order. A profile has a time for each.
std::vector<int> computed_nodes(const Plan& plan);

/// A profile of a plan for batches of `rows` rows, with all times zero. Throws ConfigError if `rows` is
/// below 1.
Profile untimed(const Plan& plan, int rows);

/// Checks that a profile belongs to this plan, has at least one row, and holds only plausible times
/// (`is_time`). Throws ConfigError, naming the first operation at fault, if not.
void expect_profile(const Plan& plan, const Profile& profile);

/// The profile of a device that overlaps arithmetic and memory traffic: an operation takes the longer of the
/// time for its FLOPs and the time for its bytes (Williams, Waterman and Patterson, "Roofline", CACM 2009).
/// Parameters are moved once per batch; the update moves Adam's seven values per parameter. Throws
/// ConfigError if a rate is not positive.
Profile roofline(const Plan& plan, int rows, double flops_per_second, double bytes_per_second);

/// The profile of a device from its training throughput alone: the seconds of a step, divided among the
/// operations in proportion to their roofline times. `balance` is the ridge point of the device's roofline in
/// FLOPs per byte: for f32, 22 on a 2080 Ti, 17 on a V100 and 20 on an A100; 80 for tf32 products on an A100.
/// A throughput does not reveal the time of the update, which is a small part of the step: it is included in
/// the operations' times, and `update` is 0. Throws ConfigError if a rate is not positive, or if the price of
/// the whole plan is zero.
Profile spread(const Plan& plan, int rows, double samples_per_second, double balance = 20);

#if CONVOY_DEFINITIONS

namespace detail {

inline std::string described(const OperationTime& time) {
  return concat(time.operation, ' ', time.name, ' ', time.shape);
}

}  // namespace detail

CONVOY_FUNCTION double Profile::forward() const {
  double sum = 0;
  for (const OperationTime& time : operations) sum += time.forward;
  return sum;
}

CONVOY_FUNCTION double Profile::backward() const {
  double sum = 0;
  for (const OperationTime& time : operations) sum += time.backward;
  return sum;
}

CONVOY_FUNCTION std::vector<int> computed_nodes(const Plan& plan) {
  std::vector<int> nodes;
  for (std::size_t n = 0; n < plan.nodes.size(); ++n)
    if (!plan.nodes[n].given) nodes.push_back(static_cast<int>(n));
  return nodes;
}

CONVOY_FUNCTION Profile untimed(const Plan& plan, int rows) {
  if (rows < 1) fail<ConfigError>("profile: the batch must have at least one row, not ", rows);
  Profile profile;
  profile.rows = rows;
  for (const int n : computed_nodes(plan)) {
    const Node& node = plan.node(n);
    profile.operations.push_back(
        {std::string(node.name.view()), std::string(name_of(node)), concat(node.shape)});
  }
  return profile;
}

CONVOY_FUNCTION void expect_profile(const Plan& plan, const Profile& profile) {
  const std::string whose = profile.model.empty() ? "" : concat(" of ", profile.model);
  if (profile.rows < 1)
    fail<ConfigError>("profile: the profile", whose, " has a batch of ", profile.rows,
                      " rows, expected at least 1");
  const Profile wanted = untimed(plan, profile.rows);
  const std::size_t has = profile.operations.size(), wants = wanted.operations.size();
  for (std::size_t i = 0; i < std::min(has, wants); ++i) {
    const OperationTime &time = profile.operations[i], &want = wanted.operations[i];
    if (time.name != want.name || time.operation != want.operation || time.shape != want.shape)
      fail<ConfigError>("profile: the profile", whose, " is for another plan: its operation ", i, " is ",
                        detail::described(time), ", where this plan has ", detail::described(want));
    if (!is_time(time.forward) || !is_time(time.backward))
      fail<ConfigError>("profile: ", time.name, " takes ", time.forward, " and ", time.backward,
                        " seconds, expected times from 0 to 1e9");
  }
  if (has != wants)
    fail<ConfigError>("profile: the profile", whose, " is for another plan: it has ", has,
                      " operations, where this plan has ", wants);
  if (!is_time(profile.update))
    fail<ConfigError>("profile: the update takes ", profile.update,
                      " seconds, expected a time from 0 to 1e9");
}

CONVOY_FUNCTION Profile roofline(const Plan& plan, int rows, double flops_per_second,
                                 double bytes_per_second) {
  if (!(flops_per_second > 0) || !(bytes_per_second > 0))
    fail<ConfigError>("profile: a roofline of ", flops_per_second, " FLOP/s and ", bytes_per_second,
                      " bytes/s; both must be positive");
  Profile profile = untimed(plan, rows);
  profile.machine =
      concat("roofline of ", flops_per_second * 1e-12, " TFLOP/s and ", bytes_per_second * 1e-9, " GB/s");
  profile.exec = "model";
  profile.precision = "f32";
  const auto seconds = [&](std::int64_t flops, std::int64_t bytes, std::int64_t once) {
    const double work = static_cast<double>(flops) * rows;
    const double moved = static_cast<double>(bytes - once) * rows + static_cast<double>(once);
    return std::max(work / flops_per_second, moved / bytes_per_second);
  };
  const std::vector<int> nodes = computed_nodes(plan);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const Price& price = plan.prices[static_cast<std::size_t>(nodes[i])];
    OperationTime& time = profile.operations[i];
    time.forward = seconds(price.forward_flops, price.forward_bytes, price.forward_bytes_once);
    time.backward = seconds(price.backward_flops, price.backward_bytes, price.backward_bytes_once);
  }
  profile.update = static_cast<double>(plan.sizes.exchanged) * moved_by_adam / bytes_per_second;
  return profile;
}

CONVOY_FUNCTION Profile spread(const Plan& plan, int rows, double samples_per_second, double balance) {
  if (!(samples_per_second > 0) || !(balance > 0))
    fail<ConfigError>("profile: ", samples_per_second, " samples/s at ", balance,
                      " FLOPs a byte; both must be positive");
  Profile profile = roofline(plan, rows, balance, 1);
  profile.update = 0;
  if (!(profile.step() > 0)) fail<ConfigError>("profile: no operation of this plan costs anything");
  const double scale = rows / samples_per_second / profile.step();
  for (OperationTime& time : profile.operations) {
    time.forward *= scale;
    time.backward *= scale;
  }
  profile.machine = concat(samples_per_second, " samples/s");
  return profile;
}

#endif

}  // namespace convoy::graph
