// Any: a Comm chosen at run time. Programs that let the user choose instantiate Trainer once, for Any; the
// price is a virtual call per bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/on_spans.hpp>
#include <convoy/comm/policy/none.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/memory/host.hpp>

namespace convoy::comm {

/// Holds any Comm of arenas in the space `S`. A default-constructed one holds None.
template <memory::Space S>
class AnyIn : public OnSpans<AnyIn<S>> {
 public:
  using Space = S;

  AnyIn() : AnyIn(None{}) {}
  template <class C>
  requires(!std::is_same_v<std::remove_cvref_t<C>, AnyIn> && Comm<C>) AnyIn(C comm)
      : AnyIn(std::in_place_type<C>, std::move(comm)) {}
  /// Holds the `C` that the arguments construct.
  template <Comm C, class... Arguments>
  explicit AnyIn(std::in_place_type_t<C>, Arguments&&... arguments) {
    static_assert(works_in<C, S>,
                  "convoy: comm::Any holds exchanges of arenas in host memory, and comm::AnyIn<Space> those "
                  "of arenas in that space; on a device hold a host policy as comm::Staged<Comm, Space>");
    held_ = std::make_unique<Held<C>>(std::forward<Arguments>(arguments)...);
  }

  std::string_view policy() const { return held_->is.policy; }
  int rank() const { return held_->is.rank; }
  int size() const { return held_->is.size; }
  Role role() const { return held_->is.role; }
  std::pmr::memory_resource* memory() { return held_->memory(); }
  void open(const Fingerprint& fingerprint, const Layout& layout) { held_->open(fingerprint, layout); }
  void begin(int bucket, Ready ready = {}) { held_->begin(bucket, ready); }
  void poll() { held_->poll(); }
  void finish(Update update) { held_->finish(update); }
  bool repeats() const { return held_->repeats(); }
  void repeat() { held_->repeat(); }
  void serve(ServerUpdate update) { held_->serve(update); }
  void barrier() { held_->barrier(); }
  void visit_state(StateVisitor& visitor) { held_->visit_state(visitor); }
  void observe(Observer observer) { held_->observe(observer); }
  void close() noexcept { held_->close(); }
  Traffic traffic() const { return held_->traffic(); }
  int workers() const { return held_->is.workers; }
  bool lockstep() const { return held_->is.lockstep; }
  bool has_servers() const { return held_->is.has_servers; }
  bool exchanges() const { return held_->is.exchanges; }
  bool decides() const { return held_->is.decides; }
  bool heeds_decisions() const { return held_->is.heeds_decisions; }
  bool one_thread() const { return held_->is.one_thread; }
  std::vector<Range> updates(std::span<const Range> buckets) const { return held_->updates(buckets); }
  void dismiss() { held_->dismiss(); }
  std::vector<double> shares(MeasureSpeed measure) { return held_->shares(measure); }

  using OnSpans<AnyIn>::all_reduce;
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    held_->all_reduce(values, count, reduction);
  }
  void all_reduce_with_servers(void* values, std::int64_t count, const Reduction& reduction) {
    held_->all_reduce_with_servers(values, count, reduction);
  }
  using OnSpans<AnyIn>::broadcast;
  void broadcast(void* data, std::size_t bytes, int root) { held_->broadcast(data, bytes, root); }

 private:
  // The properties of a Comm that never change.
  struct Facts {
    std::string_view policy;
    int rank, size, workers;
    Role role;
    bool lockstep, has_servers, exchanges, decides, heeds_decisions, one_thread;
  };

  template <class C>
  static Facts facts(const C& comm) {
    return {comm.policy(),
            comm.rank(),
            comm.size(),
            comm.workers(),
            comm.role(),
            comm.lockstep(),
            comm.has_servers(),
            comm.exchanges(),
            comm.decides(),
            comm.heeds_decisions(),
            transport::one_thread(comm)};
  }

  struct Interface {
    virtual ~Interface() = default;
    virtual std::pmr::memory_resource* memory() = 0;
    virtual void open(const Fingerprint&, const Layout&) = 0;
    virtual void begin(int, Ready) = 0;
    virtual void poll() = 0;
    virtual void finish(Update) = 0;
    virtual bool repeats() const = 0;
    virtual void repeat() = 0;
    virtual void serve(ServerUpdate) = 0;
    virtual void barrier() = 0;
    virtual void visit_state(StateVisitor&) = 0;
    virtual void observe(Observer) = 0;
    virtual void close() noexcept = 0;
    virtual Traffic traffic() const = 0;
    virtual std::vector<Range> updates(std::span<const Range>) const = 0;
    virtual void dismiss() = 0;
    virtual std::vector<double> shares(MeasureSpeed) = 0;
    virtual void all_reduce(void*, std::int64_t, const Reduction&) = 0;
    virtual void all_reduce_with_servers(void*, std::int64_t, const Reduction&) = 0;
    virtual void broadcast(void*, std::size_t, int) = 0;
    Facts is;
  };

  template <class C>
  struct Held final : Interface {
    template <class... Arguments>
    explicit Held(Arguments&&... arguments) : comm(std::forward<Arguments>(arguments)...) {
      this->is = facts(comm);
    }
    std::pmr::memory_resource* memory() override { return arena_memory<S>(comm); }
    void open(const Fingerprint& fingerprint, const Layout& layout) override {
      comm.open(fingerprint, layout);
    }
    void begin(int bucket, Ready ready) override { comm.begin(bucket, ready); }
    void poll() override { comm.poll(); }
    void finish(Update update) override { comm.finish(update); }
    bool repeats() const override { return comm.repeats(); }
    void repeat() override { comm.repeat(); }
    void serve(ServerUpdate update) override { comm.serve(update); }
    void barrier() override { comm.barrier(); }
    void visit_state(StateVisitor& visitor) override { comm.visit_state(visitor); }
    void observe(Observer observer) override { comm.observe(observer); }
    void close() noexcept override { comm.close(); }
    Traffic traffic() const override { return comm.traffic(); }
    std::vector<Range> updates(std::span<const Range> buckets) const override {
      return comm.updates(buckets);
    }
    void dismiss() override { comm.dismiss(); }
    std::vector<double> shares(MeasureSpeed measure) override { return comm.shares(measure); }
    void all_reduce(void* values, std::int64_t count, const Reduction& reduction) override {
      comm.all_reduce(values, count, reduction);
    }
    void all_reduce_with_servers(void* values, std::int64_t count, const Reduction& reduction) override {
      comm.all_reduce_with_servers(values, count, reduction);
    }
    void broadcast(void* data, std::size_t bytes, int root) override { comm.broadcast(data, bytes, root); }
    C comm;
  };

  std::unique_ptr<Interface> held_;
};

/// Holds any Comm of arenas in host memory.
using Any = AnyIn<memory::Host>;

CONVOY_INSTANTIATE(AnyIn<memory::Host>::AnyIn());

}  // namespace convoy::comm
