// State: the state of a training, visited by name and in canonical form, so that code that saves, restores or
// inspects it need not know the arenas.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/call.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/train/arenas.hpp>
#include <convoy/train/counters.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/replica.hpp>

namespace convoy::train {

/// A visitor of state.
///   `tensor(name, shape, values)`   floats in canonical order
///   `counter(name, value)`          an integer
///   `real(name, value)`             a double
/// With Visit::write, the visitor may change `values` and `value`.
template <class V>
concept StateVisitor = requires(V& v, std::string_view name, const Shape& shape, std::span<float> values,
                                std::int64_t& number, double& real) {
  v.tensor(name, shape, values);
  v.counter(name, number);
  v.real(name, real);
};

enum class Visit : bool { read, write };

/// A type-erased reference to a visitor, so that visiting is compiled once for all visitors. The visitor must
/// outlive it.
class AnyVisitor {
 public:
  template <StateVisitor V>
  requires(!std::is_same_v<V, AnyVisitor>) explicit AnyVisitor(V& visitor)
      : visitor_(std::addressof(visitor)),
        tensor_([](void* it, std::string_view name, const Shape& shape, std::span<float> values) {
          static_cast<V*>(it)->tensor(name, shape, values);
        }),
        counter_([](void* it, std::string_view name, std::int64_t& number) {
          static_cast<V*>(it)->counter(name, number);
        }),
        real_([](void* it, std::string_view name, double& number) {
          static_cast<V*>(it)->real(name, number);
        }) {}

  void tensor(std::string_view name, const Shape& shape, std::span<float> values) const {
    tensor_(visitor_, name, shape, values);
  }
  void counter(std::string_view name, std::int64_t& number) const { counter_(visitor_, name, number); }
  void real(std::string_view name, double& number) const { real_(visitor_, name, number); }

