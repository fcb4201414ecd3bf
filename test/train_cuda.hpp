// Trainer over exec::Cuda: run on the CPU by test_train_cuda.cpp, and on a GPU by test_train_cuda_gpu.cu.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "skip.hpp"
#include "train_state_copies.hpp"
#include "train_support.hpp"
#include <convoy/comm/policy/staged.hpp>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/models/transformer.hpp>
#include <convoy/optim/device.cuh>
#include <convoy/optim/muon.hpp>

namespace train_cuda {

using namespace train_test;

/// Batch statistics, taps that see only padding, dropout, and a bucket for each layer.
struct Mixed {
  static constexpr BucketOptions buckets{.first = 64, .others = 64};
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 8})));
    x = g.dropout(g.conv2d(g.max_pool(x, {.kernel = 8}), {.channels = 6, .kernel = 3}), {.p = 0.1f});
    x = g.linear(g.flatten(g.relu(x)), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

/// The results and reports of a training.
struct Trace {
  std::vector<float> parameters, predicted;
  std::vector<double> losses, norms;
  std::vector<std::int64_t> steps;
  double accuracy = 0, test_loss = 0;
  friend bool operator==(const Trace&, const Trace&) = default;
};

struct Settings {
  int batch = 6, accumulate = 1, epochs = 2;
  float clip = 0;
  bool sync_batch_norm = false;
};

template <class Trainer>
typename Trainer::Config config_of(const Settings& settings) {
  typename Trainer::Config config;
  config.batch = settings.batch;
  config.accumulate = settings.accumulate;
  config.optimizer.lr = 0.05f;
  config.optimizer.momentum = 0.9f;
  config.optimizer.weight_decay = 0.01f;
  // With a small epsilon, AdamW would take a full-size step along a gradient that is only rounding error.
  if constexpr (requires { config.optimizer.epsilon; }) config.optimizer.epsilon = 1e-3f;
  config.guard.max_norm = settings.clip;
  config.sync_batch_norm = settings.sync_batch_norm;
  return config;
}

/// Sentences of which half the words equal the label; learnable, and every sample is a function of its index.
class Sentences {
 public:
  static constexpr int length = 6, vocabulary = 30;
  explicit Sentences(std::size_t size, std::uint64_t seed = 7) : size_(size), seed_(seed) {}
  std::size_t size() const { return size_; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    Philox random(seed_, index);
    const int label = static_cast<int>(index % classes);
    for (i32& word : out.as<i32>(0))
      word = random.uniform(0, 2) < 1 ? label : static_cast<i32>(random.below(vocabulary));
    out.as<i32>(1)[0] = 1 + static_cast<i32>(random.below(length));
    out.as<i32>(2)[0] = label;
  }

 private:
  std::size_t size_;
  std::uint64_t seed_;
  std::array<data::Field, 3> fields_ = {data::Field{"input_ids", DType::i32, Shape{length}},
                                        data::Field{"lengths", DType::i32, {}},
                                        data::Field{"label", DType::i32, {}}};
};
/// Weights that are taller than wide, wider than tall, and square.
using Transformer = models::Transformer<1, 16, 2, 32, Sentences::length, Sentences::vocabulary, classes>;

template <class Model>
using SamplesOf = std::conditional_t<std::is_same_v<Model, Transformer>, Sentences, Blobs>;

template <class Trainer, class Set = Blobs, class Test = Blobs>
Trace trace_of(Trainer& trainer, const Settings& settings, const Set& training = Blobs(67),
               bool resident = false, const Test& test = Blobs(19, 8)) {
  Trace trace;
  const auto report = trainer.fit(training, {.epochs = settings.epochs,
                                             .validate = &test,
                                             .on_step =
                                                 [&](const train::StepReport& step) {
                                                   trace.steps.push_back(step.step);
                                                   trace.losses.push_back(step.loss);
                                                   trace.norms.push_back(step.gradient_norm.value_or(-1));
                                                   return train::Control::go_on;
                                                 },
                                             .log = nullptr,
                                             .resident = resident});
  trace.accuracy = report.epochs.back().test.accuracy.value();
  trace.test_loss = report.epochs.back().test.loss;
  trace.predicted = trainer.predict(test).values;
  for (const auto& parameter : trainer.parameters())
    for (const float value : parameter.values()) trace.parameters.push_back(value);
  return trace;
}

template <class Exec, class Rule = optim::Sgd, class Model = Mixed>
using Alone = Trainer<Model, Rule, comm::None, Exec>;

template <class Exec, class Rule = optim::Sgd, class Model = Mixed>
Trace alone(const Settings& settings, const typename Exec::Options& options = {}) {
  using T = Alone<Exec, Rule, Model>;
  auto config = config_of<T>(settings);
  config.exec = options;
  T trainer(config);
  return trace_of(trainer, settings, SamplesOf<Model>(67), false, SamplesOf<Model>(19, 8));
}

/// Relative distance, by norms.
template <class A, class B>
double apart(const A& a, const B& b) {
  double all = 0, off = 0;
  REQUIRE(std::size(a) == std::size(b));
  for (std::size_t i = 0; i < std::size(a); ++i) {
    all += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    off += (static_cast<double>(a[i]) - static_cast<double>(b[i])) *
           (static_cast<double>(a[i]) - static_cast<double>(b[i]));
  }
  return std::sqrt(off / all);
}

template <class Exec, class Comm>
std::vector<Trace> together(int ranks, const Settings& settings) {
  using T = Trainer<Mixed, optim::Sgd, Comm, Exec>;
  std::vector<Trace> all(static_cast<std::size_t>(ranks));
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    T trainer(config_of<T>(settings), endpoint);
    all[static_cast<std::size_t>(endpoint.rank())] = trace_of(trainer, settings);
  });
  return all;
}

