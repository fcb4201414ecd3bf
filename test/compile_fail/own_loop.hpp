// What a program with a loop of its own does with its trainer. If the trainer is refused, that must be the
// only error.
#pragma once

#include <iostream>
#include <vector>

#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/data/digits.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/train/binding.hpp>
#include <convoy/train/checkpoint.hpp>
#include <convoy/train/trainer.hpp>
#include <convoy/train/weights.hpp>

using namespace convoy;

struct Flat {
  static constexpr void define(auto& g) {
    const auto image = g.flatten(g.input("image", Image{1, 28, 28}));
    g.loss(g.cross_entropy(g.linear(image, {.features = 10}), g.label("label", 10)));
  }
};

template <class Model, class Rule, class Comm, class Exec>
void train_with() {
  const auto digits = data::digits();
  Trainer<Model, Rule, Comm, Exec> trainer{{.batch = 64}};
  const train::Binding binding{trainer.plan, digits.train.fields()};
  data::Loader loader{digits.train, {.batch = 64, .shard = {trainer.rank(), trainer.world()}}};
  train::Checkpoints checkpoints{trainer, {.directory = "runs", .resume = true}};
  loader.start(checkpoints.resume().epoch);
  while (const data::Batch* rows = loader.next()) {
    trainer.forward(binding.view(*rows), rows->global_rows);
    trainer.backward();
    trainer.parameters()["linear.0.bias"].write_gradient(std::vector<float>(10));
    if (trainer.step().step == 100) trainer.set_lr_factor(trainer.lr_factor() / 2);
  }
  trainer.fit(digits.train, {.validate = &digits.test, .keeper = &checkpoints});
  train::save_weights(trainer, "weights.safetensors");
  if (trainer.rank() == 0) std::cout << trainer.evaluate(digits.test).loss << '\n';
}
