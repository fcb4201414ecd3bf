// AllReduce: every rank ends with the sum of all gradients and makes the same update. Buckets are exchanged
// during backward. The parameters of a bucket are updated as soon as its sum is complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/auto_schedule.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/collectives.hpp>
#include <convoy/comm/policy/none.hpp>
#include <convoy/comm/schedule/direct.hpp>
#include <convoy/comm/schedule/halving_doubling.hpp>
#include <convoy/comm/schedule/hierarchical.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/schedule/tree.hpp>
#include <convoy/comm/transport/threads.hpp>
#include <convoy/core/compiled.hpp>

namespace convoy::comm {

/// An algorithm is a schedule on a transport.
template <class S, class T>
struct Algorithm {
  using Schedule = S;
  using Transport = T;
};

namespace detail {

template <class>
inline constexpr bool never = false;  // a failed concept would give a long error

// Rejects, in one sentence at compile time, what cannot be an all-reduce.
template <class S, class T>
consteval bool fits(Algorithm<S, T>*) {
  if constexpr (!schedule::Schedulable<S>) {
    static_assert(never<S>, "convoy: an all-reduce needs a schedule, a value with == such as schedule::Ring");
  } else if constexpr (S::goal != schedule::Goal::all_reduce) {
    static_assert(
        never<S>,
        "convoy: this schedule does not end with every sum on every rank; use one whose goal is all_reduce, "
        "such as schedule::Ring");
  } else if constexpr (!transport::Transport<T>) {
    static_assert(never<T>,
                  "convoy: an all-reduce needs a transport, such as transport::Threads or transport::Mpi");
  } else if constexpr (requires { requires S::copied; }) {
    static_assert(never<S>,
                  "convoy: copies in shared memory are for a few bytes that a caller waits for, where "
                  "schedule::Direct makes them by itself");
  } else if constexpr (schedule::SharedSchedule<S> && !T::in_place) {
    static_assert(never<T>,
                  "convoy: this algorithm needs ranks that see each other's memory, as those of "
                  "transport::Threads and transport::Shm do");
  } else if constexpr (schedule::SharedSchedule<S> && requires { requires T::checks; }) {
    static_assert(
        never<T>,
        "convoy: transport::Checked cannot check memory that its receivers store to; use a schedule "
        "of messages, such as schedule::Ring");
  } else {
    return true;
  }
  return false;
}

// Placeholder for a rejected policy: a Comm that takes any arguments, so that no second error follows.
struct Refused : None {
  Refused(auto&&...) {}
};

}  // namespace detail

/// The Comm that all-reduces gradients by any schedules over any transport.
class AnyAllReduce : public AnyCollectives {
  using Base = AnyCollectives;

 public:
  AnyAllReduce(const transport::Any& where, const Schedules& schedules, const Options& options)
      : Base(where, schedules, options) {}

  std::string_view policy() const { return schedules_.all_reduce.name(); }

  void open(const Fingerprint& fingerprint, const Layout& layout);

  void begin(int bucket, Ready = {}) { this->engine_->begin(bucket); }

  void finish(Update update);

 private:
  std::vector<Range> buckets_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void AnyAllReduce::open(const Fingerprint& fingerprint, const Layout& layout) {
  Base::agree_on(fingerprint, layout, policy());
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  this->engine_->resize(static_cast<int>(buckets_.size()));
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Range b = buckets_[i];
    const int bucket = static_cast<int>(i);
    this->engine_->assign(bucket, {.program = &Base::program_for(b.size(), DType::f32),
                                   .data = layout.gradients.data() + b.begin,
                                   .count = b.size(),
                                   .reduction = reduction<f32>(sum),
                                   .lane = 1 + bucket % (this->engine_->transport().lanes() - 1),
                                   .bucket = bucket});
  }
}

CONVOY_FUNCTION void AnyAllReduce::finish(Update update) {
  const int count = static_cast<int>(buckets_.size());
  const Arrivals arrivals(update);
  for (int b = 0; b < count; ++b)
    if (!this->engine_->begun(b)) this->engine_->begin(b);
  for (int b = 0; b < count; ++b) {
    this->engine_->await([&] { return this->engine_->complete(b); });
    arrivals.arrived(buckets_[static_cast<std::size_t>(b)]);
    this->engine_->poll();
  }
  arrivals.all(buckets_);
  this->engine_->drain();
}
#endif

template <class A, bool fits = detail::fits(static_cast<A*>(nullptr))>
class AllReduce;

template <class A>
class AllReduce<A, false> : public detail::Refused {
  using Refused::Refused;
};

/// The Comm that all-reduces gradients by schedule `S` over transport `T`.
template <class S, class T>
class AllReduce<Algorithm<S, T>, true> : public AnyAllReduce {
 public:
  static constexpr std::string_view policy() { return S::name; }

