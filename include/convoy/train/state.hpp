// State: what a training is beside its configuration, visited by name and in canonical form, so that whoever
// saves it, restores it or looks at it needs to know no arena.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/train/replica.hpp>

namespace convoy::train {

/// What visits state.
///   `tensor(name, shape, values)`   floats in canonical order
///   `counter(name, value)`          a number
/// A visitor that restores writes both.
template <class V>
concept StateVisitor = requires(V& v, std::string_view name, const Shape& shape, std::span<float> values,
                                std::int64_t& number) {
  v.tensor(name, shape, values);
  v.counter(name, number);
};

enum class Visit : bool { read, write };

/// Fills in what other ranks have of a tensor's state. Each element is some rank's, or every rank's with the
/// same bits: the parts that are this rank's first, zero elsewhere, add up as integers to the very bits.
template <class Rule, class Comm, class Exec>
void gather_shards(Replica<Rule, Comm, Exec>& replica, Range whole, std::vector<float>& values) {
  const std::vector<Range> mine = replica.comm().updates(replica.buckets());
  std::int64_t covered = 0;
  for (const Range& range : mine)
    covered += std::max<std::int64_t>(0, std::min(range.end, whole.end) - std::max(range.begin, whole.begin));
  // Shards are cut the same way for all, so either every rank has all of every tensor or they all take part.
  double all[] = {covered == whole.size() ? 1.0 : 0.0};
  replica.comm().all_reduce(std::span<double>(all), comm::min);
  if (all[0] > 0) return;
  std::vector<i32> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  replica.comm().all_reduce(std::span<i32>(bits), comm::sum);
  std::memcpy(values.data(), bits.data(), values.size() * sizeof(float));
}

/// Visits all state of a replica: `parameters.<name>`, `statistics.<name>`, `optimizer.<slot>.<name>`,
/// `steps`, `skipped`. All ranks call it together and see the same; state that ranks share out is gathered
/// tensor by tensor. With Visit::write what the visitor left in its arguments is stored, on every rank, which
/// must be given the same.
template <class Rule, class Comm, class Exec, StateVisitor V>
void visit_state(Replica<Rule, Comm, Exec>& replica, V&& visitor, Visit how) {
  const Plan& plan = replica.plan();
  Exec& exec = replica.exec();
  std::vector<float> values, live, in_slot;
  for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p) {
    const graph::Parameter& parameter = plan.parameter(p);
    values.resize(static_cast<std::size_t>(parameter.shape.size()));
    exec.read_parameter(p, values);
    visitor.tensor(concat("parameters.", parameter.name), parameter.shape, std::span<float>(values));
    if (how == Visit::write) exec.write_parameter(p, values);
  }
  if (how == Visit::write) exec.touched({0, plan.sizes.parameters});

  replica.average_statistics();
  replica.on_host(exec.statistics(), [&](std::span<float> arena) {
    const auto ranges = exec::statistic_ranges(plan);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const auto part = arena.subspan(static_cast<std::size_t>(ranges[i].begin),
                                      static_cast<std::size_t>(ranges[i].size()));
      values.assign(part.begin(), part.end());
      visitor.tensor(concat("statistics.", plan.statistic_list[i].name), plan.statistic_list[i].shape,
                     std::span<float>(values));
      if (how == Visit::write) std::copy(values.begin(), values.end(), part.begin());
    }
  });

  // The optimizer's state lies as the parameters do, in ranges that belong to this rank.
  struct Piece {
    std::string slot;
    Range range;
    float* state;
  };
  std::vector<Piece> pieces;
  std::vector<std::string> slots;
  replica.optimizer().visit_state([&](std::string_view slot, Range range, float* state, std::int64_t) {
    pieces.push_back({std::string(slot), range, state});
  });
  for (int s = 0; s < replica.optimizer().optimizer().slots(); ++s)
    slots.push_back(replica.optimizer().optimizer().slot_name(s));
  auto& space = replica.space();
  for (const std::string& slot : slots)
    for (const int p : plan.exchange_order) {
      const Range whole = plan.slot(p).live;
      in_slot.assign(static_cast<std::size_t>(whole.size()), 0.0f);
      const auto for_each_part = [&](auto&& copy) {
        for (const Piece& piece : pieces) {
          if (piece.slot != slot) continue;
          const std::int64_t begin = std::max(piece.range.begin, whole.begin),
                             end = std::min(piece.range.end, whole.end);
          if (begin < end)
            copy(piece.state + (begin - piece.range.begin), in_slot.data() + (begin - whole.begin),
                 static_cast<std::size_t>(end - begin) * sizeof(float));
        }
      };
      for_each_part([&](float* state, float* host, std::size_t bytes) { space.read(host, state, bytes); });
      gather_shards(replica, whole, in_slot);
      live.resize(in_slot.size());
      exec.reorder(p, in_slot, live, false);
      // Dead taps have state only where they decay, which is the rule's to make anew.
      const graph::Parameter& parameter = plan.parameter(p);
      values.assign(static_cast<std::size_t>(parameter.shape.size()), 0.0f);
      exec::for_each_element(plan, p, [&](std::int64_t i, std::int64_t at, bool is_live) {
        if (is_live) values[static_cast<std::size_t>(i)] = live[static_cast<std::size_t>(at - whole.begin)];
      });
      visitor.tensor(concat("optimizer.", slot, ".", parameter.name), parameter.shape,
                     std::span<float>(values));
      if (how == Visit::read) continue;
      exec::for_each_element(plan, p, [&](std::int64_t i, std::int64_t at, bool is_live) {
        if (is_live) live[static_cast<std::size_t>(at - whole.begin)] = values[static_cast<std::size_t>(i)];
      });
      exec.reorder(p, live, in_slot, true);
      for_each_part([&](float* state, float* host, std::size_t bytes) { space.write(state, host, bytes); });
    }

  std::int64_t steps = replica.steps_done(), skipped = replica.optimizer().skipped();
  visitor.counter("steps", steps);
  visitor.counter("skipped", skipped);
  if (how == Visit::write) {
    replica.set_steps_done(steps);
    replica.optimizer().set_skipped(skipped);
  }
}

}  // namespace convoy::train
