// Defaults: the members that most policies share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/on_spans.hpp>
#include <convoy/memory/host.hpp>

namespace convoy::comm {

/// CRTP base of a policy `C`, which overrides what differs. By default the arenas are in host memory, every
/// rank is a worker, all ranks end each step together, each rank updates all parameters, shares of a batch
/// are equal, no rank serves, no state is carried from step to step, no device graph replays steps, and
/// `close` has nothing to release.
template <class C>
class Defaults : public OnSpans<C> {
 public:
  using Space = memory::Host;

  int workers() const { return static_cast<const C&>(*this).size(); }
  static constexpr Role role() { return Role::worker; }
  static constexpr bool lockstep() { return true; }
  static constexpr bool has_servers() { return false; }
  static constexpr bool exchanges() { return true; }
  static constexpr bool decides() { return true; }
  static constexpr bool heeds_decisions() { return false; }
  static constexpr bool repeats() { return false; }
  std::vector<Range> updates(std::span<const Range> buckets) const {
    return {buckets.begin(), buckets.end()};
  }
  void repeat() {}
  void serve(ServerUpdate) {}
  void dismiss() {}
  void visit_state(StateVisitor&) {}
  void close() noexcept {}
  void all_reduce_with_servers(void* values, std::int64_t count, const Reduction& reduction) {
    static_cast<C&>(*this).all_reduce(values, count, reduction);
  }
  std::vector<double> shares(MeasureSpeed) { return {}; }
};

}  // namespace convoy::comm
