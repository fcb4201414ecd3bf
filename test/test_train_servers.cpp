// NEEDS: host
// Servers on the ranks of workers: a server writes parameters only after the backward that reads them, and
// serves only a fit that begins. A fit follows one that an exception has ended. Servers that are ranks of
// their own take part when all ranks compare numbers.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/train/gather.hpp>

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
