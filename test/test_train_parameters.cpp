// Parameters by name, a user's own loop, and the state of a training, visited by name in canonical form.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/codec/half.hpp>
#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/codec/power_sgd.hpp>
#include <convoy/comm/codec/top_k.hpp>
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/compressed.hpp>
#include <convoy/comm/policy/weighted.hpp>

using namespace convoy;
using namespace train_test;
using exec::Reference;
using transport::Threads;

namespace {

using Alone = Trainer<Normed, optim::Adam, comm::None, Reference<float>>;
using Shards = Trainer<Normed, optim::Adam, comm::Sharded<comm::Ring<Threads>>, Reference<float>>;

struct FirstFrozen {
  static constexpr void define(auto& g) {
    auto x = g.linear(g.flatten(g.input("image", image)), {.features = 6, .frozen = true});
    x = g.linear(g.linear(x, {.features = 8}), {.features = classes});
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

struct Dropping {
  static constexpr void define(auto& g) {
    auto x = g.dropout(g.flatten(g.input("image", image)));
    g.output("dropped", x);
    g.loss(g.cross_entropy(g.linear(x, {.features = classes}), g.label("label", classes)));
  }
};

/// Keeps the state that it visits or, with `restore`, writes it back.
struct Keeper {
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, std::int64_t> counters;
  std::map<std::string, double> reals;
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
  void real(std::string_view name, double& value) {
    double& kept = reals[std::string(name)];
    (restore ? value : kept) = restore ? kept : value;
  }
};

/// A batch of the blobs, in the form that an Exec takes.
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

/// The outputs of dropout for rows of ones in two passes of a step: those of all ranks' rows in the first
/// pass, then in the second. `rows` has the number of rows of each rank.
template <class Comm>
std::vector<std::vector<float>> drawn(int batch, const std::vector<int>& rows, const auto&... of_comm) {
  const int all = std::accumulate(rows.begin(), rows.end(), 0);
  std::vector<std::vector<float>> left(static_cast<std::size_t>(2 * all));
  Threads::World(static_cast<int>(rows.size())).run([&](const Threads& endpoint) {
    Trainer<Dropping, optim::Sgd, Comm, Reference<float>> trainer{{.batch = batch}, of_comm..., endpoint};
    const auto me = rows.begin() + trainer.rank();
    auto to = static_cast<std::size_t>(std::accumulate(rows.begin(), me, 0));
    Rows own(static_cast<std::size_t>(*me));
    std::fill(own.images.begin(), own.images.end(), 1.0f);
    for (int pass = 0; pass < 2; ++pass, to += static_cast<std::size_t>(all - *me)) {
      trainer.forward(own.view(), all);
      trainer.backward();
      const auto output = trainer.exec().output(0);
      const auto size = static_cast<std::ptrdiff_t>(output.size()) / *me;
      for (auto row = output.begin(); row != output.end(); row += size) left[to++].assign(row, row + size);
    }
  });
  return left;
}

}  // namespace

TEST_CASE("an exchange sees the trained parameters as matrices, in the order of the arena") {
  const Plan& plan = plan_of<FirstFrozen>;
  const std::vector<std::int64_t> panels = {4, 4, 4, 4, 0, 4};  // parameter 4 is not stored as a matrix
  REQUIRE(plan.parameter_list.size() == panels.size());
  const std::vector<comm::Matrix> all = train::matrices(plan, panels);
  REQUIRE(all.size() == 4);
  std::int64_t end = 0;
  for (const comm::Matrix& matrix : all) {
    CHECK(matrix.range.begin >= end);
    end = matrix.range.end;
  }
  const auto expect = [&](std::size_t p, std::int64_t rows, std::int64_t columns, std::int64_t panel) {
    CAPTURE(p);
    const Range live = plan.slots[p].live;
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const comm::Matrix& m) { return m.range == live; });
    REQUIRE(found != all.end());
    CHECK(found->rows == rows);
    CHECK(found->columns == columns);
    CHECK(found->panel == panel);
  };
  expect(2, 8, 6, 4);  // the weight of the second layer, and its bias
  expect(3, 1, 8, 1);
  expect(4, 1, classes * 8, 1);
  expect(5, 1, classes, 1);
}

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

