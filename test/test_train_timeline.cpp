// SANITIZE: address thread
// The timeline of a training: what it records on each rank, and what it shows of the exchange.
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "chrome_spans.hpp"
#include "temporary_folder.hpp"
#include "train_support.hpp"
#include <convoy/core/file.hpp>

using namespace convoy;
using namespace train_test;

TEST_CASE("the timeline holds every rank's forward, backward, buckets and updates") {
  const Blobs training(40);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    train::Timeline timeline;
    ThreadTrainer<Plain> trainer{{.batch = 10, .timeline = &timeline}, endpoint};
    trainer.fit(training, {.epochs = 1, .log = nullptr});
    const auto all = trainer.gather_timeline();
    if (trainer.rank() != 0) return;
    REQUIRE(all.size() == 2);
    for (const auto& events : all) {
      int forward = 0, backward = 0, bucket = 0, update = 0;
      for (const auto& event : events) {
        const std::string_view name(event.name.data());
        CHECK(event.end >= event.begin);
        forward += name == "forward";
        backward += name == "backward";
        bucket += name == "bucket 0";
        update += name == "update";
      }
      CHECK(forward == 2);
      CHECK(backward == 2);
      CHECK(bucket == 2);
      CHECK(update == 2 * static_cast<int>(trainer.plan.buckets.size()));
    }
  });
}

TEST_CASE("a rank may record a timeline alone") {
  const Blobs training(40);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    train::Timeline timeline;
    ThreadTrainer<Plain> trainer{{.batch = 10, .timeline = endpoint.rank() == 1 ? &timeline : nullptr},
                                 endpoint};
    CHECK(trainer.fit(training, {.epochs = 1, .log = nullptr}).steps == 2);
    const auto all = trainer.gather_timeline();
    if (trainer.rank() != 0) return;
    REQUIRE(all.size() == 2);
    CHECK(all[0].empty());
    CHECK(!all[1].empty());
  });
}

TEST_CASE("a timeline that is full says how many events it dropped") {
  train::Timeline timeline(2);
  const Clock::time_point zero = Clock::now();
  timeline.start(zero);
  const auto after = [&](int seconds) { return zero + std::chrono::seconds(seconds); };
  for (int i = 0; i < 5; ++i) timeline.record("bucket", i, train::Track::exchange, after(i), after(i + 1));
  REQUIRE(timeline.events().size() == 3);
  CHECK(timeline.events()[1].name.data() == std::string_view("bucket 1"));
  const train::TimelineEvent& dropped = timeline.events()[2];
  CHECK(dropped.name.data() == std::string_view("dropped 3"));
  CHECK(dropped.track == train::Track::exchange);
  CHECK(dropped.begin == 2);
  CHECK(dropped.end == 5);
}

TEST_CASE_TEMPLATE("buckets are exchanged while backward goes on, as the timeline shows", C,
                   comm::Ring<transport::Threads>, comm::Background<comm::Ring<transport::Threads>>) {
  // A thread in the background may begin the last bucket later than backward ends.
  constexpr bool begins_at_once = std::is_same_v<C, comm::Ring<transport::Threads>>;
  const Blobs training(40);
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    train::Timeline timeline;
    Trainer<Bucketed, optim::Sgd, C, exec::Reference<f32>> trainer{{.batch = 10, .timeline = &timeline},
                                                                   endpoint};
    const auto last = concat("bucket ", trainer.plan.buckets.size() - 1);
    REQUIRE(trainer.plan.buckets.size() > 2);
    trainer.fit(training, {.epochs = 1, .log = nullptr});
    std::vector<train::TimelineEvent> backward, first, final;
    for (const auto& event : timeline.events()) {
      const std::string_view name(event.name.data());
      if (name == "backward") backward.push_back(event);
      if (name == "bucket 0") first.push_back(event);
      if (name == last) final.push_back(event);
    }
    REQUIRE(backward.size() == 2);
    REQUIRE(first.size() == 2);
    REQUIRE(final.size() == 2);
    for (std::size_t step = 0; step < 2; ++step) {
      CHECK(backward[step].begin < first[step].begin);
      CHECK(first[step].begin < final[step].begin);  // backward computed between them
      if (begins_at_once) CHECK(final[step].begin < backward[step].end);
    }
  });
}

TEST_CASE("a written timeline shows buckets that are exchanged together on several tracks") {
  const TemporaryFolder folder;
  const Clock::time_point zero = Clock::now();
  const auto after = [&](int milliseconds) { return zero + std::chrono::milliseconds(milliseconds); };
  train::Timeline timeline;
  timeline.start(zero);
  for (int i = 0; i < 4; ++i) timeline.record("bucket", i, train::Track::exchange, after(i), after(i + 3));
  timeline.record("update", -1, train::Track::optimizer, after(6), after(7));
  train::write_timeline(folder.path / "timeline.json", {timeline.events(), timeline.events()});
  const std::string text = read_file(folder.path / "timeline.json");
  CHECK(test::broken_spans(text).empty());
  for (int i = 0; i < 4; ++i)
    CHECK(text.find(concat("\"name\":\"bucket ", i, "\",\"pid\":1")) != std::string::npos);
}
