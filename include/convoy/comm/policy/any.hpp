// Any: a Comm chosen at run time. Programs that let the user choose instantiate Trainer once, for Any; the
// price is a virtual call per bucket.
#pragma once

#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/codec/half.hpp>
#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/codec/power_sgd.hpp>
#include <convoy/comm/codec/top_k.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/policy/background.hpp>
#include <convoy/comm/policy/compressed.hpp>
#include <convoy/comm/policy/fitting.hpp>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/none.hpp>
#include <convoy/comm/policy/weighted.hpp>
#include <convoy/core/compiled.hpp>

namespace convoy::comm {

/// Holds any Comm. A default-constructed one holds None.
class Any {
 public:
  using Space = memory::Host;

  Any() : Any(None{}) {}
  template <class C>
  requires(!std::is_same_v<std::remove_cvref_t<C>, Any> && Comm<C> && works_in<C, memory::Host>) Any(C comm)
      : held_(std::make_unique<Held<C>>(std::move(comm))) {}

  std::string_view policy() const { return held_->is.policy; }
  int rank() const { return held_->is.rank; }
  int size() const { return held_->is.size; }
  Role role() const { return held_->is.role; }
  std::pmr::memory_resource* memory() { return held_->memory(); }
  void open(const Fingerprint& fingerprint, const Layout& layout) { held_->open(fingerprint, layout); }
  void begin(int bucket, Ready ready = {}) { held_->begin(bucket, ready); }
  void poll() { held_->poll(); }
  void finish(Update update) { held_->finish(update); }
  void serve(ServerUpdate update) { held_->serve(update); }
  void barrier() { held_->barrier(); }
  void observe(Observer observer) { held_->observe(observer); }
  Traffic traffic() const { return held_->traffic(); }
  int workers() const { return held_->is.workers; }
  bool lockstep() const { return held_->is.lockstep; }
  bool has_servers() const { return held_->is.has_servers; }
  bool decides() const { return held_->is.decides; }
  std::vector<Range> updates(std::span<const Range> buckets) const { return held_->updates(buckets); }
  void dismiss() { held_->dismiss(); }
  std::vector<double> shares(MeasureSpeed measure) { return held_->shares(measure); }

  template <class E, OperationTag O>
  void all_reduce(std::span<E> values, O op) {
    held_->all_reduce(values.data(), static_cast<std::int64_t>(values.size()), reduction<E>(op));
  }
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    held_->all_reduce(values, count, reduction);
  }
  template <class E>
  void broadcast(std::span<E> values, int root) {
    static_assert(std::is_trivially_copyable_v<E>,
                  "convoy: only trivially copyable elements can be broadcast");
    held_->broadcast(values.data(), values.size_bytes(), root);
  }
  void broadcast(void* data, std::size_t bytes, int root) { held_->broadcast(data, bytes, root); }

 private:
  // What a Comm is from the beginning.
  struct Facts {
    std::string_view policy;
    int rank, size, workers;
    Role role;
    bool lockstep, has_servers, decides;
  };

  template <class C>
  static Facts facts(const C& comm) {
    return {comm.policy(), comm.rank(),     comm.size(),        comm.workers(),
            comm.role(),   comm.lockstep(), comm.has_servers(), comm.decides()};
  }

  struct Interface {
    explicit Interface(const Facts& facts) : is(facts) {}
    virtual ~Interface() = default;
    virtual std::pmr::memory_resource* memory() = 0;
    virtual void open(const Fingerprint&, const Layout&) = 0;
    virtual void begin(int, Ready) = 0;
    virtual void poll() = 0;
    virtual void finish(Update) = 0;
    virtual void serve(ServerUpdate) = 0;
    virtual void barrier() = 0;
    virtual void observe(Observer) = 0;
    virtual Traffic traffic() const = 0;
    virtual std::vector<Range> updates(std::span<const Range>) const = 0;
    virtual void dismiss() = 0;
    virtual std::vector<double> shares(MeasureSpeed) = 0;
    virtual void all_reduce(void*, std::int64_t, const Reduction&) = 0;
    virtual void broadcast(void*, std::size_t, int) = 0;
    const Facts is;
  };

