// Defaults: what most policies say of themselves.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/memory/host.hpp>

namespace convoy::comm {

/// A policy `C` derives from it and says what is different: on the host every rank works, all ranks end each
/// step together, each updates all parameters, shares of a batch are equal, nobody serves, nothing is carried
/// from step to step, no graph makes steps, and nothing is held of what the ranks are given.
template <class C>
class Defaults {
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
