// State copy: a copy of the state of a training that is put into canonical form later, while training
// continues.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/name.hpp>
#include <convoy/core/range.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/replica.hpp>
#include <convoy/train/state.hpp>

namespace convoy::train {

/// Receives a copy of a rank's state. The names are those of `visit_state`.
class StateSink {
 public:
  /// Fills the values, in one thread at a time.
  using Compute = std::function<void(std::span<float>)>;

  /// Values that may change when the call returns.
  virtual void tensor(std::string_view name, const Shape& shape, std::span<float> values) = 0;
  /// Values in canonical order that `compute` provides, until the next copy.
  virtual void later(std::string_view name, const Shape& shape, Compute compute) = 0;
  /// On ranks other than rank 0: what this rank holds of a slot of the optimizer's state, in the order of the
  /// parameters, for rank 0.
  virtual void shard(std::string_view slot, Range elements, Compute compute) = 0;
  /// Within a `compute` of rank 0: copies what the shards of the other ranks have of these elements.
  virtual void read_shards(std::string_view slot, Range elements, std::span<float> values) = 0;
  virtual void counter(std::string_view name, std::int64_t& number) = 0;
  virtual void real(std::string_view name, double& number) = 0;

 protected:
  ~StateSink() = default;
};

/// Copies a replica's state between two steps. The parameters and the optimizer's state are copied as they
/// lie in their arenas: in a few large copies within the space of the Exec, for which the host does not wait.
/// No rank sends its part of them to another. The copy takes as much memory as they do, on rank 0; if the
/// optimizer's state is divided among ranks, each other rank needs as much as its part again. The replica
/// must outlive the copy.
template <class Rule, class Comm, class Exec>
class StateCopy {
  using Replica = train::Replica<Rule, Comm, Exec>;
  using Space = typename Exec::Space;

 public:
  explicit StateCopy(Replica& replica) : replica_(replica) {}
  StateCopy(const StateCopy&) = delete;
  StateCopy& operator=(const StateCopy&) = delete;

  /// Allocates the memory. All ranks must call it together, before `take`. Throws an Error of the space if
  /// there is no room.
  void prepare();

  /// Whether the optimizer's state is divided among ranks.
  bool divided() const { return divided_; }

  /// Copies the state. All ranks must call it together, when no `compute` of the copy before is running or
  /// will run. Rank 0 passes all state, other ranks their own.
  void take(StateSink& into);

 private:
  bool is_first() const { return replica_.rank() == 0; }
  const Plan& plan() const { return replica_.plan(); }
  bool holds_all() const {
    return std::all_of(plan().exchange_order.begin(), plan().exchange_order.end(),
                       [&](int p) { return updates_all(replica_, plan().slot(p).live); });
  }

  // The most elements of a piece of a shard, so that a file of shards is written and read in little memory.
  static constexpr std::int64_t piece = std::int64_t{1} << 20;

  void take_parameters(StateSink& into);
  void take_optimizer(StateSink& into);

  // Copies part of a copied arena into host memory.
  void read(float* to, const float* from, std::size_t bytes) { reader_->read(to, from, bytes); }

  // Computes the values of parameter `p` in canonical order. `fetch(elements, stored)` copies what is stored
  // for a range of elements, of which `stored` is all zeros before.
  void compute(int p, std::span<float> values, Call<void(Range, std::span<float>)> fetch) {
    const graph::Slot& slot = plan().slot(p);
    memory_.in_slot.assign(static_cast<std::size_t>(slot.live.size()), 0.0f);
    memory_.dead.assign(static_cast<std::size_t>(slot.dead.size()), 0.0f);
    fetch(slot.live, memory_.in_slot);
    fetch(slot.dead, memory_.dead);
    to_canonical(replica_.exec(), plan(), p, memory_.in_slot, memory_.dead, values, memory_.live);
  }

  // Copies the arenas of an exchange, which are in host memory while they are visited. They have no dead
  // taps.
  class Exchange final : public ExchangeState<Comm, Exec> {
   public:
    Exchange(StateCopy& copy, StateSink& into)
        : ExchangeState<Comm, Exec>(copy.replica_.comm(), copy.replica_.exec(), copy.plan(), AnyVisitor(into),
                                    Visit::read),
          copy_(copy),
          into_(into) {}
    void arena(std::string_view name, std::span<float> values) override {
      const std::size_t index = count_++;
      if (index == copy_.exchange_.size()) copy_.exchange_.emplace_back();
      copy_.exchange_[index].assign(values.begin(), values.end());
      for (const int p : copy_.plan().exchange_order) {
        const graph::Parameter& parameter = copy_.plan().parameter(p);
        into_.later(concat(this->prefix(), name, ".", parameter.name), parameter.shape,
                    [&copy = copy_, index, p](std::span<float> canonical) {
                      const std::vector<float>& arena = copy.exchange_[index];
                      copy.compute(p, canonical, [&](Range elements, std::span<float> stored) {
                        if (elements.end <= std::ssize(arena))
                          std::copy_n(arena.begin() + elements.begin, stored.size(), stored.begin());
                      });
                    });
      }
    }