  template <class C>
  struct Held final : Interface {
    explicit Held(C c) : Interface(facts(c)), comm(std::move(c)) {}
    std::pmr::memory_resource* memory() override { return comm.memory(); }
    void open(const Fingerprint& fingerprint, const Layout& layout) override {
      comm.open(fingerprint, layout);
    }
    void begin(int bucket, Ready ready) override { comm.begin(bucket, ready); }
    void poll() override { comm.poll(); }
    void finish(Update update) override { comm.finish(update); }
    void serve(ServerUpdate update) override { comm.serve(update); }
    void barrier() override { comm.barrier(); }
    void observe(Observer observer) override { comm.observe(observer); }
    Traffic traffic() const override { return comm.traffic(); }
    std::vector<Range> updates(std::span<const Range> buckets) const override {
      return comm.updates(buckets);
    }
    void dismiss() override { comm.dismiss(); }
    std::vector<double> shares(MeasureSpeed measure) override { return comm.shares(measure); }
    void all_reduce(void* values, std::int64_t count, const Reduction& reduction) override {
      comm.all_reduce(values, count, reduction);
    }
    void broadcast(void* data, std::size_t bytes, int root) override { comm.broadcast(data, bytes, root); }
    C comm;
  };

  std::unique_ptr<Interface> held_;
};

static_assert(Comm<Any>);

/// What a transport has beyond the policies that run on all; specialised where that is: `Native` in
/// policy/native.hpp, `Hierarchical` in policy/hierarchical_mpi.hpp.
template <class T>
struct NativePolicy {};
template <class T>
struct HierarchicalPolicy {};

/// The Comm called `policy` on a transport: "none", "ring", "halving-doubling", "tree", "auto", "sharded",
/// "reproducible", "ps", "ps-async", "ps-stale" (with `servers` of the workers serving, or as many ranks
/// beside them); "direct" where ranks see each other's memory; "hierarchical" and "native" over Mpi. Wrapped
/// in Weighted and Background where the options ask for it. Throws ConfigError for an option that it would
/// ignore.
template <transport::Transport T>
Any make(std::string_view policy, const T& where, const Options& options = {}) {
  if (options.weighted && !options.weights.empty())
    fail<ConfigError>("weighted measures the shares that weights give; choose one of them");
  if (options.weighted || !options.weights.empty()) {
    Options plain = options;
    plain.weighted = false;
    plain.weights.clear();
    return Weighted<Any>({options.weights}, make(policy, where, plain));
  }
  if (options.background) {
    Options plain = options;
    plain.background = false;
    detail::refuse_one_thread(where);
    return Background<Any>(make(policy, where, plain));
  }
  detail::refuse_unused(policy, options);
  if (policy == "none") {
    if (where.size() > 1) fail<ConfigError>("comm \"none\" is for one rank, and there are ", where.size());
    return None{};
  }
  if (policy == "ring" && options.codec != "none") {
    if (options.codec == "bf16") return Compressed<Ring<T>, codec::Bf16>(where, options);
    if (options.codec == "f16") return Compressed<Ring<T>, codec::F16>(where, options);
    if (options.codec == "int8") return Compressed<Ring<T>, codec::Int8>(where, options);
    if (options.codec == "topk")
      return Compressed<Ring<T>, codec::TopK>(where, options,
                                              {options.codec_fraction, options.codec_warm_up});
    if (options.codec == "powersgd")
      return Compressed<Ring<T>, codec::PowerSgd>(where, options,
                                                  {options.codec_rank, options.codec_warm_up});
    fail<ConfigError>("there is no codec \"", options.codec,
                      "\"; choose none, bf16, f16, int8, topk or powersgd");
  }
  if (policy == "ring") return Ring<T>(where, options);
  if (policy == "halving-doubling") return HalvingDoubling<T>(where, options);
  if (policy == "tree") return Tree<T>(where, options);
  if (policy == "auto") return Auto<T>(where, options);
  if (policy == "sharded") return Sharded<Ring<T>>(where, options);
  if (policy == "reproducible") return Reproducible<Ring<T>>(where, options);
  const auto served = [&](const Consistency& consistency) {
    const Placement placement = options.servers_beside ? Placement::beside : Placement::among;
    return Served<T>(where, {consistency, options.servers, placement}, options);
  };
  if (policy == "ps") return served(Sync::consistency);
  if (policy == "ps-async") return served(Async::consistency);
  if (policy == "ps-stale") return served({false, options.staleness});
  if constexpr (T::in_place)
    if (policy == "direct") return Direct<T>(where, options);
  if constexpr (requires { typename HierarchicalPolicy<T>::type; })
    if (policy == "hierarchical") return typename HierarchicalPolicy<T>::type(where, options);
  if constexpr (requires { typename NativePolicy<T>::type; })
    if (policy == "native") return typename NativePolicy<T>::type(where, options);
  fail<ConfigError>(
      "there is no comm \"", policy, "\" over ", T::name,
      "; choose none, ring, halving-doubling, tree, auto, sharded, reproducible, ps, ps-async, ps-stale, ",
      T::in_place ? "direct (hierarchical and native are for mpi)"
                  : "hierarchical or native (direct is for threads and shm)");
}

CONVOY_INSTANTIATE(Any make(std::string_view, const transport::Threads&, const Options&));

}  // namespace convoy::comm
