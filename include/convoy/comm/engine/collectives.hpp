// What all policies on a transport share: the operations that a caller waits for, on spans of its own.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/defaults.hpp>
#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/choose.hpp>
#include <convoy/comm/engine/engine.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/ring.hpp>

namespace convoy::comm {

/// A schedule with the number of segments and the window that the options ask for.
template <schedule::Schedule S>
constexpr S segmented(S s, int segments, int window) {
  s.segments = segments;
  if constexpr (requires { s.window; }) s.window = window;
  return s;
}

/// What an algorithm is: a schedule of messages, or one over shared memory.
template <class S>
concept Schedulable = schedule::Schedule<S> || schedule::SharedSchedule<S>;

/// An all-reduce that names its two halves, of messages or over shared memory.
template <class S>
concept Divisible = schedule::TwoHalves<S> ||
    (schedule::SharedSchedule<S>&& schedule::SharedSchedule<typename S::ReduceScatter>&&
         schedule::SharedSchedule<typename S::AllGather>);

namespace detail {

// The reduce-scatter after which rank r holds block r of n, and its all-gather: the algorithm's own if they
// are so, the ring's otherwise.
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

/// Rank, size, broadcast, reductions by schedule `S` and a barrier over transport `T`.
template <Schedulable S, transport::Transport T>
class Collectives : public Defaults<Collectives<S, T>> {
 public:
  explicit Collectives(const T& where, const Options& options)
      : engine_(std::make_unique<Engine<T>>(where, options)) {}

  int rank() const { return engine_->rank(); }
  int size() const { return engine_->size(); }
  std::pmr::memory_resource* memory() { return engine_->memory(); }
  void observe(Observer observer) { engine_->observe(observer); }
  Traffic traffic() const { return engine_->traffic(); }
  const Options& options() const { return engine_->options(); }

  /// Combines the ranks' values of each element; every rank ends with the same bits. All ranks call it with
  /// the same size.
  template <class E, OperationTag O>
  void all_reduce(std::span<E> values, O op) {
    all_reduce(values.data(), static_cast<std::int64_t>(values.size()), reduction<E>(op));
  }
  /// The same with the reduction as a value.
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    engine_->run(program_now(count, reduction.type), values, count, reduction);
  }

  /// The elements of a buffer that are this rank's own: block `rank` of `size` blocks, cut at cache lines.
  Range own(std::int64_t count, DType type) const {
    return schedule::part(count, rank(), size(),
                          schedule::grain_of(static_cast<std::int64_t>(size_of(type))));
  }

  /// Combines the ranks' values of each element; rank r ends with those of its own block, which is returned,
  /// and what the rest of its buffer holds is undefined.
  template <class E, OperationTag O>
  Range reduce_scatter(std::span<E> values, O op) {
    const auto count = static_cast<std::int64_t>(values.size());
    engine_->run(half<typename detail::HalvesOf<S>::ReduceScatter>(count, dtype_of<E>), values.data(), count,
                 reduction<E>(op));
    return own(count, dtype_of<E>);
  }

  /// Every rank ends with each rank's own block.
  template <class E>
  void all_gather(std::span<E> values) {
    const auto count = static_cast<std::int64_t>(values.size());
    engine_->run(half<typename detail::HalvesOf<S>::AllGather>(count, dtype_of<E>), values.data(), count,
                 moved(dtype_of<E>));
  }

  /// Every rank ends with the root's values.
  template <class E>
  void broadcast(std::span<E> values, int root) {
    static_assert(std::is_trivially_copyable_v<E>,
                  "convoy: only trivially copyable elements can be broadcast");
    broadcast(static_cast<void*>(values.data()), values.size_bytes(), root);
  }
  void broadcast(void* data, std::size_t bytes, int root) {
    if (root < 0 || root >= size())
      fail<ConfigError>("broadcast from rank ", root, " in a world of ", size());
    const int segments = segments_for(static_cast<std::int64_t>(bytes), 1, 1, engine_->options());
    detail::broadcast_bytes(*engine_, data, bytes, root, segments);
  }

  /// Returns when all ranks have called it.
  void barrier() { detail::smallest(*engine_, 0); }

  void while_waiting(typename Engine<T>::Chore chore) { engine_->while_waiting(chore); }
  void poll() { engine_->poll(); }

 protected:
  const detail::Program& program_for(std::int64_t count, DType type);
  /// The same where the caller waits for the result, of which a little comes sooner by another way.
  const detail::Program& program_now(std::int64_t count, DType type) {
    if constexpr (std::same_as<S, schedule::Direct> && requires { T::copy_bytes; })
      if (static_cast<std::size_t>(count * (size() - 1)) * size_of(type) <= T::copy_bytes)
        return half<schedule::Eager>(count, type);
    return program_for(count, type);
  }

  /// A schedule other than S, cut as the options ask for.
  template <Schedulable Half>
  const detail::Program& half(std::int64_t count, DType type) {
    if constexpr (schedule::SharedSchedule<Half>) {
      return engine_->program(1, 0, [] { return Half{}; });
    } else {
      const int segments = segments_for(count, size_of(type), size(), engine_->options());
      return engine_->program(segments, 0,
                              [&] { return segmented(Half{}, segments, engine_->options().window); });
    }
  }

  // Compares the caller's fields, and those of the exchange itself. Throws ConfigError for buckets that do
  // not lie in the gradients, each apart from the others, and on all ranks for one that differs from rank 0.
  void agree_on(const Fingerprint& fingerprint, const Layout& layout, std::string_view policy) {
    detail::check(layout);
    agree(*engine_, detail::fields_of(fingerprint, layout, engine_->options(), policy));
  }

  std::unique_ptr<Engine<T>> engine_;
  [[no_unique_address]] detail::ChooserOf<S> chooser_;
};

template <Schedulable S, transport::Transport T>
const detail::Program& Collectives<S, T>::program_for(std::int64_t count, DType type) {
  const auto made = [&](auto s) -> const detail::Program& {
    const int segments = segments_for(count, size_of(type), s.blocks(size()), engine_->options());
    return engine_->program(segments, 0, [&] { return segmented(s, segments, engine_->options().window); });
  };
  if constexpr (schedule::SharedSchedule<S>)
    return half<S>(count, type);
  else if constexpr (detail::chooses<S>)
    return S{1, 1, chooser_(*engine_, count, size_of(type))}.visit(made);
  else
    return made(S{});
}

}  // namespace convoy::comm