  explicit AllReduce(const T& where = T{}, const Options& options = {})
      : AnyAllReduce(where, Schedules::of<S>(), options) {}
};

/// Ring all-reduce: the fewest bytes, 2(n-1) messages deep. `Ring<transport::Mpi>`,
/// `Ring<transport::Threads>`.
template <class T>
using Ring = AllReduce<Algorithm<schedule::Ring, T>>;

/// Recursive halving and doubling: the ring's bytes in 2 lg n messages if n is a power of two, more bytes
/// otherwise.
template <class T>
using HalvingDoubling = AllReduce<Algorithm<schedule::HalvingDoubling, T>>;

/// Double binary tree: about 2 lg n messages deep for any n, up to twice the buffer per rank.
template <class T>
using Tree = AllReduce<Algorithm<schedule::Tree, T>>;

/// Shared memory: each rank combines its part of all buffers in place, in the order of ranks, and stores the
/// result to all buffers. The bits do not depend on the sizes. `Direct<transport::Shm>`,
/// `Direct<transport::Threads>`.
template <class T>
using Direct = AllReduce<Algorithm<schedule::Direct, T>>;

namespace detail {

template <class T>
struct AutoOn {
  using type = AllReduce<Algorithm<AutoSchedule, T>>;
};
template <class T>
requires(T::in_place && !requires { requires T::checks; }) struct AutoOn<T> {
  using type = Direct<T>;
};

}  // namespace detail

/// The cheapest schedule at each size, by the prices of rank 0; see Options::cost. If the ranks share memory,
/// that is Direct at any size and any price: with two barriers and 2M bytes of loads and stores for a buffer
/// of M bytes, Direct costs no more than messages between two ranks, and less among more ranks.
template <class T>
using Auto = typename detail::AutoOn<T>::type;

/// Groups of ranks that share memory, known at run time.
class Nodes;

namespace detail {

template <class Intra, class Inter, class Groups>
struct Levels;
template <class Intra, class T, class Inter, class U, schedule::Grouping Groups>
struct Levels<AllReduce<Algorithm<Intra, T>, true>, AllReduce<Algorithm<Inter, U>, true>, Groups> {
  static_assert(never<Intra>,
                "convoy: given groups are for two levels over one transport, the inner one an all-reduce by "
                "messages that names its two halves, such as Ring, HalvingDoubling or Tree");
  using type = Refused;
};
template <schedule::TwoHalves Intra, class Inter, class T, schedule::Grouping Groups>
struct Levels<AllReduce<Algorithm<Intra, T>, true>, AllReduce<Algorithm<Inter, T>, true>, Groups> {
  using type = AllReduce<Algorithm<schedule::Hierarchical<Intra, Inter, Groups>, T>>;
};

}  // namespace detail

/// `Intra` inside groups of ranks and `Inter` across them.
/// - Over one transport it is one schedule, `Hierarchical<Ring<T>, Tree<T>, schedule::Every<4>>`, and `Intra`
///   and `Inter` may themselves be hierarchical.
/// - With a transport for each level the groups are the nodes of the ranks (policy/hierarchical.hpp):
///   `Hierarchical<Direct<transport::Shm>, Ring<transport::Mpi>>` or
///   `Hierarchical<Tree<transport::Shm>, Ring<transport::Mpi>>`.
/// - Over GPUs the groups are the nodes as well: `Hierarchical<CudaPeer<S>, Ring<transport::Mpi>>`
///   (policy/hierarchical_gpu.cuh) or `Hierarchical<CudaPeer<S>, Nccl<S>>` (policy/nccl_hierarchical.cuh).
template <class Intra, class Inter, class Groups = Nodes>
using Hierarchical = typename detail::Levels<Intra, Inter, Groups>::type;

}  // namespace convoy::comm
