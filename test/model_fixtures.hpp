// The initial parameters of the models of make_model_fixtures.py and make_curves.py, by their formula.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <convoy/core/philox.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/plan.hpp>

namespace model_fixtures {

using namespace convoy;

/// Whether PyTorch's model stores a parameter as the transpose of convoy's.
using IsTransposed = bool (*)(std::string_view name);
inline bool never(std::string_view) { return false; }

/// Transposes a matrix [shape[1], shape[0]] to [shape[0], shape[1]].
template <class T>
std::vector<T> transposed(const std::vector<T>& values, const Shape& shape) {
  std::vector<T> made(values.size());
  const auto out = static_cast<std::size_t>(shape[0]), in = static_cast<std::size_t>(shape[1]);
  for (std::size_t o = 0; o < out; ++o)
    for (std::size_t i = 0; i < in; ++i) made[o * in + i] = values[i * out + o];
  return made;
}

/// PyTorch's shape of a parameter.
inline Shape stored(const graph::Parameter& p, IsTransposed is_transposed) {
  return is_transposed(p.name) ? Shape{p.shape[1], p.shape[0]} : p.shape;
}

/// The initial values of parameter `i` of a plan in convoy's layout, as make_model_fixtures.py describes
/// them.
template <class T>
std::vector<T> first_values(const Plan& plan, std::size_t i, IsTransposed is_transposed) {
  const graph::Parameter& p = plan.parameter_list[i];
  const Shape shape = stored(p, is_transposed);
  const std::int64_t fan_in = shape.size() / shape[0];
  const bool bias = p.name.view().substr(p.name.length - 4u) == "bias";
  const float factor = shape.rank < 2 ? 0.25f : fan_in > 16 ? 0.0625f : 0.5f;
  Philox random{2024, i};
  std::vector<T> values(static_cast<std::size_t>(shape.size()));
  for (T& value : values) {
    const float v = 2.0f * random.uniform() - 1.0f;
    value = static_cast<T>(shape.rank < 2 && !bias ? 1.0f + factor * v : factor * v);
  }
  return is_transposed(p.name) ? transposed(values, p.shape) : values;
}

}  // namespace model_fixtures