 private:
  void* visitor_;
  void (*tensor_)(void*, std::string_view, const Shape&, std::span<float>);
  void (*counter_)(void*, std::string_view, std::int64_t&);
  void (*real_)(void*, std::string_view, double&);
};

/// Memory of a visit, which all its tensors use in turn: new pages would take longer than the copies.
struct VisitMemory {
  std::vector<float> in_slot, dead, live, values;
};

/// Whether this rank updates all of these elements, and so holds their state.
template <class Rule, class Comm, class Exec>
bool updates_all(Replica<Rule, Comm, Exec>& replica, Range elements) {
  std::int64_t covered = 0;
  for (const Range& range : replica.comm().updates(replica.buckets()))
    covered +=
        std::max<std::int64_t>(0, std::min(range.end, elements.end) - std::max(range.begin, elements.begin));
  return covered == elements.size();
}

/// Copies, into canonical order, one number per element of parameter `p`, stored in the order of the
/// parameter. `in_slot` holds those of the live elements, `dead` those of the dead taps; if `dead` is empty,
/// these are 0. `live` is memory for the copy.
template <class Exec>
void to_canonical(const Exec& exec, const Plan& plan, int p, std::span<const float> in_slot,
                  std::span<const float> dead, std::span<float> values, std::vector<float>& live) {
  if (plan.slot(p).dead.empty()) return exec.reorder(p, in_slot, values, false);
  const std::int64_t begin = plan.slot(p).live.begin, dead_begin = plan.slot(p).dead.begin;
  live.resize(in_slot.size());
  exec.reorder(p, in_slot, live, false);
  exec::for_each_element(plan, p, [&](std::int64_t i, std::int64_t at, bool is_live) {
    values[static_cast<std::size_t>(i)] = is_live        ? live[static_cast<std::size_t>(at - begin)]
                                          : dead.empty() ? 0.0f
                                                         : dead[static_cast<std::size_t>(at - dead_begin)];
  });
}

/// Visits such numbers in canonical order.
template <class Exec>
void visit_slot(Exec& exec, const Plan& plan, int p, std::span<float> in_slot, std::span<float> dead,
                Visit how, VisitMemory& memory, Call<void(std::span<float>)> visit) {
  const std::int64_t begin = plan.slot(p).live.begin, dead_begin = plan.slot(p).dead.begin;
  std::vector<float>&live = memory.live, &values = memory.values;
  values.resize(static_cast<std::size_t>(plan.parameter(p).shape.size()));
  to_canonical(exec, plan, p, in_slot, dead, values, live);
  visit(std::span<float>(values));
  if (how == Visit::read) return;
  if (plan.slot(p).dead.empty()) return exec.reorder(p, values, in_slot, true);
  exec::for_each_element(plan, p, [&](std::int64_t i, std::int64_t at, bool is_live) {
    if (is_live)
      live[static_cast<std::size_t>(at - begin)] = values[static_cast<std::size_t>(i)];
    else if (!dead.empty())
      dead[static_cast<std::size_t>(at - dead_begin)] = values[static_cast<std::size_t>(i)];
  });
  exec.reorder(p, live, in_slot, true);
}

/// The part of an optimizer's slot that is stored for one range of elements, in memory of a space.
struct SlotPart {
  std::string slot;
  Range range;
  float* state;
};

/// The parts that this rank stores.
template <class Replica>
std::vector<SlotPart> slot_parts(Replica& replica) {
  std::vector<SlotPart> parts;
  replica.optimizer().visit_state([&](std::string_view slot, Range range, float* state, std::int64_t) {
    parts.push_back({std::string(slot), range, state});
  });
  return parts;
}

/// Calls `copy(state, host, bytes)` for the parts of a slot within the range of `elements`, whose values in
/// host memory are `values`.
inline void for_each_part(std::span<const SlotPart> parts, std::string_view slot, Range elements,
                          std::span<float> values, Call<void(float*, float*, std::size_t)> copy) {
  for (const SlotPart& part : parts) {
    if (part.slot != slot) continue;
    const std::int64_t begin = std::max(part.range.begin, elements.begin),
                       end = std::min(part.range.end, elements.end);
    if (begin < end)
      copy(part.state + (begin - part.range.begin), values.data() + (begin - elements.begin),
           static_cast<std::size_t>(end - begin) * sizeof(float));
  }
}

/// Passes the exchange's state to a visitor. State of one rank has names that begin with
/// `ranks.<rank>.exchange.`.
template <class Comm, class Exec>
class ExchangeState : public comm::StateVisitor {
 public:
  ExchangeState(Comm& comm, Exec& exec, const Plan& plan, const AnyVisitor& visitor, Visit how)
      : comm_(comm),
        exec_(exec),
        plan_(plan),
        prefix_(concat("ranks.", comm.rank(), ".exchange.")),
        visitor_(visitor),
        how_(how) {}
  virtual ~ExchangeState() = default;

  void arena(std::string_view name, std::span<float> values) override {
    for (const int p : plan_.exchange_order) {
      const Range live = plan_.slot(p).live;
      const auto in_slot =
          values.subspan(static_cast<std::size_t>(live.begin), static_cast<std::size_t>(live.size()));
      const graph::Parameter& parameter = plan_.parameter(p);
      visit_slot(exec_, plan_, p, in_slot, {}, how_, memory_, [&](std::span<float> canonical) {
        visitor_.tensor(concat(prefix_, name, ".", parameter.name), parameter.shape, canonical);
      });
    }
  }
  void values(std::string_view name, std::span<float> values) override {
    visitor_.tensor(concat(prefix_, name), Shape{static_cast<int>(values.size())}, values);
  }
  void counter(std::string_view name, std::int64_t& number) override {
    visitor_.counter(concat(prefix_, name), number);
  }
  void common(std::string_view name, std::int64_t& number) override {
    std::int64_t known = common_number(comm_, number);
    visitor_.counter(concat("exchange.", name), known);
    if (how_ == Visit::write) number = known;
  }
  bool writes() const override { return how_ == Visit::write; }

 protected:
  std::string_view prefix() const { return prefix_; }

