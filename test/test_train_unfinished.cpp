// Unfinished work: a step of a user's own loop that was not completed, a fit that an exception ended, and an
// evaluation in the middle of either.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "remote_exec.hpp"
#include "train_support.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>

using namespace convoy;
using namespace train_test;
using transport::Threads;

namespace {

using Near = Trainer<Bucketed, optim::Adam, comm::None, exec::Reference<f32>>;
using Far = Trainer<Bucketed, optim::Adam, comm::AnyIn<remote_test::Remote>, remote_test::RemoteExec>;

/// The number of labels that count is known only after a batch was read.
struct Counting {
  static constexpr void define(auto& g) {
    const auto x = g.linear(g.flatten(g.input("image", image)), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes, {.ignore = 2})));
  }
};

const Blobs training(50), testing(20, 8);

/// Updates every bucket so many times a step.
template <int times>
class Updating : public comm::None {
 public:
  void open(const comm::Fingerprint&, const comm::Layout& layout) {
    buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  }
  void finish(comm::Update update) {
    for (int i = 0; i < times; ++i)
      for (const Range& bucket : buckets_) update(bucket, 1.0f);
  }

 private:
  std::vector<Range> buckets_;
};

struct GaveUp : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Blobs that throw at read number `at`, counting from 1; 0: never.
class Failing : public Blobs {
 public:
  explicit Failing(int at) : Blobs(50), at_(at) {}
  void read(std::size_t index, data::Sample out) const {
    if (at_ > 0 && --at_ == 0) throw GaveUp("the disk is gone");
    Blobs::read(index, out);
  }

 private:
  mutable int at_;
};

/// Rows [from, from + 10) of the blobs.
struct Batch {
  explicit Batch(std::size_t from) : samples(training.fields(), 10) {
    for (std::size_t i = 0; i < 10; ++i) training.read(from + i, samples.row(i));
    fields = {samples.columns()[0], samples.columns()[1]};
  }
  exec::BatchView view() const { return {fields, 10}; }
  data::Samples samples;
  std::vector<const void*> fields;
};

template <class T>
typename T::Config config(int accumulate) {
  return {.batch = 5, .accumulate = accumulate, .optimizer = {.lr = 0.02f}, .guard = {.max_norm = 1}};
}

/// The reports of a fit of `steps` steps, and the parameters after it.
template <class T>
std::vector<double> fitted(T& trainer, std::int64_t steps, bool evaluates = false) {
  std::vector<double> all;
  const auto report =
      trainer.fit(training, {.steps = steps,
                             .on_step =
                                 [&](const train::StepReport& step) {
                                   all.push_back(static_cast<double>(step.step));
                                   all.push_back(step.loss);
                                   all.push_back(step.gradient_norm.value());
                                   if (evaluates)
                                     CHECK(trainer.evaluate(testing).loss == trainer.evaluate(testing).loss);
                                   return train::Control::go_on;
                                 },
                             .log = nullptr});
  CHECK(report.steps == steps);
  const auto parameters = all_parameters(trainer);
  all.insert(all.end(), parameters.begin(), parameters.end());
  return all;
}

}  // namespace

TEST_CASE_TEMPLATE("a step that was not completed has no effect", T, Near, Far) {
  const Batch first(0), second(20);
  T whole{{.batch = 10, .guard = {.max_norm = 1}}}, left{{.batch = 10, .guard = {.max_norm = 1}}};
  left.forward(second.view());
  left.backward();
  CHECK(left.step(first.view()).loss == whole.step(first.view()).loss);
  for (const bool backward : {true, false}) {
    left.forward(second.view());
    if (backward) left.backward();
    CHECK(fitted(left, 3) == fitted(whole, 3));
  }
}

TEST_CASE_TEMPLATE("a fit that an exception ended is as if it had never begun its last step", T, Near, Far) {
  for (const int accumulate : {1, 2, 3})
    for (const int read : {1, 4, 8, 23, 41}) {
      CAPTURE(accumulate);
      CAPTURE(read);
      T whole{config<T>(accumulate)}, ended{config<T>(accumulate)};
      CHECK_THROWS_AS(ended.fit(Failing(read), {.log = nullptr}), GaveUp);
      if (ended.steps_done() > 0) fitted(whole, ended.steps_done());
      CHECK(fitted(ended, 3) == fitted(whole, 3));
    }
}

