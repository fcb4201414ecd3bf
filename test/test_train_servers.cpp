// NEEDS: host
// Servers on the ranks of workers: a server writes parameters only after the backward that reads them, and
// serves only a fit that begins. A fit follows one that an exception has ended. Servers that are ranks of
// their own take part when all ranks compare numbers. Servers serve a user's own loop, too.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/state.hpp>

using namespace train_test;

namespace {

using Ring = comm::Ring<transport::Threads>;
using Levels = comm::Hierarchical<Ring, comm::Tree<transport::Threads>, schedule::Every<2>>;

constexpr int ignored = 2;

/// Counts only some of its labels.
struct Counting {
  static constexpr void define(auto& g) {
    const auto x = g.linear(g.flatten(g.input("image", image)), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes, {.ignore = ignored})));
  }
};

/// The same image in each row, and a label in every third one: the mean over any rows with a label is the
/// same.
class Same {
 public:
  explicit Same(std::size_t size) : of_(size) {}
  std::size_t size() const { return of_.size(); }
  std::span<const data::Field> fields() const { return of_.fields(); }
  void read(std::size_t index, data::Sample out) const {
    of_.read(0, out);
    out.as<i32>(1)[0] = index % 3 == 0 ? 1 : ignored;
  }

 private:
  Blobs of_;
};

/// Cannot be read.
class Broken : public Blobs {
 public:
  using Blobs::Blobs;
  void read(std::size_t, data::Sample) const { fail<data::DataError>("the file is gone"); }
};

/// The parameters of rank 0 after a fit that an exception ends on all ranks at a step, and another one.
template <class Comm>
std::vector<float> fit_again(int ranks, std::int64_t at, const Blobs& blobs) {
  std::vector<float> parameters;
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    Trainer<Bucketed, optim::Adam, Comm, exec::Reference<f32>> trainer{
        {.batch = 10}, Comm(endpoint, {.deadline = Seconds(20)})};
    const auto stop = [&](const train::StepReport& step) {
      if (step.step == at) throw std::runtime_error("enough");
      return train::Control::go_on;
    };
    CHECK_THROWS_AS(trainer.fit(blobs, {.epochs = 3, .on_step = stop, .log = nullptr}), std::runtime_error);
    trainer.evaluate(blobs);
    trainer.fit(blobs, {.epochs = 2, .log = nullptr});
    if (endpoint.rank() != 0) return;
    const auto at_end = trainer.exec().parameters();
    parameters.assign(at_end.begin(), at_end.end());
  });
  return parameters;
}

/// The parameters and the optimizer's state by name.
struct State {
  std::map<std::string, std::vector<float>, std::less<>> of;

  void tensor(std::string_view name, const Shape&, std::span<float> values) {
    of[std::string(name)].assign(values.begin(), values.end());
  }
  void counter(std::string_view, std::int64_t&) {}
  void real(std::string_view, double&) {}
};

/// The parameters of rank 0 after two epochs of a loop of its own, and its state after the first.
template <class Comm>
std::pair<std::vector<float>, State> own_loop(int ranks, bool in_parts) {
  const Blobs blobs(41);  // the last step has one row
  std::pair<std::vector<float>, State> result;
  std::atomic<int> right{0};
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    Trainer<Bucketed, optim::Adam, Comm, exec::Reference<f32>> trainer{
        {.batch = 10, .schedule = {.warmup = 4}, .guard = {.max_norm = 1}},
        Comm(endpoint, {.deadline = Seconds(20)})};
    const train::Binding binding{trainer.plan, blobs.fields()};
    const auto epoch = [&](int number) {
      data::Loader loader{blobs, {.batch = 10, .shard = {trainer.rank(), trainer.workers()}}};
      loader.start(number);
      while (const data::Batch* rows = loader.next()) {
        if (in_parts) {
          trainer.forward(binding.view(*rows), rows->global_rows);
          trainer.backward();
          trainer.step();
        } else {
          trainer.step(binding.view(*rows), rows->global_rows);
        }
      }
      trainer.evaluate(blobs);
    };
    trainer.with_servers([&] { epoch(0); });
    right += trainer.steps_done() == 3;
    State state;
    trainer.visit_state(state, train::Visit::read);
    trainer.with_servers([&] { epoch(1); });
    right += trainer.steps_done() == 6;
    auto parameters = all_parameters(trainer);
    if (trainer.rank() == 0) result = {std::move(parameters), std::move(state)};
  });
  CHECK(right == 2 * ranks);
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("a server does not update the parameters of a layer before the layer's backward is over",
                   Exec, exec::Host<f32>, exec::Reference<f32>) {
  const Blobs blobs(200);
  const auto trained = [&]<class Comm>(int ranks, int accumulate) {
    using Trained = Trainer<Bucketed, optim::Sgd, Comm, Exec>;
    const typename Trained::Config config{.batch = 20 / ranks,
                                          .accumulate = accumulate,
                                          .optimizer = {.lr = 0.05f, .momentum = 0.9f},
                                          .exec = {.threads = 1}};
    return train_test::train<Trained>(ranks, config, data::DatasetRef(&blobs), {.epochs = 3, .log = nullptr});
  };
  for (const int ranks : {1, 2})
    for (const int accumulate : {1, 2})
      CHECK(trained.template operator()<comm::ParameterServer<transport::Threads>>(ranks, accumulate) ==
            trained.template operator()<comm::Ring<transport::Threads>>(ranks, accumulate));
}

