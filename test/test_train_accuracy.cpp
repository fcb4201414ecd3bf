// SANITIZE: address thread
// Accuracy over the labels that count, in steps, epochs and evaluations; none if no label counts.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>

using namespace convoy;
using namespace train_test;
using transport::Threads;

namespace {

constexpr int ignored = 2;

/// A model for which labels of one class do not count.
struct Partial {
  static constexpr void define(auto& g) {
    const auto x = g.linear(g.flatten(g.input("image", image)), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes, {.ignore = ignored})));
  }
};

/// Blobs, all of the class that does not count.
class Uncounted : public Blobs {
 public:
  using Blobs::Blobs;
  void read(std::size_t index, data::Sample out) const { Blobs::read(index * classes + ignored, out); }
};

template <class Comm>
using Trained = Trainer<Partial, optim::Sgd, Comm, exec::Reference<f32>>;
using Alone = Trained<comm::None>;

/// A learning rate of zero, so that all steps see the same model.
template <class T>
typename T::Config still(int batch) {
  return {.batch = batch, .optimizer = {.lr = 0}};
}

const Blobs blobs(43);

/// The accuracy of the untrained model, over the labels that count.
double expected() {
  Alone trainer(still<Alone>(1));
  const auto prediction = trainer.predict(blobs);
  int correct = 0, counted = 0;
  for (std::size_t i = 0; i < blobs.size(); ++i) {
    const float* const row = prediction.values.data() + i * classes;
    const int label = static_cast<int>(i % classes);
    counted += label != ignored;
    correct += label != ignored && std::max_element(row, row + classes) - row == label;
  }
  REQUIRE(correct > 0);
  REQUIRE(correct < counted);
  return static_cast<double>(correct) / counted;
}

}  // namespace

TEST_CASE("a step without a label that counts has no accuracy; the epoch's is over all labels that count") {
  Alone trainer(still<Alone>(1));
  std::int64_t labels = 0, without = 0;
  const auto report = trainer.fit(blobs, {.on_step =
                                              [&](const train::StepReport& step) {
                                                CHECK(step.accuracy.has_value() == (step.labels > 0));
                                                labels += step.labels;
                                                without += step.labels == 0;
                                                return train::Control::go_on;
                                              },
                                          .log = nullptr});
  CHECK(labels == 34);
  CHECK(without == 9);
  CHECK(report.epochs[0].accuracy == expected());
  CHECK(trainer.evaluate(blobs).accuracy == expected());
}

TEST_CASE_TEMPLATE("ranks agree on the accuracy of an epoch, in lockstep or not", Comm, comm::Ring<Threads>,
                   comm::ParameterServer<Threads, comm::Async>) {
  Threads::World(3).run([&](const Threads& endpoint) {
    Trained<Comm> trainer(still<Trained<Comm>>(3), endpoint);
    const auto report = trainer.fit(blobs, {.validate = &blobs, .log = nullptr});
    CHECK(report.epochs[0].accuracy.value() == doctest::Approx(expected()));
    CHECK(report.epochs[0].test.accuracy == expected());
  });
}

TEST_CASE("a fit that resumes within an epoch counts the epoch's earlier labels too") {
  Positions positions;
  Alone trainer(still<Alone>(4));
  const auto begun = trainer.fit(blobs, {.steps = 4, .log = nullptr, .keeper = &positions});
  REQUIRE(!positions.kept.empty());
  CHECK(positions.kept.back().labels > 0);
  const auto rest = trainer.fit(blobs, {.log = nullptr, .keeper = &positions});
  CHECK(begun.steps + rest.steps == 11);
  CHECK(rest.epochs[0].accuracy == expected());
}

TEST_CASE("where no label counts, an evaluation has no accuracy, and no target is reached") {
  const Uncounted uncounted(10);
  std::ostringstream log;
  Alone trainer(still<Alone>(5));
  const auto report = trainer.fit(
      blobs, {.epochs = 2, .validate = &uncounted, .early_stop = {.target_accuracy = 0}, .log = &log});
  CHECK(report.stopped == train::StopReason::finished);
  CHECK(report.epochs[0].accuracy);
  CHECK(report.epochs[0].test.rows == 10);
  CHECK(!report.epochs[0].test.accuracy);
  CHECK(log.str().find("accuracy") == std::string::npos);
  // With labels that count, any accuracy reaches the target of 0.
  const auto stopped = trainer.fit(
      blobs, {.epochs = 2, .validate = &blobs, .early_stop = {.target_accuracy = 0}, .log = nullptr});
  CHECK(stopped.stopped == train::StopReason::early_stop);
}
