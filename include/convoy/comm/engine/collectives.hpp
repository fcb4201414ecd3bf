// What all policies on a transport share: blocking collectives on the caller's spans.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/defaults.hpp>
#include <convoy/comm/engine/choose.hpp>
#include <convoy/comm/engine/engine.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/schedule/broadcast.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/schedule/view.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/layout.hpp>
#include <convoy/comm/engine/purpose.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::comm {

/// An all-reduce that names its two halves, as schedules of messages or over shared memory.
template <class S>
concept Divisible = schedule::TwoHalves<S> || requires {
  requires schedule::SharedSchedule<S>;
  requires schedule::SharedSchedule<typename S::ReduceScatter>;
  requires schedule::SharedSchedule<typename S::AllGather>;
};

namespace detail {

// The reduce-scatter after which rank r holds block r of n, and its all-gather: the algorithm's own halves if
// they have this layout, the ring's otherwise.
template <class S>
struct HalvesOf {
  using ReduceScatter = schedule::RingReduceScatter;
  using AllGather = schedule::RingAllGather;
};
template <>
struct HalvesOf<schedule::Direct> {
  using ReduceScatter = schedule::DirectReduceScatter;
  using AllGather = schedule::DirectAllGather;
};

}  // namespace detail

/// The schedules of an algorithm.
struct Schedules {
  schedule::View all_reduce, reduce_scatter, all_gather;
  bool eager = false;  ///< a blocking all-reduce of a few bytes sends copies, if the transport can
  /// The function that chooses, if `all_reduce` is one of several schedules; else null. It is called through
  /// a pointer, so that only a program that uses such a schedule compiles prices and measurements.
  int (detail::Chooser::*choose)(Engine& engine, const schedule::View& schedules, std::int64_t count,
                                 std::size_t element) = nullptr;

  template <schedule::Schedulable S>
  static Schedules of();
};

template <schedule::Schedulable S>
Schedules Schedules::of() {
  Schedules all{schedule::View::of<S>(), schedule::View::of<typename detail::HalvesOf<S>::ReduceScatter>(),
                schedule::View::of<typename detail::HalvesOf<S>::AllGather>(),
                std::same_as<S, schedule::Direct>};
  if constexpr (requires { S::choices; }) all.choose = &detail::Chooser::choose;
  return all;
}

CONVOY_INSTANTIATE(Schedules Schedules::of<schedule::Ring>());

/// Rank, size, broadcast, reductions and a barrier by any schedules over any transport.
///
/// `Any` in the name of a policy says that its schedules and its transport are values, so that it is compiled
/// once for all of them. The class template without `Any` has them as arguments, and derives from the class.
class AnyCollectives : public Defaults<AnyCollectives> {
 public:
  AnyCollectives(const transport::Any& where, const Schedules& schedules, const Options& options);
  AnyCollectives(AnyCollectives&&) noexcept = default;
  /// Swaps the two, so that the old engine outlives the memory that a derived policy has from it.
  AnyCollectives& operator=(AnyCollectives&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(schedules_, other.schedules_);
    std::swap(chooser_, other.chooser_);
    return *this;
  }

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  std::pmr::memory_resource* memory() { return engine_->memory(); }
  void observe(Observer observer) { engine_->observe(observer); }
  /// Ends what is in flight.
  void close() noexcept { engine_->stop(); }
  Traffic traffic() const { return engine_->traffic(); }
  const Options& options() const { return engine_->options(); }
  /// Whether all calls must come from one thread (transport::Transport).
  bool one_thread() const { return engine_->transport().one_thread(); }