TEST_CASE("a data set that fails while labels are counted ahead ends a fit between two steps") {
  using Counted = Trainer<Counting, optim::Adam, comm::Ring<Threads>, exec::Reference<f32>>;
  for (const int read : {1, 9, 14, 23, 41}) {
    CAPTURE(read);
    Counted whole{config<Counted>(1), Threads()}, ended{config<Counted>(1), Threads()};
    CHECK_THROWS_AS(ended.fit(Failing(read), {.log = nullptr}), GaveUp);
    if (ended.steps_done() > 0) fitted(whole, ended.steps_done());
    CHECK(fitted(ended, 3) == fitted(whole, 3));
  }
}

TEST_CASE_TEMPLATE("a fit that a callback ended leaves no reports to the next one", T, Near, Far) {
  T whole{config<T>(2)}, ended{config<T>(2)};
  CHECK_THROWS_AS(
      ended.fit(training,
                {.on_step = [](const auto&) -> train::Control { throw GaveUp("enough"); }, .log = nullptr}),
      GaveUp);
  fitted(whole, ended.steps_done());
  CHECK(fitted(ended, 5) == fitted(whole, 5));
}

TEST_CASE_TEMPLATE("an evaluation in the middle of a step or a fit does not affect it", T, Near, Far) {
  const Batch first(0), second(20);
  T plain{{.batch = 10, .guard = {.max_norm = 1}}}, between{{.batch = 10, .guard = {.max_norm = 1}}};
  const double before = plain.evaluate(testing).loss;
  for (const Batch* batch : {&first, &second})
    for (T* trainer : {&plain, &between}) {
      trainer->forward(batch->view());
      trainer->backward();
      if (trainer == &between) {
        CHECK(trainer->evaluate(testing).loss == before);
        trainer->predict(testing);
      }
    }
  const auto a = plain.step(), b = between.step();
  CHECK(a.loss == b.loss);
  CHECK(a.accuracy == b.accuracy);
  CHECK(fitted(plain, 5) == fitted(between, 5, true));
}

TEST_CASE_TEMPLATE("a callback of a fit cannot begin a step or another fit, and the fit goes on", T, Near,
                   Far) {
  const Batch batch(0);
  T plain{{.batch = 10}}, disturbed{{.batch = 10}};
  std::vector<double> losses, disturbed_losses;
  plain.fit(training, {.on_step =
                           [&](const train::StepReport& step) {
                             losses.push_back(step.loss);
                             return train::Control::go_on;
                           },
                       .log = nullptr});
  const auto expect_refusals = [&] {
    const char* const sentence =
        "trainer: a fit is under way, and its callbacks must not begin a step or another fit";
    CHECK_THROWS_WITH_AS(disturbed.forward(batch.view()), sentence, ConfigError);
    CHECK_THROWS_WITH_AS(disturbed.step(batch.view()), sentence, ConfigError);
    CHECK_THROWS_WITH_AS(disturbed.fit(training, {.log = nullptr}), sentence, ConfigError);
    return train::Control::go_on;
  };
  disturbed.fit(training, {.on_step =
                               [&](const train::StepReport& step) {
                                 disturbed_losses.push_back(step.loss);
                                 return expect_refusals();
                               },
                           .on_epoch = [&](const train::EpochReport&) { return expect_refusals(); },
                           .log = nullptr});
  CHECK(losses == disturbed_losses);
  disturbed.step(batch.view());
  plain.step(batch.view());
  CHECK(all_parameters(plain) == all_parameters(disturbed));
}

TEST_CASE_TEMPLATE("an evaluation between a forward and its backward is refused, and the step goes on", T,
                   Near, Far) {
  const Batch batch(0);
  T plain{{.batch = 10}}, between{{.batch = 10}};
  const char* const sentence =
      "trainer: evaluate and predict must not come between a forward and its backward, because they "
      "overwrite "
      "what backward needs";
  for (T* trainer : {&plain, &between}) {
    trainer->forward(batch.view());
    if (trainer == &between) {
      CHECK_THROWS_WITH_AS(trainer->predict(testing), sentence, ConfigError);
      CHECK_THROWS_WITH_AS(trainer->evaluate(testing), sentence, ConfigError);
    }
    trainer->backward();
    trainer->step();
  }
  CHECK(all_parameters(plain) == all_parameters(between));
}