using Ring = comm::Ring<transport::Threads>;

/// Reads or writes the loss scale among the visited state.
struct ScaleState {
  std::int64_t exponent = 0, steady = 0;
  bool writes = false;
  void tensor(std::string_view, const Shape&, std::span<float>) {}
  void counter(std::string_view name, std::int64_t& number) {
    for (const auto& [known, own] : {std::pair{"ranks.0.exec.loss_scale_exponent", &exponent},
                                     std::pair{"ranks.0.exec.steps_of_loss_scale", &steady}})
      if (name == known) writes ? number = *own : * own = number;
  }
  void real(std::string_view, double&) {}
};

}  // namespace train_cuda

template <class Rule, class Model>
struct TrainedBy {
  template <class Exec>
  static train_cuda::Trace trace(const train_cuda::Settings& settings,
                                 const typename Exec::Options& options = {}) {
    return train_cuda::alone<Exec, Rule, Model>(settings, options);
  }
};
using SgdOfMixed = TrainedBy<convoy::optim::Sgd, train_cuda::Mixed>;
using MuonOfMixed = TrainedBy<convoy::optim::Muon, train_cuda::Mixed>;
using MuonOfTransformer = TrainedBy<convoy::optim::Muon, train_cuda::Transformer>;

TEST_CASE_TEMPLATE("cuda: a training gives what the reference gives, and the same bits each time", By,
                   SgdOfMixed, MuonOfMixed, MuonOfTransformer) {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_cuda;
  for (const Settings& settings : {Settings{}, Settings{.batch = 3, .accumulate = 2, .clip = 0.5f}}) {
    CAPTURE(settings.accumulate);
    const Trace expected = By::template trace<exec::Reference<f32>>(settings);
    const Trace seen = By::template trace<exec::Cuda<f32>>(settings);
    CHECK(apart(seen.parameters, expected.parameters) < 1e-4);
    CHECK(apart(seen.losses, expected.losses) < 1e-4);
    CHECK(apart(seen.norms, expected.norms) < 1e-4);
    CHECK(apart(seen.predicted, expected.predicted) < 1e-3);
    CHECK(seen.steps == expected.steps);
    CHECK(seen == By::template trace<exec::Cuda<f32>>(settings));
    CHECK(seen == By::template trace<exec::Cuda<f32>>(settings, {.graphs = false}));
  }
}

TEST_CASE("cuda: a training in 16 bits learns what one in f32 does") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_cuda;
  const Settings settings{.epochs = 4};
  const Trace expected = alone<exec::Reference<f32>>(settings);
  CHECK(apart(alone<exec::Cuda<bf16>>(settings).parameters, expected.parameters) < 0.1);
  CHECK(apart(alone<exec::Cuda<f16>>(settings).parameters, expected.parameters) < 0.1);
}

