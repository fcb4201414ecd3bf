// SANITIZE: address thread
// Trainer: what is refused before or during a training, and which rank is to blame.
#include <atomic>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/data/synthetic.hpp>

using namespace convoy;
using namespace train_test;

namespace {

template <class Model>
typename ThreadTrainer<Model>::Config config(int batch) {
  return {.batch = batch, .optimizer = {.lr = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f}};
}

}  // namespace

TEST_CASE("a loss that is not a number on one rank stops all of them and names it") {
  for (const int culprit : {0, 1, 2}) {
    const Blobs blobs(90, 7, first_sample(90, 10, 3, 1, culprit));
    std::vector<std::string> told(3);
    transport::Threads::World(3).run([&](const transport::Threads& endpoint) {
      ThreadTrainer<Plain> trainer{config<Plain>(10), endpoint};
      try {
        trainer.fit(blobs, {.epochs = 1, .log = nullptr});
      } catch (const ExecError& error) {
        told[static_cast<std::size_t>(trainer.rank())] = error.what();
      }
    });
    for (const std::string& sentence : told)
      CHECK(sentence.starts_with(concat("rank ", culprit,
                                        ": the loss of step 1 is not finite, so training "
                                        "stops on all ranks")));
  }
}

TEST_CASE("ranks with data sets of different sizes are told which rank's differs") {
  const Blobs whole(60), part(50);
  for (const bool of_validation : {false, true}) {
    std::vector<std::string> told(3);
    transport::Threads::World(3).run([&](const transport::Threads& endpoint) {
      ThreadTrainer<Plain> trainer{config<Plain>(10), endpoint};
      const Blobs& mine = trainer.rank() == 1 ? part : whole;
      try {
        if (of_validation)
          trainer.fit(whole,
                      {.validate = trainer.rank() == 1 ? data::DatasetRef() : data::DatasetRef(&whole)});
        else
          trainer.fit(mine);
      } catch (const ConfigError& error) {
        told[static_cast<std::size_t>(trainer.rank())] = error.what();
      }
    });
    for (const std::string& sentence : told)
      CHECK(sentence ==
            (of_validation
                 ? "the validation set has 0 rows on rank 1 and 60 on rank 0; pass the whole set on "
                   "every rank"
                 : "the training set has 50 rows on rank 1 and 60 on rank 0; pass the whole set on "
                   "every rank"));
  }
}

TEST_CASE("options that a fit would only need later are checked before its first step") {
  const Blobs training(40), empty(0);
  ThreadTrainer<Plain> trainer{config<Plain>(10)};
  const auto refuses = [&](const train::FitOptions& options, const char* sentence) {
    CHECK_THROWS_WITH_AS(trainer.fit(training, options), sentence, ConfigError);
  };
  refuses({.validate = &empty, .log = nullptr}, "fit: the validation set has no samples");
  for (const train::EarlyStop& rule : {train::EarlyStop{.patience = 2}, {.target_accuracy = 0.9}})
    refuses({.early_stop = rule, .log = nullptr},
            "fit: early_stop needs a validation set; set FitOptions::validate");
  refuses({.validate = &training, .early_stop = {.patience = -1}, .log = nullptr},
          "fit: the patience of early_stop must not be negative, as -1 is");
  refuses({.validate = &training, .early_stop = {.patience = 1, .min_delta = -0.5}, .log = nullptr},
          "fit: the min_delta of early_stop must not be negative, as -0.5 is");
  refuses({.validate = &training, .early_stop = {.min_delta = 0.01}, .log = nullptr},
          "fit: early_stop has a min_delta of 0.01, which needs a patience above 0");
  refuses({.validate = &training, .early_stop = {.target_accuracy = 99.2}, .log = nullptr},
          "fit: the target accuracy must be from 0 to 1, not 99.2");
  CHECK(trainer.steps_done() == 0);
}