 private:
  Comm& comm_;
  Exec& exec_;
  const Plan& plan_;
  std::string prefix_;
  AnyVisitor visitor_;
  Visit how_;
  VisitMemory memory_;
};

/// Visits the parameters of an Exec as `parameters.<name>`.
template <class Exec>
void visit_parameters(Exec& exec, const Plan& plan, const AnyVisitor& visitor, Visit how) {
  std::vector<float> values;
  for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p) {
    const graph::Parameter& parameter = plan.parameter(p);
    values.resize(static_cast<std::size_t>(parameter.shape.size()));
    exec.read_parameter(p, values);
    visitor.tensor(concat("parameters.", parameter.name), parameter.shape, std::span<float>(values));
    if (how == Visit::write) exec.write_parameter(p, values);
  }
  if (how == Visit::write) exec.touched({0, plan.sizes.parameters});
}

/// Visits the running statistics in an arena as `<prefix><name>`.
inline void visit_statistics(const Plan& plan, std::string_view prefix, std::span<float> arena,
                             const AnyVisitor& visitor) {
  const auto ranges = exec::statistic_ranges(plan);
  for (std::size_t i = 0; i < ranges.size(); ++i)
    visitor.tensor(
        concat(prefix, plan.statistic_list[i].name), plan.statistic_list[i].shape,
        arena.subspan(static_cast<std::size_t>(ranges[i].begin), static_cast<std::size_t>(ranges[i].size())));
}

/// Visits the running statistics of an Exec as `<prefix><name>`, after `prepare(values)`, which may change
/// what is visited.
template <class Exec>
void visit_statistics(Exec& exec, const Plan& plan, std::string_view prefix, const AnyVisitor& visitor,
                      Visit how, Call<void(std::span<float>)> prepare) {
  const std::span<float> arena = exec.statistics();
  std::vector<float> values(arena.size());
  exec.space().read(values.data(), arena.data(), arena.size_bytes());
  prepare(std::span<float>(values));
  visit_statistics(plan, prefix, std::span<float>(values), visitor);
  if (how == Visit::write) exec.space().write(arena.data(), values.data(), arena.size_bytes());
}

/// Visits the mean over all workers of the running statistics, `statistics.<name>`. All workers must call it
/// together.
template <class Rule, class Comm, class Exec>
void visit_mean_statistics(Replica<Rule, Comm, Exec>& replica, const AnyVisitor& visitor, Visit how) {
  visit_statistics(replica.exec(), replica.plan(), "statistics.", visitor, how, [&](std::span<float> values) {
    if (replica.workers() > 1 && !values.empty()) replica.comm().all_reduce(values, comm::mean);
  });
}

/// Visits the running statistics of this rank, `ranks.<rank>.statistics.<name>`, if there are other workers.
template <class Rule, class Comm, class Exec>
void visit_own_statistics(Replica<Rule, Comm, Exec>& replica, const AnyVisitor& visitor, Visit how) {
  if (replica.workers() > 1)
    visit_statistics(replica.exec(), replica.plan(), concat("ranks.", replica.rank(), ".statistics."),
                     visitor, how, [](std::span<float>) {});
}

/// Visits the weights of a replica: `parameters.<name>`, and `statistics.<name>`, the mean over all workers.
/// All workers must call it together and see the same values. May be called while servers serve.
template <class Rule, class Comm, class Exec>
void visit_weights(Replica<Rule, Comm, Exec>& replica, const AnyVisitor& visitor, Visit how) {
  visit_parameters(replica.exec(), replica.plan(), visitor, how);
  visit_mean_statistics(replica, visitor, how);
}

