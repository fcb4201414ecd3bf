// How far the gradients of an Exec in another precision are from those of exec::Reference<double>, relative
// to their norm.
//
//     CHECK(exec_compare::usual_distance<exec::Host<bf16>>(plan, seed) < 2e-2);
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>

#include "exec_compare.hpp"

namespace exec_compare {

/// Distance of `T`'s gradients from the reference's, relative to the norm.
template <class T>
double distance(const Plan& plan, std::uint64_t seed) {
  exec::Reference<double> reference(plan, 4);
  T tested(plan, 4, {});
  randomize(reference, plan, Philox{seed, 1000});
  randomize(tested, plan, Philox{seed, 1000});
  const Batch batch(plan, 4, Philox{seed, 1001});
  forward(reference, batch);
  backward(reference, plan, 0.25f);
  // In f16 a gradient may overflow until the loss scale has come down.
  for (int attempt = 0; attempt < 12; ++attempt) {
    forward(tested, batch);
    backward(tested, plan, 0.25f);
    const auto gradients = fetched(tested, tested.gradients());
    if (std::all_of(gradients.begin(), gradients.end(), [](float x) { return std::isfinite(x); })) break;
  }
  double all = 0, off = 0;
  for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p) {
    const auto expected = gradient(reference, plan, p), seen = gradient(tested, plan, p);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      all += expected[i] * expected[i];
      off += (seen[i] - expected[i]) * (seen[i] - expected[i]);
    }
  }
  if (all == 0) return off == 0 ? 0 : std::numeric_limits<double>::infinity();
  return std::sqrt(off / all);
}

/// The median of three draws; in one of them rounding may move a unit of a ReLU across zero.
template <class T>
double usual_distance(const Plan& plan, std::uint64_t seed) {
  double of[] = {distance<T>(plan, seed), distance<T>(plan, seed + 1), distance<T>(plan, seed + 2)};
  std::sort(std::begin(of), std::end(of));
  return of[1];
}

}  // namespace exec_compare
