// A model whose parameters are mostly matrices, for optimizers that update a matrix as a whole.
#pragma once

#include "train_support.hpp"
#include <convoy/optim/muon.hpp>

namespace train_test {

/// Matrices of several sizes, and taps that see only padding; a bucket for each tensor.
template <int channels>
struct WideOf {
  static constexpr BucketOptions buckets{.first = 64, .others = 64};
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.max_pool(g.relu(g.conv2d(x, {.channels = channels, .bias = true, .name = "first"})));
    x = g.relu(g.conv2d(x, {.channels = 2 * channels, .stride = 2, .name = "second"}));
    x = g.max_pool(g.relu(g.conv2d(x, {.channels = 2 * channels, .kernel = 3, .name = "third"})));
    x = g.relu(g.conv2d(x, {.channels = channels, .kernel = 3, .name = "fourth"}));
    x = g.relu(g.linear(g.flatten(x), {.features = 16, .name = "hidden"}));
    x = g.linear(x, {.features = classes, .name = "head"});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

/// Enough channels for Host to store the weights in channel blocks.
using Wide = WideOf<32>;

/// With a small epsilon, AdamW would take a full-size step along a gradient that is only rounding error.
inline constexpr optim::Muon::Options muon{.lr = 0.03f, .epsilon = 1e-3f};

}  // namespace train_test