TEST_CASE("invalid options and data sets are refused in one sentence") {
  const Blobs blobs(30);
  using T = ThreadTrainer<Plain>;
  CHECK_THROWS_WITH_AS((T{{.batch = 0}}), "trainer: the batch must be at least 1, not 0", ConfigError);
  CHECK_THROWS_WITH_AS((T{{.accumulate = -1}}), "trainer: accumulate must be at least 1, not -1",
                       ConfigError);
  CHECK_THROWS_AS((T{{.optimizer = {.lr = -1}}}), ConfigError);
  CHECK_THROWS_AS((T{{.schedule = {.decay = optim::Decay::linear}}}), ConfigError);
  T trainer{{.batch = 31}};
  CHECK_THROWS_AS(trainer.fit(blobs), ConfigError);
  CHECK_THROWS_AS(trainer.fit(blobs, {.epochs = 0}), ConfigError);
  CHECK_THROWS_AS(trainer.predict(blobs, 1), ConfigError);
  const char* const no_set = "trainer: an empty DatasetRef was passed where a data set is needed";
  CHECK_THROWS_WITH_AS(trainer.fit(data::DatasetRef{}), no_set, ConfigError);
  CHECK_THROWS_WITH_AS(trainer.evaluate(data::DatasetRef{}), no_set, ConfigError);
  CHECK_THROWS_WITH_AS(trainer.predict(data::DatasetRef{}), no_set, ConfigError);
  const data::Synthetic other(
      10, {{{"image", DType::f32, Shape{1, 9, 8}}}, {{"label", DType::i32, {}}, classes}});
  CHECK_THROWS_WITH_AS(trainer.evaluate(other),
                       "the model's input 'image' is f32 [1x8x8], but the data set's field is f32 [1x9x8]",
                       ConfigError);
  const data::Synthetic nameless(10, {{{"picture", DType::f32, image}}});
  CHECK_THROWS_WITH_AS(
      trainer.evaluate(nameless),
      "the model's input 'image' has no field of that name in the data set, which has 'picture'",
      ConfigError);
}

TEST_CASE("an invalid label is refused by the rank that reads it") {
  std::vector<float> images(3 * 64);
  const std::vector<i32> labels{0, 4, 5};
  const void* const fields[] = {images.data(), labels.data()};
  const std::string sentence = "exec: the label 'label' of row 2 is 5, expected 0 to 4";
  Trainer<Plain, optim::Sgd, comm::None, exec::Reference<f32>> alone{{.batch = 3}};
  CHECK_THROWS_WITH_AS(alone.step({fields, 3}), sentence.c_str(), ExecError);
  std::vector<std::string> told(2);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    ThreadTrainer<Plain> trainer{config<Plain>(3), endpoint};
    try {
      trainer.step({fields, trainer.rank() == 0 ? 2 : 3}, 5);
    } catch (const Error& error) {
      told[static_cast<std::size_t>(trainer.rank())] = error.what();
    }
  });
  CHECK(told[1] == "rank 1: " + sentence);
  CHECK(told[0].find("rank 1") != std::string::npos);
}

TEST_CASE("ranks whose batches have other rows together than a step was taken to have say so") {
  std::vector<float> images(4 * 64);
  const std::vector<i32> labels{0, 1, 2, 3};
  const void* const fields[] = {images.data(), labels.data()};
  // As of a loader without a shard, and of ranks that pass nothing although their batches differ.
  const std::int64_t said[][2] = {{3, 3}, {0, 0}};
  const int rows[][2] = {{3, 3}, {4, 3}};
  for (const bool in_parts : {false, true})
    for (const int wrong : {0, 1}) {
      CAPTURE(in_parts);
      CAPTURE(wrong);
      std::vector<std::string> told(2);
      transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
        const auto r = static_cast<std::size_t>(endpoint.rank());
        ThreadTrainer<Plain> trainer{config<Plain>(4), endpoint};
        const exec::BatchView batch{fields, rows[wrong][r]};
        trainer.step({fields, 2}, 4);
        try {
          if (!in_parts) trainer.step(batch, said[wrong][r]);
          trainer.forward(batch, said[wrong][r]);
          trainer.backward();
          trainer.step();
        } catch (const ConfigError& error) {
          told[r] = error.what();
        }
      });
      const auto sentence = [](int taken, int have) {
        return concat("trainer: step 1 was taken to have ", taken,
                      " rows on all ranks, but their batches have ", have,
                      ": give each rank's Loader its shard, and pass the rows of all ranks as global_rows");
      };
      CHECK(told[0] == (wrong == 0 ? sentence(3, 6) : sentence(8, 7)));
      CHECK(told[1] == (wrong == 0 ? sentence(3, 6) : sentence(6, 7)));
    }
}

TEST_CASE("ranks with different configurations say which field differs") {
  std::atomic<int> told = 0;
  auto run = [&] {
    transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
      try {
        ThreadTrainer<Plain> trainer{config<Plain>(endpoint.rank() == 0 ? 10 : 12), endpoint};
      } catch (const Error& error) {
        CHECK(std::string(error.what()).find("batch") != std::string::npos);
        ++told;
      }
    });
  };
  run();
  CHECK(told == 2);
}