  using Defaults<AnyCollectives>::all_reduce;
  /// Every rank ends with the same bits.
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction);

  /// This rank's own elements of a buffer: block `rank` of `size` blocks, cut at cache lines.
  Range own(std::int64_t count, DType type) const {
    return share(count, rank(), size(), schedule::grain_of(static_cast<std::int64_t>(size_of(type))));
  }

  /// Combines the ranks' values of each element. Rank r ends with the combined values of its own block, which
  /// is returned; the rest of its buffer is undefined.
  template <Contiguous R, OperationTag O>
  Range reduce_scatter(R&& range, O op) {
    const auto values = span_of(range);
    return reduce_scatter(values.data(), static_cast<std::int64_t>(values.size()),
                          reduction<element_of<R>>(op));
  }
  Range reduce_scatter(void* values, std::int64_t count, const Reduction& reduction);

  /// Gathers the ranks' own blocks: every rank ends with all of them.
  template <Contiguous R>
  void all_gather(R&& range) {
    const auto values = span_of(range);
    all_gather(values.data(), static_cast<std::int64_t>(values.size()), dtype_of<element_of<R>>);
  }
  void all_gather(void* values, std::int64_t count, DType type);

  using Defaults<AnyCollectives>::broadcast;
  /// Every rank ends with the root's values. Ranks whose elements have different DTypes get a CommError. If
  /// all ranks name themselves as the root, no message is received and nobody notices.
  void broadcast(void* data, std::int64_t count, DType type, int root);
  /// The same for bytes, which are of type u8 in errors.
  void broadcast(void* data, std::size_t bytes, int root) {
    broadcast(data, static_cast<std::int64_t>(bytes), DType::u8, root);
  }

  /// Returns when all ranks have called it.
  void barrier();

  /// Calls `chore` while this rank waits for others. A rank that serves answers requests in it.
  void while_waiting(Engine::Chore chore) { engine_->while_waiting(chore); }
  void poll() { engine_->poll(); }

 protected:
  /// The all-reduce of `count` elements; if the schedule chooses among several, the one that rank 0 chooses.
  const detail::Program& program_for(std::int64_t count, DType type);
  /// The same for a blocking call, for which a few bytes may take a faster path (`Schedules::eager`).
  const detail::Program& program_now(std::int64_t count, DType type);

  /// A schedule over a buffer of `blocks` blocks, cut into segments as the options ask for.
  const detail::Program& cut(const schedule::View& schedule, int blocks, std::int64_t count, DType type);
  /// The same with one block per rank.
  template <schedule::Schedulable S>
  const detail::Program& half(std::int64_t count, DType type) {
    return cut(schedule::View::of<S>(), size(), count, type);
  }

  // Compares the caller's fields and those of the exchange across the ranks. Throws ConfigError for buckets
  // that overlap or lie outside the gradients, and on all ranks if one differs from rank 0.
  void agree_on(const Fingerprint& fingerprint, const Layout& layout, std::string_view policy);

  std::unique_ptr<Engine> engine_;
  Schedules schedules_;
  detail::Chooser chooser_;
};

/// AnyCollectives with the schedules of `S` over transport `T`.
template <schedule::Schedulable S, transport::Transport T>
class Collectives : public AnyCollectives {
 public:
  explicit Collectives(const T& where, const Options& options)
      : AnyCollectives(where, Schedules::of<S>(), options) {}
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION AnyCollectives::AnyCollectives(const transport::Any& where, const Schedules& schedules,
                                               const Options& options)
    : engine_(std::make_unique<Engine>(where, options)), schedules_(schedules) {}

CONVOY_FUNCTION void AnyCollectives::all_reduce(void* values, std::int64_t count,
                                                const Reduction& reduction) {
  engine_->run(program_now(count, reduction.type), values, count, reduction);
}

CONVOY_FUNCTION Range AnyCollectives::reduce_scatter(void* values, std::int64_t count,
                                                     const Reduction& reduction) {
  engine_->run(cut(schedules_.reduce_scatter, size(), count, reduction.type), values, count, reduction);
  return own(count, reduction.type);
}

CONVOY_FUNCTION void AnyCollectives::all_gather(void* values, std::int64_t count, DType type) {
  engine_->run(cut(schedules_.all_gather, size(), count, type), values, count, moved(type));
}

CONVOY_FUNCTION const detail::Program& AnyCollectives::program_now(std::int64_t count, DType type) {
  const bool little =
      schedules_.eager && engine_->transport().copy_bytes() > 0 &&
      static_cast<std::size_t>(count * (size() - 1)) * size_of(type) <= engine_->transport().copy_bytes();
  return little ? engine_->program(schedule::View::of<schedule::Eager>()) : program_for(count, type);
}

CONVOY_FUNCTION void AnyCollectives::broadcast(void* data, std::int64_t count, DType type, int root) {
  if (root < 0 || root >= size()) fail<ConfigError>("broadcast from rank ", root, " in a world of ", size());
  const int segments = segments_for(count, size_of(type), 1, engine_->options());
  const schedule::Broadcast broadcast{segments, root};
  engine_->run(engine_->program(schedule::View(broadcast), segments, root), data, count, moved(type));
}

CONVOY_FUNCTION void AnyCollectives::barrier() { detail::smallest(*engine_, 0, detail::Purpose::barrier); }

CONVOY_FUNCTION const detail::Program& AnyCollectives::program_for(std::int64_t count, DType type) {
  const schedule::View& all_reduce = schedules_.all_reduce;
  if (schedules_.choose == nullptr) return cut(all_reduce, all_reduce.blocks(size()), count, type);
  const detail::Program* program = nullptr;
  const int choice = (chooser_.*schedules_.choose)(*engine_, all_reduce, count, size_of(type));
  all_reduce.choose(choice, [&](const schedule::View& chosen) {
    program = &cut(chosen, chosen.blocks(size()), count, type);
  });
  return *program;
}

CONVOY_FUNCTION const detail::Program& AnyCollectives::cut(const schedule::View& schedule, int blocks,
                                                           std::int64_t count, DType type) {
  if (schedule.shared()) return engine_->program(schedule);
  return engine_->program(schedule, segments_for(count, size_of(type), blocks, engine_->options()));
}

CONVOY_FUNCTION void AnyCollectives::agree_on(const Fingerprint& fingerprint, const Layout& layout,
                                              std::string_view policy) {
  agree(*engine_, detail::fingerprint_of(fingerprint, layout, policy).add("comm", engine_->options()));
}
#endif

}  // namespace convoy::comm