TEST_CASE_TEMPLATE("a fit that is refused before its first step leaves the servers to the next one", Comm,
                   comm::ParameterServer<transport::Threads>,
                   comm::ParameterServer<transport::Threads, comm::Async>) {
  const Blobs few(3), blobs(50);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Trainer<Plain, optim::Sgd, Comm, exec::Reference<f32>> trainer{{.batch = 10}, endpoint};
    CHECK_THROWS_AS(trainer.fit(few, {.log = nullptr}), ConfigError);
    CHECK_THROWS_AS(trainer.fit(blobs, {.log = nullptr, .readers = 0}), ConfigError);
    for (int fit = 0; fit < 2; ++fit) CHECK(trainer.fit(blobs, {.log = nullptr}).steps == 3);
  });
}

TEST_CASE_TEMPLATE(
    "after a fit that an exception has ended on all ranks, the trainer goes on as with the ring", Comm,
    comm::ParameterServer<transport::Threads>, comm::ParameterServer<transport::Threads, comm::Sync, 2>,
    comm::Sharded<Ring>, Levels) {
  const Blobs blobs(60);
  for (const std::int64_t at : {0, 2, 7})
    CHECK(fit_again<Comm>(2, at, blobs) == fit_again<Ring>(2, at, blobs));
}

TEST_CASE_TEMPLATE("servers that are not synchronous serve the fit after one that an exception has ended",
                   Comm, comm::ParameterServer<transport::Threads, comm::Async>,
                   comm::ParameterServer<transport::Threads, comm::Stale<1>, 2>) {
  const Blobs blobs(60);
  for (const std::int64_t at : {0, 2, 7}) CHECK_FALSE(fit_again<Comm>(2, at, blobs).empty());
}

TEST_CASE_TEMPLATE("a single rank serves itself after an exception", Comm,
                   comm::ParameterServer<transport::Threads>,
                   comm::ParameterServer<transport::Threads, comm::Async>) {
  const Blobs blobs(60);
  CHECK(fit_again<Comm>(1, 3, blobs) == fit_again<Ring>(1, 3, blobs));
}

TEST_CASE("a fit may follow one whose data cannot be read, on any rank of servers") {
  const Blobs blobs(60);
  const Broken broken(60);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Trainer<Bucketed, optim::Sgd, comm::ParameterServer<transport::Threads, comm::Sync, 2>,
            exec::Reference<f32>>
        trainer{{.batch = 10}, endpoint};
    CHECK_THROWS_AS(trainer.fit(broken, {.log = nullptr}), data::DataError);
    CHECK(trainer.fit(blobs, {.log = nullptr}).steps == 3);
  });
}

TEST_CASE("servers that are ranks of their own take part when ranks compare numbers and learn a value") {
  transport::Threads::World(3).run([](const transport::Threads& endpoint) {
    comm::ParameterServer<transport::Threads, comm::Sync, 1, comm::Placement::beside> comm(endpoint);
    constexpr std::uint64_t large = ~std::uint64_t{0}, upper = std::uint64_t{1} << 32;
    const int rank = comm.rank();  // 2 is the server's
    CHECK(train::all_equal(comm, {0, large}));
    CHECK_FALSE(train::all_equal(comm, {0, rank == 2 ? large - 1 : large}));
    CHECK_FALSE(train::all_equal(comm, {rank == 1 ? upper : 0, large}));
    CHECK(train::broadcast_with_servers(comm, -0.5 - rank) == -0.5);
  });
}

