// Draws the next token of a language model.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/core/philox.hpp>

namespace examples {

struct Sampling {
  float temperature = 1;  ///< divides the logits; 0: always the most likely token
  int top_k = 40;  ///< draws from this many of the most likely tokens; 0: from all (Fan, Lewis and Dauphin,
                   ///< "Hierarchical Neural Story Generation", 2018)
};

/// Draws a token in proportion to exp(logit / temperature). Of equal logits the one with the lower id counts
/// as more likely.
inline convoy::i32 sample(std::span<const float> logits, const Sampling& how, convoy::Philox& random) {
  std::vector<convoy::i32> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto likelier = [&](convoy::i32 a, convoy::i32 b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (how.temperature == 0) return *std::min_element(ids.begin(), ids.end(), likelier);
  if (how.top_k > 0 && static_cast<std::size_t>(how.top_k) < ids.size()) {
    std::nth_element(ids.begin(), ids.begin() + how.top_k, ids.end(), likelier);
    ids.resize(static_cast<std::size_t>(how.top_k));
    std::sort(ids.begin(), ids.end());  // nth_element leaves an unspecified order
  }
  float largest = logits[static_cast<std::size_t>(ids[0])];
  for (const convoy::i32 id : ids) largest = std::max(largest, logits[static_cast<std::size_t>(id)]);
  std::vector<double> sums;  // of the weights so far
  double sum = 0;
  for (const convoy::i32 id : ids) {
    const double above = static_cast<double>(logits[static_cast<std::size_t>(id)] - largest);
    sums.push_back(sum += std::exp(above / static_cast<double>(how.temperature)));
  }
  const double drawn = sum * random.next() * 0x1p-32;
  const auto at = std::upper_bound(sums.begin(), sums.end() - 1, drawn) - sums.begin();
  return ids[static_cast<std::size_t>(at)];
}

}  // namespace examples
