// Wrapper: the base of policies that wrap another Comm and change part of its behavior.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/transport/transport.hpp>

namespace convoy::comm {

/// Holds the Comm of a wrapper as a member and calls it directly. Any other `Way` has the same three members.
template <class C>
class Held {
 public:
  template <class... Arguments>
  explicit Held(Arguments&&... arguments) : comm_(std::forward<Arguments>(arguments)...) {}

  /// The Comm, for queries whose answers never change.
  const C& facts() const { return comm_; }
  /// Calls `f(comm)`.
  template <class F>
  decltype(auto) call(F&& f) {
    return f(comm_);
  }
  Traffic traffic() const { return comm_.traffic(); }

 private:
  C comm_;
};

/// Forwards every member of a Comm to a `C`. A wrapper derives from it, overrides what differs, and names the
/// overloads that it adds to (`using Base::all_reduce`). `Way` holds the `C` and calls it; that of
/// policy/background.hpp keeps a thread from using the `C` during a call.
template <Comm C, class Way = Held<C>>
class Wrapper {
 public:
  using Space = typename C::Space;
  using Wrapped = C;

  /// The arguments construct the `C`.
  template <class... Arguments>
  explicit Wrapper(std::in_place_t, Arguments&&... arguments) : way_(std::forward<Arguments>(arguments)...) {}

  std::string_view policy() const { return way_.facts().policy(); }
  int rank() const { return way_.facts().rank(); }
  int size() const { return way_.facts().size(); }
  int workers() const { return way_.facts().workers(); }
  Role role() const { return way_.facts().role(); }
  bool lockstep() const { return way_.facts().lockstep(); }
  bool has_servers() const { return way_.facts().has_servers(); }
  bool exchanges() const { return way_.facts().exchanges(); }
  bool decides() const { return way_.facts().decides(); }
  bool heeds_decisions() const { return way_.facts().heeds_decisions(); }
  bool repeats() const { return way_.facts().repeats(); }
  bool one_thread() const { return transport::one_thread(way_.facts()); }
  std::vector<Range> updates(std::span<const Range> buckets) const { return way_.facts().updates(buckets); }
  Traffic traffic() const { return way_.traffic(); }

  std::pmr::memory_resource* memory() {
    return call([](C& comm) { return comm.memory(); });
  }
  void open(const Fingerprint& fingerprint, const Layout& layout) {
    call([&](C& comm) { comm.open(fingerprint, layout); });
  }
  void begin(int bucket, Ready ready = {}) {
    call([&](C& comm) { comm.begin(bucket, ready); });
  }
  void poll() {
    call([](C& comm) { comm.poll(); });
  }
  void finish(Update update) {
    call([&](C& comm) { comm.finish(update); });
  }
  void repeat() {
    call([](C& comm) { comm.repeat(); });
  }
  void serve(ServerUpdate update) {
    call([&](C& comm) { comm.serve(update); });
  }
  void dismiss() {
    call([](C& comm) { comm.dismiss(); });
  }
  void barrier() {
    call([](C& comm) { comm.barrier(); });
  }
  void visit_state(StateVisitor& visitor) {
    call([&](C& comm) { comm.visit_state(visitor); });
  }
  void observe(Observer observer) {
    call([&](C& comm) { comm.observe(observer); });
  }
  void close() noexcept {
    call([](C& comm) { comm.close(); });
  }
  std::vector<double> shares(MeasureSpeed measure) {
    return call([&](C& comm) { return comm.shares(measure); });
  }
  template <Contiguous R, OperationTag O>
  void all_reduce(R&& range, O op) {
    const auto values = span_of(range);
    call([&](C& comm) { comm.all_reduce(values, op); });
  }
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    call([&](C& comm) { comm.all_reduce(values, count, reduction); });
  }
  void all_reduce_with_servers(void* values, std::int64_t count, const Reduction& reduction) {
    call([&](C& comm) { comm.all_reduce_with_servers(values, count, reduction); });
  }
  template <Contiguous R>
  void broadcast(R&& range, int root) {
    const auto values = span_of(range);
    call([&](C& comm) { comm.broadcast(values, root); });
  }
  void broadcast(void* data, std::size_t bytes, int root) {
    call([&](C& comm) { comm.broadcast(data, bytes, root); });
  }

 protected:
  template <class F>
  decltype(auto) call(F&& f) {
    return way_.call(std::forward<F>(f));
  }
  Way& way() { return way_; }
  const Way& way() const { return way_; }

 private:
  Way way_;
};

}  // namespace convoy::comm