TEST_CASE("the exchange cannot be measured in the middle of a step, whose gradients it would overwrite") {
  const Batch batch(0);
  Near plain{{.batch = 10}}, measured{{.batch = 10}};
  const auto expect_refusal = [&] {
    CHECK_THROWS_WITH_AS(measured.exchange_seconds(),
                         "trainer: exchange_seconds must not come between a forward and the step that it "
                         "belongs to, because it overwrites gradients",
                         ConfigError);
  };
  plain.step(batch.view());
  measured.forward(batch.view());
  expect_refusal();
  measured.backward();
  expect_refusal();
  measured.step();
  CHECK(measured.exchange_seconds() >= 0);
  CHECK(all_parameters(plain) == all_parameters(measured));
}

TEST_CASE("a rank without rows of a batch needs no fields, and a batch with rows needs all of them") {
  using Counted = Trainer<Counting, optim::Adam, comm::Ring<Threads>, exec::Reference<f32>>;
  const Batch batch(0);
  Threads::World(2).run([&](const Threads& endpoint) {
    Counted trainer{{.batch = 10}, endpoint};
    const exec::BatchView mine = endpoint.rank() == 0 ? batch.view() : exec::BatchView{};
    CHECK(trainer.step(mine, 10).rows == 10);
    trainer.forward(mine, 10);
    trainer.backward();
    CHECK(trainer.step().rows == 10);
  });
  Counted trainer{{.batch = 10}, Threads()};
  const std::vector<const void*> image_alone(1, batch.fields[0]);
  CHECK_THROWS_WITH_AS(trainer.step({image_alone, 10}),
                       "exec: a batch of 1 fields was given to a model of 2 inputs and labels", ConfigError);
  CHECK_THROWS_WITH_AS(trainer.step(batch.view(), 3),
                       "trainer: a batch of 10 rows cannot be part of a step of 3", ConfigError);
}

TEST_CASE_TEMPLATE("an evaluation that an exception ended leaves no results to later ones", T, Near, Far) {
  for (const int read : {1, 12, 23, 41}) {
    CAPTURE(read);
    T whole{config<T>(1)}, ended{config<T>(1)};
    const double loss = whole.evaluate(testing).loss;
    CHECK_THROWS_AS(ended.evaluate(Failing(read)), GaveUp);
    CHECK(ended.evaluate(testing).loss == loss);
    CHECK_THROWS_AS(ended.predict(Failing(read)), GaveUp);
    CHECK(ended.predict(testing).values == whole.predict(testing).values);
    CHECK(fitted(ended, 3) == fitted(whole, 3));
  }
}

TEST_CASE("a step needs a backward for each forward, and an exchange that serves it") {
  const Batch batch(0);
  Near trainer{{.batch = 10}};
  trainer.step(batch.view());
  const auto before = all_parameters(trainer);
  const char* const sentence =
      "trainer: step needs at least one forward before it, and a backward after each forward";
  trainer.forward(batch.view());
  CHECK_THROWS_WITH_AS(trainer.step(), sentence, ConfigError);
  trainer.backward();
  trainer.forward(batch.view());
  CHECK_THROWS_WITH_AS(trainer.step(), sentence, ConfigError);
  CHECK(all_parameters(trainer) == before);
  trainer.backward();
  trainer.step();
  CHECK(all_parameters(trainer) != before);

  Threads::World(2).run([&](const Threads& endpoint) {
    Trainer<Plain, optim::Adam, comm::ParameterServer<Threads>, exec::Reference<f32>> served{{.batch = 10},
                                                                                             endpoint};
    const char* const refusal =
        "trainer: the servers of the exchange ps do not serve here; call fit, or make the steps within "
        "trainer.with_servers";
    CHECK_THROWS_WITH_AS(served.step(batch.view()), refusal, ConfigError);
    CHECK_THROWS_WITH_AS(served.forward(batch.view()), refusal, ConfigError);
    CHECK(served.fit(training, {.log = nullptr}).steps == 3);
  });
}

TEST_CASE_TEMPLATE("an exchange that does not update each of its elements once is refused", Comm, Updating<0>,
                   Updating<2>) {
  const auto refusal = [] {
    try {
      Trainer<Plain, optim::Adam, Comm, exec::Reference<f32>>{{.batch = 10}}.fit(training, {.log = nullptr});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  }();
  const auto elements = plan_of<Plain>.sizes.exchanged;
  CHECK(refusal == concat("trainer: the exchange none updated ",
                          std::is_same_v<Comm, Updating<0>> ? 0 : 2 * elements,
                          " elements in step 0 on rank 0, but its updates() names ", elements,
                          ": finish must update each of these once"));
  Trainer<Plain, optim::Adam, Updating<1>, exec::Reference<f32>> trainer{{.batch = 10}};
  CHECK(trainer.fit(training, {.log = nullptr}).steps == 5);
}
