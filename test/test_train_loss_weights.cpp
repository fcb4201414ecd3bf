// SANITIZE: address
// Weights of losses: a step, its report and an evaluation are the weighted sums of those of each loss alone.
#include <cstddef>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"

using namespace convoy;
using namespace train_test;
using transport::Threads;

namespace {

/// A cross-entropy whose count depends on the labels, and an error whose count does not, with weights in
/// quarters. A weight of 0 leaves the loss out.
template <int of_labels, int of_image>
struct Weighted {
  static constexpr void define(auto& g) {
    const auto pixels = g.flatten(g.input("image", image));
    const auto x = g.linear(pixels, {.features = 2 * classes});
    const auto logits = g.linear(x, {.features = classes});
    const auto label = g.label("label", classes, {.ignore = 2});
    if (of_labels > 0) g.loss(g.cross_entropy(logits, label), {.weight = of_labels / 4.0f});
    const auto error = g.mse_loss(g.linear(x, {.features = 64}), pixels);
    if (of_image > 0) g.loss(error, {.weight = of_image / 4.0f});
  }
};

struct Trained {
  double step = 0, evaluation = 0;
  std::vector<float> before, after;
};

/// One step of 2 ranks with 2 micro-steps each.
template <int of_labels, int of_image>
Trained trained() {
  using T = ThreadTrainer<Weighted<of_labels, of_image>>;
  const Blobs training(40), testing(23, 8);
  Trained made;
  Threads::World(2).run([&](const Threads& endpoint) {
    T trainer({.batch = 5, .accumulate = 2, .optimizer = {.lr = 0.125f, .momentum = 0}}, endpoint);
    const std::vector<float> before = all_parameters(trainer);
    const double evaluation = trainer.evaluate(testing).loss;
    const auto report = trainer.fit(training, {.steps = 1, .log = nullptr});
    if (trainer.rank() == 0) made = {report.epochs.back().loss, evaluation, before, all_parameters(trainer)};
  });
  return made;
}

}  // namespace

TEST_CASE("losses are minimized and reported by their weights") {
  const Trained labels = trained<4, 0>(), pixels = trained<0, 4>(), both = trained<1, 12>();
  CHECK(both.step == doctest::Approx(0.25 * labels.step + 3 * pixels.step).epsilon(1e-6));
  CHECK(both.evaluation == doctest::Approx(0.25 * labels.evaluation + 3 * pixels.evaluation).epsilon(1e-6));
  REQUIRE(both.before == labels.before);
  REQUIRE(both.before == pixels.before);
  std::vector<float> expected = both.before;
  for (std::size_t i = 0; i < expected.size(); ++i)
    expected[i] += 0.25f * (labels.after[i] - labels.before[i]) + 3 * (pixels.after[i] - pixels.before[i]);
  CHECK(largest_difference(both.after, both.before) > 1e-2f);
  CHECK(largest_difference(both.after, expected) < 1e-6f);
}
