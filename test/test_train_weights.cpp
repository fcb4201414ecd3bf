// Weights in files: saved and loaded whole, in part, and under the names of published files.
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"
#include "train_support.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/train/checkpoint.hpp>
#include <convoy/train/weights.hpp>

using namespace convoy;
using namespace train_test;
using exec::Reference;

namespace {

const Blobs training(50), testing(20, 8);

/// Weights with names of published files.
struct Published {
  static constexpr void define(auto& g) {
    auto x = g.flatten(g.input("image", image));
    x = g.layer_norm(x, {.name = "embeddings.LayerNorm"});
    x = g.linear(x, {.features = classes, .name = "h.0.attn.c_attn"});
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

}  // namespace

TEST_CASE("weights are read under the names of published files") {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path / "published.safetensors";
  Trainer<Published, optim::Sgd, comm::None, Reference<float>> trainer({.batch = 10});
  io::SafetensorsWriter writer;
  const auto size = static_cast<std::size_t>(Shape(image).size());
  const std::vector<float> gamma(size, 3.0f), beta(size, 4.0f), weight(size * classes, 5.0f),
      bias(classes, 6.0f), mask(4);
  writer.add("embeddings.LayerNorm.gamma", Shape(static_cast<int>(size)), gamma);
  writer.add("embeddings.LayerNorm.beta", Shape(static_cast<int>(size)), beta);
  writer.add("h.0.attn.c_attn.weight", Shape(classes, static_cast<int>(size)), weight);
  writer.add("h.0.attn.c_attn.bias", Shape(classes), bias);
  writer.add("h.0.attn.bias", Shape(1, 1, 2, 2), mask);
  writer.add("h.0.attn.masked_bias", Shape(1), std::span(mask).first(1));
  writer.add("embeddings.position_ids", Shape(1, 4), mask);
  writer.write(file);
  CHECK(train::load_weights(trainer, file).loaded == 4);
  CHECK(trainer.parameters()["embeddings.LayerNorm.weight"].values() == gamma);
  CHECK(trainer.parameters()["embeddings.LayerNorm.bias"].values() == beta);
  // A bias that the model lacks is no mask.
  writer.add("h.1.attn.bias", Shape(4), mask);
  writer.write(file);
  CHECK_THROWS_AS(train::load_weights(trainer, file), CheckpointError);
}

TEST_CASE("all ranks are told that weights cannot be written, and can go on") {
  std::vector<std::string> told(2);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    ThreadTrainer<Plain> trainer{{.batch = 10}, endpoint};
    try {
      train::save_weights(trainer, "/proc/none/weights");
    } catch (const CheckpointError& error) {
      told[static_cast<std::size_t>(trainer.rank())] = error.what();
    }
    CHECK(trainer.evaluate(testing).rows == 20);
  });
  CHECK(told[0] == "/proc/none/weights cannot be written: No such file or directory");
  CHECK(told[1] == "rank 0 could not write /proc/none/weights");
}

TEST_CASE("weights that one rank cannot read change nothing on any rank, and all are told") {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path / "weights", damaged = folder.path / "damaged",
                              none = folder.path / "none";
  Trainer<Normed, optim::Adam, comm::None, Reference<float>> other({.batch = 10, .seed = 3});
  train::save_weights(other, file);
  std::filesystem::copy_file(file, damaged);
  std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) - 1);
  for (const train::Match match : {train::Match::complete, train::Match::partial})
    for (const std::filesystem::path& unreadable : {none, damaged})
      transport::Threads::World(3).run([&](const transport::Threads& endpoint) {
        ThreadTrainer<Normed> trainer{{.batch = 10}, endpoint};
        const auto before = all_parameters(trainer);
        std::string told;
        try {
          train::load_weights(trainer, trainer.rank() == 1 ? unreadable : file, match);
        } catch (const CheckpointError& error) {
          CHECK(trainer.rank() == 1);
          told = error.what();
        } catch (const ConfigError& error) {
          CHECK(trainer.rank() != 1);
          told = error.what();
        }
        CHECK(told.starts_with((trainer.rank() == 1 ? "" : "load_weights is refused by rank 1: ") +
                               unreadable.string()));
        CHECK(all_parameters(trainer) == before);
        CHECK(train::load_weights(trainer, file).complete());
        CHECK(all_parameters(trainer) == all_parameters(other));
      });
}

