// Compares what a StateCopy provides, once training has gone on, with the state that was there.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/comm/transport/threads.hpp>
#include <convoy/train/keeper.hpp>
#include <convoy/train/state_copy.hpp>

namespace train_test {

/// The state that a rank sees: a visitor.
struct Seen {
  std::map<std::string, std::vector<float>, std::less<>> tensors;
  std::map<std::string, std::int64_t, std::less<>> counters;
  std::map<std::string, double, std::less<>> reals;
  void tensor(std::string_view name, const Shape&, std::span<float> values) {
    CHECK(tensors.emplace(name, std::vector<float>(values.begin(), values.end())).second);
  }
  void counter(std::string_view name, std::int64_t& number) { CHECK(counters.emplace(name, number).second); }
  void real(std::string_view name, double& number) { CHECK(reals.emplace(name, number).second); }
};

/// What ranks hold of an optimizer's state, and a meeting of the ranks.
struct Ranks {
  struct Shard {
    std::string slot;
    Range elements;
    std::vector<float> values;
  };
  explicit Ranks(int count) : meet(count) {}
  std::barrier<> meet;
  std::mutex mutex;
  std::vector<Shard> shards;
};

/// Copies the state of a fit after `step` steps. A thread puts the copy into canonical form while the fit
/// goes on, and `compare` does so once more; both are compared with the state after these steps.
template <class Trainer>
class CopyKeeper final : public train::Keeper, train::StateSink {
 public:
  CopyKeeper(Trainer& trainer, Ranks& ranks, std::int64_t step)
      : trainer_(trainer), ranks_(ranks), step_(step), copy_(trainer.state_copy()) {}

  train::FitPosition resume(std::int64_t) override {
    copy_.prepare();
    return {};
  }
  bool due(std::int64_t steps_done, bool) const override { return steps_done == step_; }
  void keep(const train::FitPosition&) override {
    if (kept_) return;
    kept_ = true;
    const auto messages = [&] { return trainer_.comm().traffic().messages; };
    const auto before = messages();
    trainer_.visit_state(expected_, train::Visit::read);
    const auto visited = messages();
    copy_.take(*this);
    // Visiting asks the ranks about every tensor, and gathers those that are divided.
    // The traffic of servers has only their own messages.
    if (!trainer_.comm().has_servers()) CHECK(2 * (messages() - visited) < visited - before);
    thread_ = std::thread([this] { early_ = computed(); });
  }
  void finish() override {}

  /// To be called on all ranks after the fit.
  void compare() {
    REQUIRE(kept_);
    thread_.join();
    ranks_.meet.arrive_and_wait();
    const Values late = computed();
    Seen now;
    trainer_.visit_state(now, train::Visit::read);
    std::erase_if(expected_.tensors, [&](const auto& tensor) { return !is_own(tensor.first); });
    CHECK(copied_.tensors.size() + late.size() == expected_.tensors.size());
    std::size_t changed = 0;
    for (const auto& tensor : expected_.tensors) {
      const std::string& name = tensor.first;
      CAPTURE(name);
      if (copied_.tensors.contains(name)) {
        CHECK(copied_.tensors[name] == tensor.second);
      } else {
        REQUIRE(late.contains(name));
        CHECK(early_[name] == tensor.second);
        CHECK(late.at(name) == tensor.second);
      }
      changed += now.tensors[name] != tensor.second;
    }
    CHECK(expected_.counters == copied_.counters);
    CHECK(expected_.reals == copied_.reals);
    // So that a copy of the state now would be found out. Servers have only statistics, which do not change.
    if (trainer_.rank() < trainer_.workers()) CHECK(2 * changed >= expected_.tensors.size());
  }

 private:
  using Values = std::map<std::string, std::vector<float>, std::less<>>;

  bool is_own(std::string_view name) const { return trainer_.rank() == 0 || name.starts_with("ranks."); }

  // What the copy provides, with what the copies of the other ranks provide.
  Values computed() {
    for (const auto& [slot, elements, compute] : shards_) {
      std::vector<float> values(static_cast<std::size_t>(elements.size()));
      compute(values);
      const std::lock_guard lock(ranks_.mutex);
      ranks_.shards.push_back({slot, elements, std::move(values)});
    }
    ranks_.meet.arrive_and_wait();
    Values all;
    for (const auto& [name, shape, compute] : later_) {
      std::vector<float> values(static_cast<std::size_t>(shape.size()));
      compute(values);
      all[name] = std::move(values);
    }
    return all;
  }

  void tensor(std::string_view name, const Shape& shape, std::span<float> values) override {
    if (is_own(name)) copied_.tensor(name, shape, values);
  }
  void later(std::string_view name, const Shape& shape, Compute compute) override {
    later_.push_back({std::string(name), shape, std::move(compute)});
  }
  void shard(std::string_view slot, Range elements, Compute compute) override {
    CHECK(trainer_.rank() != 0);
    CHECK(copy_.divided());
    shards_.push_back({std::string(slot), elements, std::move(compute)});
  }
  void read_shards(std::string_view slot, Range elements, std::span<float> values) override {
    for (const Ranks::Shard& shard : ranks_.shards) {
      if (shard.slot != slot) continue;
      for (std::int64_t i = std::max(elements.begin, shard.elements.begin);
           i < std::min(elements.end, shard.elements.end); ++i)
        values[static_cast<std::size_t>(i - elements.begin)] =
            shard.values[static_cast<std::size_t>(i - shard.elements.begin)];
    }
  }
  void counter(std::string_view name, std::int64_t& number) override { copied_.counter(name, number); }
  void real(std::string_view name, double& number) override { copied_.real(name, number); }

  struct Later {
    std::string name;
    Shape shape;
    Compute compute;
  };
  struct OwnShard {
    std::string slot;
    Range elements;
    Compute compute;
  };

  Trainer& trainer_;
  Ranks& ranks_;
  std::int64_t step_;
  typename Trainer::StateCopy copy_;
  bool kept_ = false;
  std::thread thread_;
  Values early_;
  Seen expected_, copied_;
  std::vector<Later> later_;
  std::vector<OwnShard> shards_;
};

/// Trains on several ranks, with state of all kinds: moments, and decay of parameters that no gradient
/// reaches.
template <class Trainer>
void compare_copies(int ranks) {
  Ranks all(ranks);
  transport::Threads::World(ranks).run([&](transport::Threads endpoint) {
    typename Trainer::Config config;
    config.batch = 4;
    config.groups.emplace_back().weight_decay = 0.1f;
    if constexpr (requires { config.optimizer.momentum; }) config.optimizer.momentum = 0.9f;
    Trainer trainer(config, endpoint);
    CopyKeeper<Trainer> keeper(trainer, all, 3);
    trainer.fit(Blobs(70), {.epochs = 2, .log = nullptr, .keeper = &keeper});
    keeper.compare();
  });
}

}  // namespace train_test