TEST_CASE("cuda: the scale of losses in f16 is part of a training's state") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_cuda;
  using Half = train_cuda::Alone<exec::Cuda<f16>>;
  const Blobs training(36);
  Half trainer(config_of<Half>({}));
  trainer.fit(training, {.epochs = 1, .log = nullptr});
  ScaleState state;
  trainer.visit_state(state, train::Visit::read);
  CHECK(state.exponent == 16);
  CHECK(state.steady == 6);
  Half other(config_of<Half>({}));
  ScaleState given{.exponent = 3, .steady = 1, .writes = true};
  other.visit_state(given, train::Visit::write);
  other.fit(training, {.epochs = 1, .log = nullptr});
  other.visit_state(state, train::Visit::read);
  CHECK(state.exponent == 3);
  CHECK(state.steady == 7);
  given = {.exponent = 1000, .writes = true};
  CHECK_THROWS_AS(other.visit_state(given, train::Visit::write), ConfigError);
}

TEST_CASE("cuda: a timeline has the phases of every step, one after the other, and does not change it") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_cuda;
  using T = Alone<exec::Cuda<f32>>;
  for (const Settings& settings : {Settings{}, Settings{.batch = 3, .accumulate = 2, .clip = 0.5f}}) {
    CAPTURE(settings.accumulate);
    auto config = config_of<T>(settings);
    config.exec.candidates = 1;  // with two, timing would decide the bits
    T plain(config);
    const Trace expected = trace_of(plain, settings);
    train::Timeline timeline;
    config.timeline = &timeline;
    T timed(config);
    CHECK(trace_of(timed, settings) == expected);
    int passes = 0, updates = 0;
    double free_from = 0;
    for (const train::TimelineEvent& event : timeline.events()) {
      const std::string_view name(event.name.data());
      passes += name == "forward" || name == "backward";
      updates += name == "update";
      CHECK(event.begin >= free_from);
      CHECK(event.end >= event.begin);
      free_from = event.end;
    }
    const int batches = settings.epochs * ((67 + settings.batch - 1) / settings.batch);
    CHECK(passes == 2 * batches);
    CHECK(updates == static_cast<int>(expected.steps.size()));
  }
}

TEST_CASE("cuda: ranks exchange through host memory") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_cuda;
  for (const int ranks : {1, 2}) {
    const auto expected = together<exec::Reference<f32>, Ring>(ranks, {});
    const auto seen = together<exec::Cuda<f32>, comm::Staged<Ring, memory::Device>>(ranks, {});
    for (const Trace& trace : seen) {
      CHECK(trace.parameters == seen[0].parameters);
      CHECK(apart(trace.parameters, expected[0].parameters) < 1e-4);
    }
    const auto sharded =
        together<exec::Cuda<f32>, comm::Staged<comm::Sharded<Ring>, memory::Device>>(ranks, {});
    CHECK(apart(sharded[0].parameters, expected[0].parameters) < 1e-4);
  }
}

TEST_CASE("cuda: a copy of the state stays what it was while training continues") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_cuda;
  using Divided = comm::Staged<comm::Sharded<Ring>, memory::Device>;
  compare_copies<Trainer<Mixed, optim::Sgd, comm::Staged<Ring, memory::Device>, exec::Cuda<f32>>>(2);
  compare_copies<Trainer<Mixed, optim::Sgd, Divided, exec::Cuda<f32>>>(2);
}

TEST_CASE("cuda: batch norms use the rows of all ranks") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_cuda;
  using Staged = comm::Staged<Ring, memory::Device>;
  for (const Settings& settings :
       {Settings{.sync_batch_norm = true}, Settings{.batch = 3, .accumulate = 2, .sync_batch_norm = true}}) {
    CAPTURE(settings.accumulate);
    Settings each = settings;
    each.sync_batch_norm = false;
    const auto expected = together<exec::Reference<f32>, Ring>(2, settings);
    const auto seen = together<exec::Cuda<f32>, Staged>(2, settings);
    CHECK(seen[0].parameters == seen[1].parameters);
    CHECK(apart(seen[0].parameters, expected[0].parameters) < 1e-4);
    CHECK(apart(seen[0].predicted, expected[0].predicted) < 1e-3);
    CHECK(apart(together<exec::Cuda<f32>, Staged>(2, each)[0].parameters, expected[0].parameters) > 1e-3);
  }
}