TEST_CASE("a user's own loop makes the same steps as step(batch)") {
  const Rows batch(8);
  Alone own{{.batch = 8}}, whole{{.batch = 8}};
  for (int step = 0; step < 3; ++step) {
    own.forward(batch.view());
    own.backward();
    const auto a = own.step();
    const auto b = whole.step(batch.view());
    CHECK(a.loss == b.loss);
    CHECK(a.accuracy == b.accuracy);
    // The seconds of a step are those of all its parts.
    for (const auto& report : {a, b}) CHECK(report.seconds >= report.backward_seconds.value());
  }
  for (std::size_t p = 0; p < own.parameters().size(); ++p)
    CHECK(own.parameters()[p].values() == whole.parameters()[p].values());
  CHECK_THROWS_WITH_AS(
      own.step(), "trainer: step needs at least one forward before it, and a backward after each forward",
      ConfigError);
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
  // With a gradient of zero, Adam's first step does not change the parameter.
  const auto before = once.parameters()["linear.0.weight"].values();
  once.parameters()["linear.0.weight"].write_gradient(std::vector<float>(one.size()));
  const auto report = once.step();
  CHECK(once.parameters()["linear.0.weight"].values() == before);
  CHECK(report.loss == doctest::Approx(twice.step().loss));
}

TEST_CASE("the gradient that is read after a step is that before clipping") {
  const Rows batch(8);
  Alone clipped{{.batch = 8, .guard = {.max_norm = 1e-3f}}}, free{{.batch = 8}};
  CHECK(clipped.step(batch.view()).gradient_norm.value() > 1e-3);
  free.step(batch.view());
  CHECK(clipped.parameters()["linear.0.weight"].gradient() ==
        free.parameters()["linear.0.weight"].gradient());
}

TEST_CASE(
    "each batch of a user's step counts as its own mean, whatever its size, with no row on a rank, too") {
  const Rows large(8), small(3, 8);
  Alone first{{.batch = 8, .optimizer = {.lr = 0.1f}}}, second{{.batch = 8, .optimizer = {.lr = 0.1f}}},
      both{{.batch = 8, .optimizer = {.lr = 0.1f}}};
  first.forward(large.view());
  first.backward();
  second.forward(small.view());
  second.backward();
  for (const Rows* rows : {&large, &small}) {
    both.forward(rows->view());
    both.backward();
  }
  const auto a = first.parameters()["linear.0.weight"].gradient(),
             b = second.parameters()["linear.0.weight"].gradient(),
             sum = both.parameters()["linear.0.weight"].gradient();
  for (std::size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == doctest::Approx(a[i] + b[i]).epsilon(1e-4));
  CHECK(both.step().loss == doctest::Approx((first.step().loss + second.step().loss) / 2));

  std::vector<float> expected;
  std::atomic<int> right{0};
  {
    Alone alone{{.batch = 8, .optimizer = {.lr = 0.1f}}};
    alone.forward(small.view());
    alone.backward();
    alone.step();
    expected = alone.parameters()["linear.0.weight"].values();
  }
  Threads::World(2).run([&](const Threads& endpoint) {
    Shards trainer{{.batch = 8, .optimizer = {.lr = 0.1f}}, endpoint};
    const exec::BatchView none{small.fields, 0};
    trainer.forward(trainer.rank() == 0 ? small.view() : none, 3);
    trainer.backward();
    const auto report = trainer.step();
    const auto values = trainer.parameters()["linear.0.weight"].values();
    float off = 0;
    for (std::size_t i = 0; i < values.size(); ++i) off = std::max(off, std::abs(values[i] - expected[i]));
    right += report.rows == 3 && off < 1e-5f;
  });
  CHECK(right == 2);
}

TEST_CASE("dropout differs in each pass, each step and on each rank") {
  const Rows batch(4);
  std::vector<std::vector<float>> seen;
  std::mutex mutex;
  Threads::World(2).run([&](const Threads& endpoint) {
    Trainer<Dropping, optim::Sgd, comm::Ring<Threads>, Reference<float>> trainer{
        {.batch = 4, .optimizer = {.lr = 0}}, endpoint};
    for (int step = 0; step < 3; ++step) {
      for (int pass = 0; pass <= step; ++pass) {
        trainer.forward(batch.view());
        trainer.backward();
        const auto output = trainer.exec().output(0);
        const std::lock_guard lock(mutex);
        seen.emplace_back(output.begin(), output.end());
      }
      trainer.step();
    }
  });
  std::sort(seen.begin(), seen.end());
  CHECK(seen.size() == 12);
  CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
}

