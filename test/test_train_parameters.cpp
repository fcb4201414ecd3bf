// Parameters by name, a loop of one's own, and the state of a training, visited by name in canonical form.
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"

using namespace convoy;
using namespace train_test;
using exec::Reference;
using transport::Threads;

namespace {

using Alone = Trainer<Normed, optim::Adam, comm::None, Reference<float>>;
using Shards = Trainer<Normed, optim::Adam, comm::Sharded<comm::Ring<Threads>>, Reference<float>>;

/// Keeps what it sees; or, with `restore`, hands it back.
struct Keeper {
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, std::int64_t> counters;
  bool restore = false;

  void tensor(std::string_view name, const Shape& shape, std::span<float> values) {
    CHECK(static_cast<std::int64_t>(values.size()) == shape.size());
    auto& kept = tensors[std::string(name)];
    if (restore)
      std::copy(kept.begin(), kept.end(), values.begin());
    else
      kept.assign(values.begin(), values.end());
  }
  void counter(std::string_view name, std::int64_t& value) {
    auto& kept = counters[std::string(name)];
    if (restore)
      value = kept;
    else
      kept = value;
  }
};

/// A batch of the blobs, as an exec takes it.
struct Rows {
  explicit Rows(std::size_t count, std::size_t from = 0) {
    const Blobs blobs(64);
    data::Samples samples(blobs.fields(), count, std::pmr::new_delete_resource());
    for (std::size_t i = 0; i < count; ++i) blobs.read(from + i, samples.row(i));
    rows = static_cast<int>(count);
    const auto size = static_cast<std::size_t>(Shape(image).size());
    const auto* values = reinterpret_cast<const float*>(samples.columns()[0]);
    const auto* classes_of = reinterpret_cast<const i32*>(samples.columns()[1]);
    images.assign(values, values + count * size);
    labels.assign(classes_of, classes_of + count);
    fields = {images.data(), labels.data()};
  }
  exec::BatchView view() const { return {fields, rows}; }
  std::vector<float> images;
  std::vector<i32> labels;
  std::vector<const void*> fields;
  int rows = 0;
};

}  // namespace

TEST_CASE("parameters are read and written by their PyTorch names") {
  Alone trainer{{.batch = 8}};
  const auto parameters = trainer.parameters();
  REQUIRE(parameters.size() == trainer.plan.parameter_list.size());
  const auto& weight = parameters["conv2d.0.weight"];
  CHECK(weight.shape() == Shape(4, 1, 3, 3));
  CHECK(weight.trained());
  std::vector<float> values(weight.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 16;
  weight.write(values);
  CHECK(weight.values() == values);
  CHECK_THROWS_WITH_AS(parameters["conv2d.1.weight"], "trainer: the model has no parameter 'conv2d.1.weight'",
                       ConfigError);
  CHECK_THROWS_AS(weight.write(std::vector<float>(3)), ConfigError);
}

TEST_CASE("a loop of one's own makes the steps that step(batch) makes") {
  const Rows batch(8);
  Alone own{{.batch = 8}}, whole{{.batch = 8}};
  for (int step = 0; step < 3; ++step) {
    own.forward(batch.view());
    own.backward();
    const auto a = own.step();
    const auto b = whole.step(batch.view());
    CHECK(a.loss == b.loss);
    CHECK(a.accuracy == b.accuracy);
  }
  for (std::size_t p = 0; p < own.parameters().size(); ++p)
    CHECK(own.parameters()[p].values() == whole.parameters()[p].values());
  CHECK_THROWS_WITH_AS(own.step(), "trainer: step needs forward and backward before it", ConfigError);
}

TEST_CASE("gradients of several backward passes add up, and may be read and changed before the step") {
  const Rows batch(8);
  Alone once{{.batch = 8, .optimizer = {.lr = 0.1f}}}, twice{{.batch = 8, .optimizer = {.lr = 0.1f}}};
  once.forward(batch.view());
  once.backward();
  twice.forward(batch.view());
  twice.backward();
  twice.forward(batch.view());
  twice.backward();
  const auto one = once.parameters()["linear.0.weight"].gradient(),
             two = twice.parameters()["linear.0.weight"].gradient();
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(two[i] == doctest::Approx(2 * one[i]).epsilon(1e-4));
  // A gradient of zero leaves Adam's first step without an update.
  const auto before = once.parameters()["linear.0.weight"].values();
  once.parameters()["linear.0.weight"].write_gradient(std::vector<float>(one.size()));
  const auto report = once.step();
  CHECK(once.parameters()["linear.0.weight"].values() == before);
  CHECK(report.loss == doctest::Approx(twice.step().loss));
}

TEST_CASE("state is visited by name, and a training that gets it goes on with the same bits") {
  const Rows first(8), second(8, 8);
  Alone trained{{.batch = 8}};
  trained.step(first.view());
  Keeper keeper;
  trained.visit_state(keeper, train::Visit::read);
  CHECK(keeper.counters.at("steps") == 1);
  CHECK(keeper.tensors.count("optimizer.exp_avg.conv2d.0.weight") == 1);
  CHECK(keeper.tensors.count("statistics.batch_norm.0.running_mean") == 1);
  CHECK(keeper.tensors.at("parameters.linear.0.bias") == trained.parameters()["linear.0.bias"].values());

  Alone resumed{{.batch = 8, .seed = 99}};
  keeper.restore = true;
  resumed.visit_state(keeper, train::Visit::write);
  CHECK(trained.step(second.view()).loss == resumed.step(second.view()).loss);
  for (std::size_t p = 0; p < trained.parameters().size(); ++p)
    CHECK(trained.parameters()[p].values() == resumed.parameters()[p].values());
}

TEST_CASE("state that ranks share out is gathered to what one rank has, and put back into shards") {
  for (const int ranks : {2, 3}) {
    Threads::World world(ranks);
    world.run([&](Threads endpoint) {
      const Rows batch(6), next(6, 6);
      Shards sharded{{.batch = 6}, endpoint};
      sharded.step(batch.view());
      Keeper keeper;
      sharded.visit_state(keeper, train::Visit::read);
      const auto& moments = keeper.tensors.at("optimizer.exp_avg_sq.conv2d.0.weight");
      CHECK(std::count(moments.begin(), moments.end(), 0.0f) == 0);
      Shards resumed{{.batch = 6}, endpoint};
      keeper.restore = true;
      resumed.visit_state(keeper, train::Visit::write);
      sharded.step(next.view());
      resumed.step(next.view());
      for (std::size_t p = 0; p < sharded.parameters().size(); ++p)
        CHECK(sharded.parameters()[p].values() == resumed.parameters()[p].values());
    });
  }
}