   private:
    StateCopy& copy_;
    StateSink& into_;
    std::size_t count_ = 0;
  };

  Replica& replica_;
  bool divided_ = false;
  std::optional<Space> reader_;                     // a stream for reading while training continues
  memory::Array<float, Space> parameters_, slots_;  // the latter holds `parts_` one after the other
  std::vector<SlotPart> parts_;
  std::vector<std::vector<float>> exchange_;
  VisitMemory memory_;
};

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void StateCopy<Rule, Comm, Exec>::prepare() {
  divided_ = common_number(replica_.comm(), is_first() && !holds_all() ? 1 : 0) > 0;
  if (reader_) return;
  Space& space = replica_.space();
  if (is_first()) parameters_ = {space, replica_.exec().parameters().size()};
  if (is_first() || divided_) slots_ = {space, replica_.optimizer_state_bytes() / sizeof(float)};
  if constexpr (requires { space.enter(); }) space.enter();
  reader_.emplace();
}

template <class Rule, class Comm, class Exec>
void StateCopy<Rule, Comm, Exec>::take(StateSink& into) {
  const AnyVisitor visitor(into);
  if (is_first()) take_parameters(into);
  visit_mean_statistics(replica_, visitor, Visit::read);
  visit_own_statistics(replica_, visitor, Visit::read);
  if (is_first() || divided_) take_optimizer(into);
  reader_->wait_for(replica_.space().mark());
  visit_counters(replica_, visitor, Visit::read);
  visit_exec_numbers(replica_, visitor);
  Exchange exchange(*this, into);
  replica_.comm().visit_state(exchange);
}

template <class Rule, class Comm, class Exec>
void StateCopy<Rule, Comm, Exec>::take_parameters(StateSink& into) {
  replica_.space().copy(parameters_.data(), replica_.exec().parameters().data(), parameters_.bytes());
  for (int p = 0; p < static_cast<int>(plan().parameter_list.size()); ++p) {
    const graph::Parameter& parameter = plan().parameter(p);
    into.later(concat("parameters.", parameter.name), parameter.shape, [this, p](std::span<float> values) {
      compute(p, values, [&](Range elements, std::span<float> stored) {
        read(stored.data(), parameters_.data() + elements.begin, stored.size_bytes());
      });
    });
  }
}

template <class Rule, class Comm, class Exec>
void StateCopy<Rule, Comm, Exec>::take_optimizer(StateSink& into) {
  parts_ = slot_parts(replica_);
  float* to = slots_.data();
  for (SlotPart& part : parts_) {
    replica_.space().copy(to, part.state, static_cast<std::size_t>(part.range.size()) * sizeof(float));
    part.state = std::exchange(to, to + part.range.size());
  }
  if (!is_first()) {
    for (const SlotPart& part : parts_)
      for (std::int64_t at = 0; at < part.range.size(); at += piece)
        into.shard(part.slot,
                   {part.range.begin + at, std::min(part.range.begin + at + piece, part.range.end)},
                   [this, from = part.state + at](std::span<float> values) {
                     read(values.data(), from, values.size_bytes());
                   });
    return;
  }
  const auto& optimizer = replica_.optimizer().optimizer();
  for (int s = 0; s < optimizer.facts().slots; ++s)
    for (const int p : plan().exchange_order) {
      const graph::Parameter& parameter = plan().parameter(p);
      const std::string slot = optimizer.slot_name(s);
      into.later(concat("optimizer.", slot, ".", parameter.name), parameter.shape,
                 [this, &into, slot, p](std::span<float> values) {
                   compute(p, values, [&](Range elements, std::span<float> stored) {
                     for_each_part(
                         parts_, slot, elements, stored,
                         [&](float* from, float* host, std::size_t bytes) { read(host, from, bytes); });
                     if (divided_) into.read_shards(slot, elements, stored);
                   });
                 });
    }
}

}  // namespace convoy::train
