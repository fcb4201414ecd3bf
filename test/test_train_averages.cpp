// with_averages: the averages of optim::Ema in place of the parameters, and the trained parameters after it.
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/ema.hpp>
#include <convoy/train/averages.hpp>

using namespace convoy;
using namespace train_test;
using exec::Reference;
using transport::Threads;

namespace {

constexpr float keep = 0.75f;

/// A group's frozen bias, and a kernel whose outer taps never change.
template <class Comm>
using Averaging = Trainer<Dead, optim::Ema<optim::Adam>, Comm, Reference<f32>>;

template <class T>
typename T::Config config() {
  return {.batch = 5,
          .optimizer = {.rule = {.lr = 0.02f}, .keep = keep},
          .groups = {{.match = "*.bias", .frozen = true}}};
}

}  // namespace

TEST_CASE_TEMPLATE("averages take the place of the parameters for a time", Comm, comm::Ring<Threads>,
                   comm::Sharded<comm::Ring<Threads>>) {
  using T = Averaging<Comm>;
  const Blobs training(40), testing(20, 8);
  Threads::World(2).run([&](const Threads& endpoint) {
    T trainer(config<T>(), endpoint);
    std::vector<float> average;
    const auto average_in = [&](const train::StepReport&) {
      const std::vector<float> now = all_parameters(trainer);
      if (average.empty()) average = now;
      for (std::size_t i = 0; i < now.size(); ++i) average[i] += (1 - keep) * (now[i] - average[i]);
      return train::Control::go_on;
    };
    trainer.fit(training, {.epochs = 3, .on_step = average_in, .log = nullptr});
    const std::vector<float> trained = all_parameters(trainer);
    const double loss = trainer.evaluate(testing).loss;
    CHECK(largest_difference(trained, average) > 1e-3);

    double loss_of_averages = 0;
    train::with_averages(trainer, [&] {
      CHECK(largest_difference(all_parameters(trainer), average) < 1e-6);
      loss_of_averages = trainer.evaluate(testing).loss;
    });
    CHECK(loss_of_averages != loss);
    CHECK(all_parameters(trainer) == trained);
    CHECK(trainer.evaluate(testing).loss == loss);

    CHECK_THROWS_AS(train::with_averages(trainer, [] { throw std::runtime_error("enough"); }),
                    std::runtime_error);
    CHECK(all_parameters(trainer) == trained);
  });
}

TEST_CASE("before the first step parameters are their averages") {
  using T = Averaging<comm::None>;
  T trainer(config<T>());
  const std::vector<float> first = all_parameters(trainer);
  train::with_averages(trainer, [&] { CHECK(all_parameters(trainer) == first); });
}

TEST_CASE("averages are not for training") {
  using T = Averaging<comm::None>;
  const Blobs training(40);
  T trainer(config<T>());
  const std::vector<float> first = all_parameters(trainer);
  CHECK_THROWS_WITH_AS(
      train::with_averages(trainer, [&] { trainer.fit(training, {.steps = 2, .log = nullptr}); }),
      "trainer: the work of with_averages trained from step 0 to step 2, and the parameters are again those "
      "before it; train outside of it",
      ConfigError);
  CHECK(all_parameters(trainer) == first);
}

TEST_CASE("an optimizer without averages is refused in one sentence") {
  Trainer<Plain, optim::AdamW, comm::None, Reference<f32>> trainer({.batch = 5});
  CHECK_THROWS_WITH_AS(
      train::with_averages(trainer, [] {}),
      "trainer: the optimizer adamw keeps no averages of the parameters; use optim::Ema around its rule",
      ConfigError);
}