TEST_CASE_TEMPLATE(
    "a worker of servers that are not synchronous waits for no other, and reports its own mean", Comm,
    comm::ParameterServer<transport::Threads, comm::Async>,
    comm::ParameterServer<transport::Threads, comm::Stale<4>>) {
  constexpr std::size_t rows = 60;
  const Same same(rows);
  double expected = 0;
  transport::Threads::World(1).run([&](const transport::Threads& endpoint) {
    Trainer<Counting, optim::Sgd, comm::Ring<transport::Threads>, exec::Reference<f32>> alone{{.batch = 10},
                                                                                              endpoint};
    expected = alone.evaluate(same).loss;
  });
  std::atomic<int> made = 0;
  int labels[2] = {};
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Trainer<Counting, optim::Sgd, Comm, exec::Reference<f32>> trainer{{.batch = 10, .optimizer = {.lr = 0}},
                                                                      endpoint};
    trainer.fit(same, {.on_step =
                           [&](const train::StepReport& step) {
                             if (step.loss != doctest::Approx(expected)) fail("the loss is ", step.loss);
                             if (endpoint.rank() == 0) ++made;
                             if (step.step == 0) {
                               labels[endpoint.rank()] = static_cast<int>(step.labels);
                               // The first worker, which serves as well, makes all its steps meanwhile.
                               const Stopwatch watch;
                               while (endpoint.rank() == 1 && made < 3)
                                 if (watch.seconds() > 20) fail("worker 0 waits for worker 1");
                             }
                             return train::Control::go_on;
                           },
                       .log = nullptr});
  });
  CHECK(labels[0] != labels[1]);
}

TEST_CASE("synchronous servers serve a user's own loop, which makes the steps that it makes with a ring") {
  using Threads = transport::Threads;
  for (const bool in_parts : {false, true}) {
    const auto expected = own_loop<Ring>(2, in_parts);
    CHECK_FALSE(expected.second.of.empty());
    const auto check = [&](const auto& served) {
      CHECK(served.first == expected.first);
      CHECK(served.second.of == expected.second.of);
    };
    check(own_loop<comm::ParameterServer<Threads>>(2, in_parts));
    check(own_loop<comm::ParameterServer<Threads, comm::Sync, 2>>(2, in_parts));
    check(own_loop<comm::ParameterServer<Threads, comm::Sync, 1, comm::Placement::beside>>(3, in_parts));
    check(own_loop<comm::ParameterServer<Threads, comm::Sync, 2, comm::Placement::beside>>(4, in_parts));
  }
}

TEST_CASE_TEMPLATE("a worker of asynchronous servers makes steps in its own loop that no other worker makes",
                   Model, Plain, Counting) {
  const Same same(30);
  const auto train_alone = [&](auto& trainer) {
    const train::Binding binding{trainer.plan, same.fields()};
    data::Loader loader{same, {.batch = 10}};
    loader.start(0);
    std::vector<double> losses;
    while (const data::Batch* rows = loader.next()) losses.push_back(trainer.step(binding.view(*rows)).loss);
    return losses;
  };
  Trainer<Model, optim::Sgd, comm::None, exec::Reference<f32>> alone{{.batch = 10}};
  const auto losses = train_alone(alone);
  const auto expected = all_parameters(alone);
  std::atomic<int> right{0};
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Trainer<Model, optim::Sgd, comm::ParameterServer<transport::Threads, comm::Async>, exec::Reference<f32>>
        trainer{{.batch = 10}, endpoint};
    trainer.with_servers([&] {
      if (trainer.rank() == 0) right += train_alone(trainer) == losses;
    });
    right += all_parameters(trainer) == expected && trainer.steps_done() == 3;
  });
  CHECK(right == 3);
}

TEST_CASE("servers serve a loop after one that an exception has ended, and no loop within another or a fit") {
  const Blobs blobs(60);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    Trainer<Bucketed, optim::Sgd, comm::ParameterServer<transport::Threads>, exec::Reference<f32>> trainer{
        {.batch = 10}, endpoint};
    CHECK_THROWS_WITH_AS(trainer.with_servers([&] { trainer.with_servers([] {}); }),
                         "trainer: with_servers must not be called within with_servers", ConfigError);
    CHECK_THROWS_WITH_AS(trainer.with_servers([&] { trainer.fit(blobs, {.log = nullptr}); }),
                         "trainer: a fit calls on the servers itself, and must not be within with_servers",
                         ConfigError);
    const auto callback = [&](const train::StepReport&) {
      trainer.with_servers([] {});
      return train::Control::go_on;
    };
    CHECK_THROWS_WITH_AS(
        trainer.fit(blobs, {.on_step = callback, .log = nullptr}),
        "trainer: a fit is under way, and its callbacks must not begin a step or another fit", ConfigError);
    const train::Binding binding{trainer.plan, blobs.fields()};
    data::Loader loader{blobs, {.batch = 10, .shard = {trainer.rank(), trainer.workers()}}};
    loader.start(0);
    trainer.with_servers([&] {
      trainer.forward(binding.view(*loader.next()));
      trainer.backward();
    });
    CHECK_THROWS_WITH_AS(
        trainer.step(),
        "trainer: the servers of the exchange ps do not serve here; call fit, or make the steps "
        "within trainer.with_servers",
        ConfigError);
    CHECK(trainer.fit(blobs, {.log = nullptr}).steps == 3);
  });
  // Without servers, the work is all that is done.
  int calls = 0;
  Trainer<Plain, optim::Sgd, comm::None, exec::Reference<f32>>{{.batch = 10}}.with_servers([&] { ++calls; });
  CHECK(calls == 1);
}