TEST_CASE("weights alone are saved, loaded whole, and loaded in part with a list of what did not match") {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path / "weights.safetensors";
  using Alone = Trainer<Normed, optim::Adam, comm::None, Reference<float>>;
  Alone trained({.batch = 10, .seed = 3});
  trained.fit(training, {.log = nullptr});
  train::save_weights(trained, file);
  Alone fresh({.batch = 10, .seed = 4});
  const auto report = train::load_weights(fresh, file);
  CHECK(report.complete());
  CHECK(report.loaded == 7);
  CHECK(all_parameters(fresh) == all_parameters(trained));
  CHECK(fresh.evaluate(testing).loss == trained.evaluate(testing).loss);

  Trainer<Plain, optim::Sgd, comm::None, Reference<float>> other({.batch = 10});
  const auto before = all_parameters(other);
  CHECK_THROWS_WITH_AS(
      train::load_weights(other, file),
      (file.string() + ": the tensor 'conv2d.0.weight' has shape [4, 1, 3, 3], expected [6, 1, 3, 3]")
          .c_str(),
      CheckpointError);
  CHECK(all_parameters(other) == before);
  const auto part = train::load_weights(other, file, train::Match::partial);
  CHECK(part.loaded == 1);  // the bias, which has as many classes
  REQUIRE(part.of_other_shape.size() == 2);
  CHECK(part.of_other_shape[0].name == "conv2d.0.weight");
  CHECK(part.of_other_shape[1].name == "linear.0.weight");
  CHECK(part.missing == std::vector<std::string>{"conv2d.0.bias", "conv2d.1.weight"});
  CHECK(part.unexpected == std::vector<std::string>{"batch_norm.0.bias", "batch_norm.0.running_mean",
                                                    "batch_norm.0.running_var", "batch_norm.0.weight"});
}

TEST_CASE("files of weights say that their layout is PyTorch's, as transformers expects") {
  const TemporaryFolder folder;
  Trainer<Plain, optim::Sgd, comm::None, Reference<float>> trainer({.batch = 10});
  train::save_weights(trainer, folder.path / "weights.safetensors");
  train::Checkpoints checkpoints(trainer, {.directory = folder.path});
  trainer.fit(training, {.log = nullptr, .keeper = &checkpoints});
  for (const auto& file : {folder.path / "weights.safetensors", checkpoints.newest() / "model.safetensors"}) {
    INFO(file.string());
    CHECK(io::Safetensors(file).metadata().at("format") == "pt");
  }
}

TEST_CASE("a file with a tensor that the model does not have is refused as a whole") {
  const TemporaryFolder folder;
  const std::filesystem::path file = folder.path / "weights.safetensors";
  const auto line = [](bool bias) {
    return DynamicPlan([bias](auto& g) {
      g.loss(g.mse_loss(g.linear(g.input("x", {3}), {.features = 2, .bias = bias}), g.input("y", {2})));
    });
  };
  const DynamicPlan biased = line(true), plain = line(false);
  using Alone = train::PlanTrainer<optim::Sgd, comm::None, Reference<float>>;
  Alone saved(biased, {.batch = 10}), other(plain, {.batch = 10});
  train::save_weights(saved, file);
  CHECK_THROWS_WITH_AS(
      train::load_weights(other, file),
      (file.string() + " has 1 tensor that the model does not have, for example 'linear.0.bias'").c_str(),
      CheckpointError);
}
