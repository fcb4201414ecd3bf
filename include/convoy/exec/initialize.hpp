// Initialization: start values for training. They are the same on every rank, thread count and Exec, because
// each is a function of only the seed, its parameter and its canonical index.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <convoy/core/philox.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/exec.hpp>

namespace convoy::exec {

/// Writes the start values of a parameter in canonical order; `random` is this parameter's own random stream.
template <class T>
void start_values(const graph::Parameter& parameter, Philox random, std::span<T> values) {
  switch (parameter.init) {
    case graph::Init::zeros:
      std::fill(values.begin(), values.end(), T(0));
      return;
    case graph::Init::ones:
      std::fill(values.begin(), values.end(), T(1));
      return;
    case graph::Init::kaiming_normal: {
      const float deviation = std::sqrt(2.0f / static_cast<float>(parameter.fan_out));
      for (T& value : values) value = static_cast<T>(deviation * random.normal());
      return;
    }
    case graph::Init::normal:
      for (T& value : values) value = static_cast<T>(parameter.deviation * random.normal());
      return;
    case graph::Init::xavier_uniform: {
      const float bound = std::sqrt(6.0f / static_cast<float>(parameter.fan_in + parameter.fan_out));
      for (T& value : values) value = static_cast<T>(random.uniform(-bound, bound));
      return;
    }
    case graph::Init::fan_in_uniform: {
      const float bound = 1.0f / std::sqrt(static_cast<float>(parameter.fan_in));
      for (T& value : values) value = static_cast<T>(random.uniform(-bound, bound));
      return;
    }
  }
}

/// Fills every parameter (frozen and dead ones included) and every running statistic of `exec` with its start
/// value; parameter i draws from Philox{seed, i} in canonical order.
template <Exec E>
void initialize(E& exec, const Plan& plan, std::uint64_t seed) {
  using T = typename E::Scalar;
  std::vector<T> values;
  for (std::size_t i = 0; i < plan.parameter_list.size(); ++i) {
    const auto& parameter = plan.parameter_list[i];
    values.resize(static_cast<std::size_t>(parameter.shape.size()));
    start_values<T>(parameter, Philox{seed, i}, values);
    exec.write_parameter(static_cast<int>(i), values);
  }
  const std::span<T> statistics = exec.statistics();
  const auto ranges = statistic_ranges(plan);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    values.assign(static_cast<std::size_t>(ranges[i].size()), static_cast<T>(plan.statistic_list[i].start));
    exec.space().write(statistics.data() + ranges[i].begin, values.data(), values.size() * sizeof(T));
  }
}

}  // namespace convoy::exec