/// Visits the optimizer's state as `optimizer.<slot>.<name>`. It is stored in the order of the parameters, in
/// the ranges that this rank updates.
template <class Rule, class Comm, class Exec>
void visit_optimizer(Replica<Rule, Comm, Exec>& replica, const AnyVisitor& visitor, Visit how) {
  const Plan& plan = replica.plan();
  auto& space = replica.space();
  const std::vector<SlotPart> parts = slot_parts(replica);
  const auto read = [&](float* state, float* host, std::size_t bytes) { space.read(host, state, bytes); };
  const auto write = [&](float* state, float* host, std::size_t bytes) { space.write(state, host, bytes); };
  VisitMemory memory;
  std::vector<float>&in_slot = memory.in_slot, &dead = memory.dead;
  for (int s = 0; s < replica.optimizer().optimizer().facts().slots; ++s) {
    const std::string slot = replica.optimizer().optimizer().slot_name(s);
    for (const int p : plan.exchange_order) {
      const graph::Parameter& parameter = plan.parameter(p);
      const std::string name = concat("optimizer.", slot, ".", parameter.name);
      const Range live = plan.slot(p).live, dead_taps = plan.slot(p).dead;
      const bool divided = common_number(replica.comm(), updates_all(replica, live) ? 0 : 1) > 0;
      in_slot.assign(static_cast<std::size_t>(live.size()), 0.0f);
      dead.assign(static_cast<std::size_t>(dead_taps.size()), 0.0f);
      for_each_part(parts, slot, live, in_slot, read);
      // Dead taps have state if they decay. Every worker has it, because each decays all dead taps.
      for_each_part(parts, slot, dead_taps, dead, read);
      // Each element is held by one rank and is zero on the others.
      if (divided) merge_disjoint(replica.comm(), in_slot);
      visit_slot(replica.exec(), plan, p, std::span<float>(in_slot), std::span<float>(dead), how, memory,
                 [&](std::span<float> canonical) { visitor.tensor(name, parameter.shape, canonical); });
      if (how == Visit::read) continue;
      for_each_part(parts, slot, live, in_slot, write);
      for_each_part(parts, slot, dead_taps, dead, write);
    }
  }
}

/// Visits the counters `steps`, `schedule_lead`, `epochs_begun` and `skipped` of a replica, and its real
/// `lr_factor`.
template <class Rule, class Comm, class Exec>
void visit_counters(Replica<Rule, Comm, Exec>& replica, const AnyVisitor& visitor, Visit how) {
  Counters counters = replica.counters();
  // A rank that updates nothing has decided nothing.
  const bool updates = !replica.comm().updates(replica.buckets()).empty();
  std::int64_t skipped = common_number(replica.comm(), updates ? replica.optimizer().skipped() : -1);
  visitor.counter("steps", counters.steps);
  visitor.counter("schedule_lead", counters.schedule_lead);
  visitor.counter("epochs_begun", counters.epochs_begun);
  visitor.real("lr_factor", counters.lr_factor);
  visitor.counter("skipped", skipped);
  if (how == Visit::read) return;
  replica.counters() = counters;
  replica.optimizer().set_skipped(skipped);
}

/// Visits the Exec's numbers of this rank, `ranks.<rank>.exec.<what>`, such as its loss scale in f16.
template <class Rule, class Comm, class Exec>
void visit_exec_numbers(Replica<Rule, Comm, Exec>& replica, const AnyVisitor& visitor) {
  if constexpr (Exec::may_overflow)
    replica.exec().visit_state([&](std::string_view name, std::int64_t& number) {
      visitor.counter(concat("ranks.", replica.rank(), ".exec.", name), number);
    });
}

/// Visits all state of a replica: its weights, `optimizer.<slot>.<name>`, its counters, and
/// `exchange.<what>`, the exchange's state common to all ranks. All ranks, including servers, must call it
/// together and see the same values; sharded state is gathered tensor by tensor. Only the rank itself sees
/// its own state: `ranks.<rank>.statistics.<name>`, its statistics before averaging;
/// `ranks.<rank>.exec.<what>`; and `ranks.<rank>.exchange.<what>`, its part of the exchange's state, which is
/// only valid in a world of the same size. Visit::read changes nothing. With Visit::write, the values that
/// the visitor left are stored on every rank; values that all ranks see must be the same on all. Throws
/// ConfigError while servers that are separate ranks serve.
template <class Rule, class Comm, class Exec>
void visit_state(Replica<Rule, Comm, Exec>& replica, const AnyVisitor& visitor, Visit how) {
  visit_weights(replica, visitor, how);
  visit_own_statistics(replica, visitor, how);
  visit_optimizer(replica, visitor, how);
  visit_counters(replica, visitor, how);
  visit_exec_numbers(replica, visitor);
  ExchangeState exchange(replica.comm(), replica.exec(), replica.plan(), visitor, how);
  replica.comm().visit_state(exchange);
}

}  // namespace convoy::train