TEST_CASE("ranks draw dropout for their own rows, as one rank does if each has its share of a step") {
  using Ring = comm::Ring<Threads>;
  const auto alone = drawn<Ring>(12, {12});
  CHECK(drawn<Ring>(4, {4, 4, 4}) == alone);
  CHECK(drawn<comm::Weighted<Ring>>(4, {6, 3, 3}, comm::WeightedOptions{{2, 1, 1}}) == alone);
  // The shares are 4 rows each: rank 1 has as many, the others have not. All drawn rows still differ.
  auto uneven = drawn<Ring>(6, {6, 4, 2});
  REQUIRE(uneven.size() == 24);
  std::sort(uneven.begin(), uneven.end());
  CHECK(std::adjacent_find(uneven.begin(), uneven.end()) == uneven.end());
}

TEST_CASE("state is visited by name, and a training that gets it resumes with the same bits") {
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

TEST_CASE("sharded state is gathered to the state of one rank, and put back into shards") {
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

TEST_CASE_TEMPLATE("what a codec left out is part of its rank's state", Codec, comm::codec::Bf16,
                   comm::codec::Int8, comm::codec::TopK, comm::codec::PowerSgd) {
  using Encoded =
      Trainer<Normed, optim::Adam, comm::Compressed<comm::Ring<Threads>, Codec>, Reference<float>>;
  Codec codec{};
  if constexpr (std::is_same_v<Codec, comm::codec::TopK>) codec = {.fraction = 0.1, .warm_up_steps = 0};
  if constexpr (std::is_same_v<Codec, comm::codec::PowerSgd>) codec = {.rank = 1, .warm_up_steps = 1};
  Threads::World(2).run([&](Threads endpoint) {
    const auto make = [&] {
      return std::make_unique<Encoded>(typename Encoded::Config{.batch = 4}, endpoint, comm::Options{},
                                       codec);
    };
    const auto rows = [&](std::size_t step) {
      return Rows(4, 8 * step + 4 * static_cast<std::size_t>(endpoint.rank()));
    };
    const auto trained = make();
    for (std::size_t step = 0; step < 3; ++step) trained->step(rows(step).view());
    Keeper keeper;
    trained->visit_state(keeper, train::Visit::read);
    const std::string own = concat("ranks.", endpoint.rank(), ".exchange.");
    const auto& left_out = keeper.tensors.at(own + "error_feedback.linear.0.weight");
    CHECK(std::count(left_out.begin(), left_out.end(), 0.0f) < static_cast<std::ptrdiff_t>(left_out.size()));
    CHECK(keeper.counters.at(own + "steps") == 3);

    // A resumed training has the same bits with what was left out, and others without.
    keeper.restore = true;
    const auto resumed = make(), forgetful = make();
    resumed->visit_state(keeper, train::Visit::write);
    for (auto& [name, values] : keeper.tensors)
      if (name.starts_with("ranks.")) values.assign(values.size(), 0.0f);
    forgetful->visit_state(keeper, train::Visit::write);
    bool differs = false;
    for (std::size_t step = 3; step < 5; ++step) {
      trained->step(rows(step).view());
      resumed->step(rows(step).view());
      forgetful->step(rows(step).view());
    }
    for (std::size_t p = 0; p < trained->parameters().size(); ++p) {
      const auto values = trained->parameters()[p].values();
      CHECK(values == resumed->parameters()[p].values());
      differs = differs || values != forgetful->parameters()[p].values();
    }
    CHECK(differs);
  });
}

TEST_CASE("a server's counts of updates are state, because an optimizer corrects its first steps by them") {
  using Served = Trainer<Normed, optim::Adam, comm::ParameterServer<Threads>, Reference<float>>;
  Threads::World(2).run([&](Threads endpoint) {
    const Blobs blobs(64);
    const Served::Config config{.batch = 8, .optimizer = {.lr = 0.05f}};
    Served trained(config, endpoint);
    trained.fit(blobs, {.log = nullptr});
    Keeper keeper;
    trained.visit_state(keeper, train::Visit::read);
    CHECK(keeper.counters.at("exchange.updates") == 4);  // on the rank that does not serve, too
    keeper.restore = true;
    Served resumed(config, endpoint), forgetful(config, endpoint);
    resumed.visit_state(keeper, train::Visit::write);
    keeper.counters.at("exchange.updates") = 0;
    forgetful.visit_state(keeper, train::Visit::write);
    for (Served* each : {&trained, &resumed, &forgetful}) each->fit(blobs, {.log = nullptr});
    bool differs = false;
    for (std::size_t p = 0; p < trained.parameters().size(); ++p) {
      CHECK(trained.parameters()[p].values() == resumed.parameters()[p].values());
      differs = differs || trained.parameters()[p].values() != forgetful.parameters()[p].values();
    }
    CHECK(differs);
  });
}
