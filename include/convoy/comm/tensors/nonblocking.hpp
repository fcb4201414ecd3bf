// Nonblocking: collective operations that are begun now and end later, several at a time, on the caller's
// spans.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/engine/collectives.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/engine/purpose.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/schedule/broadcast.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

class NonblockingExchange;
namespace detail {
class NonblockingCarrier;
}

/// One operation in flight. Its span belongs to the exchange until the operation is over. Move-only.
///
/// A handle that is destroyed before its operation is over waits as `wait` does, since peers may still be
/// reading the span, and ignores a failure. A handle that is destroyed because of an exception ends the
/// whole exchange instead, so that the other ranks fail at once with a CommError that names this rank.
/// A handle in flight must be destroyed before its exchange is: its destructor uses the exchange.
class Handle {
 public:
  /// A handle of no operation; it is over.
  Handle() = default;
  Handle(Handle&& other) noexcept
      : exchange_(std::exchange(other.exchange_, nullptr)),
        slot_(other.slot_),
        exceptions_(other.exceptions_) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this == &other) return *this;
    drop();
    exchange_ = std::exchange(other.exchange_, nullptr);
    slot_ = other.slot_;
    exceptions_ = other.exceptions_;
    return *this;
  }
  ~Handle() { drop(); }

  /// Advances all operations as far as possible. Returns whether this one is over: its result is there, and
  /// its span may be written again. Throws CommError as `wait` does. Of the time between two calls at most a
  /// second counts towards the deadline.
  bool done();
  /// Returns when the operation is over. Throws CommError, naming the culprit, if a peer is gone or nothing
  /// has moved for the deadline. Every operation of the exchange has then failed, and `wait` throws again.
  void wait();

 private:
  friend NonblockingExchange;
  Handle(NonblockingExchange* exchange, int slot) : exchange_(exchange), slot_(slot) {}
  void drop() noexcept;

  NonblockingExchange* exchange_ = nullptr;
  int slot_ = -1;
  int exceptions_ = std::uncaught_exceptions();
};

/// Begins operations and returns handles, whatever the algorithm and the transport (`Nonblocking` below). It
/// must outlive its handles. All exchanges of one rank over one world, and over its groups, are used by one
/// thread at a time.
/// A wait drives the operations of its own exchange only: ranks with operations of several exchanges in
/// flight wait for these exchanges in the same order, or poll all of them until all are done.
///
/// All ranks begin the same operations in the same order, with spans of the same size. `tag` is a number from
/// 0 to 254 that is the same on all ranks, or -1 for none; an operation throws ConfigError for any other.
/// Operations that meet under different tags fail with an error instead of mixing their elements. The error
/// calls the tag a bucket.
class NonblockingExchange {
 public:
  NonblockingExchange() = default;
  NonblockingExchange(const NonblockingExchange&) = delete;
  NonblockingExchange& operator=(const NonblockingExchange&) = delete;
  virtual ~NonblockingExchange() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The resource for spans that the exchange need not copy.
  virtual std::pmr::memory_resource* memory() = 0;
  /// Advances all operations as far as possible. Throws CommError.
  virtual void poll() = 0;
  /// Throws ConfigError on every rank, naming rank and field, unless all ranks give the same fingerprint.
  virtual void agree_on(const Fingerprint& fingerprint) = 0;
  /// Ends what is in flight; the exchange fails, and the other ranks learn the reason.
  virtual void fail_with(const CommError& reason) noexcept = 0;

  /// Makes room for `more` more operations in flight (16 at first). Throws ConfigError while an operation is
  /// in flight.
  void reserve(int more);

  /// Combines the ranks' values of each element; every rank ends with the same bits. The values are a span,
  /// or a vector, an array or a Buffer that outlives the operation.
  template <Contiguous R, OperationTag O>
  [[nodiscard]] Handle all_reduce_async(R&& range, O op, int tag = -1) {
    const auto values = span_of(range);
    return begin(schedule::Goal::all_reduce, values.data(), count_of(values), reduction<element_of<R>>(op), 0,
                 tag);
  }
  /// Every rank ends with the root's values. Throws ConfigError if there is no such rank. If all ranks name
  /// themselves as the root, no message is received and nobody notices.
  template <Contiguous R>
  [[nodiscard]] Handle broadcast_async(R&& range, int root, int tag = -1) {
    const auto values = span_of(range);
    static_assert(std::is_trivially_copyable_v<element_of<R>>,
                  "convoy: only trivially copyable elements can be broadcast");
    if constexpr (has_dtype<element_of<R>>) {
      return begin(schedule::Goal::broadcast, values.data(), count_of(values), moved(dtype_of<element_of<R>>),
                   root, tag);
    } else {
      const auto bytes = static_cast<std::int64_t>(values.size_bytes());
      return begin(schedule::Goal::broadcast, values.data(), bytes, Reduction{}, root, tag);
    }
  }
  /// Combines like `all_reduce_async`, but rank r ends with the elements of its own block only
  /// (Collectives::own); the rest of the span is undefined. Blocks are cut at cache lines and may be empty.
  template <Contiguous R, OperationTag O>
  [[nodiscard]] Handle reduce_scatter_async(R&& range, O op, int tag = -1) {
    const auto values = span_of(range);
    return begin(schedule::Goal::reduce_scatter, values.data(), count_of(values),
                 reduction<element_of<R>>(op), 0, tag);
  }
  /// Gathers the ranks' own blocks: every rank ends with all of them.
  template <Contiguous R>
  [[nodiscard]] Handle all_gather_async(R&& range, int tag = -1) {
    const auto values = span_of(range);
    return begin(schedule::Goal::all_gather, values.data(), count_of(values), moved(dtype_of<element_of<R>>),
                 0, tag);
  }
  /// The same with goal and reduction as values; `count` in elements of the reduction's type.
  [[nodiscard]] Handle begin(schedule::Goal goal, void* data, std::int64_t count, const Reduction& reduction,
                             int root = 0, int tag = -1);

 protected:
  struct Operation {
    schedule::Goal goal;
    void* data;
    std::int64_t count;
    Reduction reduction;
    int root, tag;
  };
  virtual void resize(int slots) = 0;
  /// `number`: the number of operations begun before this one.
  virtual void start(int slot, const Operation& what, std::uint64_t number) = 0;
  virtual bool over(int slot) = 0;
  virtual void await(int slot) = 0;

 private:
  friend Handle;
  friend detail::NonblockingCarrier;
  std::size_t in_flight() const { return static_cast<std::size_t>(slots_) - free_.size(); }
  /// `begin` with any tag: buckets may be more than the tags that ranks can tell from one another.
  Handle launch(schedule::Goal goal, void* data, std::int64_t count, const Reduction& reduction, int root,
                int tag);
  template <class E>
  static std::int64_t count_of(std::span<E> values) {
    return static_cast<std::int64_t>(values.size());
  }

  struct Span {
    const void* data = nullptr;
    std::int64_t count = -1;
  };

  std::vector<int> free_;     // slots without a handle
  std::vector<Span> served_;  // the last span of each slot
  int slots_ = 0;
  int spare_ = 0;  // slots that were reserved for gradients that are gone
  std::uint64_t begun_ = 0;
};

/// Nonblocking with any schedules over any transport.
class AnyNonblocking : public AnyCollectives, public NonblockingExchange {
  using Base = AnyCollectives;

 public:
  AnyNonblocking(const transport::Any& where, const Schedules& schedules, const Options& options,
                 std::string_view policy)
      : Base(where, schedules, options), policy_(policy) {
    reserve(16);
  }

  int rank() const override { return Base::rank(); }
  int size() const override { return Base::size(); }
  std::pmr::memory_resource* memory() override { return Base::memory(); }
  void poll() override { Base::poll(); }
  void agree_on(const Fingerprint& fingerprint) override { Base::agree_on(fingerprint, {}, policy_); }
  void fail_with(const CommError& reason) noexcept override { engine_->fail_with(reason); }

 protected:
  void resize(int slots) override { engine_->resize(slots); }
  CONVOY_FUNCTION void start(int slot, const Operation& what, std::uint64_t number) override;
  bool over(int slot) override {
    return engine_->look([&] { return engine_->over(slot); });
  }
  void await(int slot) override {
    engine_->poll();  // throws if the exchange has failed before
    engine_->await([&] { return engine_->over(slot); });
  }

 private:
  const detail::Program& program_of(const Operation& what);

  std::string_view policy_;
};

/// Operations with handles by the algorithm of `C` over its transport: `Nonblocking<Ring<transport::Mpi>>`,
/// `Nonblocking<Direct<transport::Shm>>`, `Nonblocking<Hierarchical<Ring<T>, Tree<T>, schedule::Every<4>>>`.
/// Blocking operations (`all_reduce`, `broadcast`, `barrier` and so on) may be called while operations are in
/// flight, by all ranks at the same place in the order.
template <class C>
class Nonblocking : public AnyNonblocking {
  static_assert(
      detail::never<C>,
      "convoy: operations with handles need an all-reduce by one algorithm over one transport, such as "
      "comm::Ring<transport::Mpi>");

 public:
  Nonblocking(auto&&...);  // only declared, so that a program's use of the exchange is no further error
};

template <class S, class T>
class Nonblocking<AllReduce<Algorithm<S, T>, true>> : public AnyNonblocking {
 public:
  static constexpr std::string_view name = S::name;

  /// All ranks call it.
  explicit Nonblocking(const T& where = T{}, const Options& options = {})
      : AnyNonblocking(where, Schedules::of<S>(), options, name) {}
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void AnyNonblocking::start(int slot, const Operation& what, std::uint64_t number) {
  const int lanes = engine_->transport().lanes() - 1;
  engine_->assign(slot, {.program = &program_of(what),
                         .data = what.data,
                         .count = what.count,
                         .reduction = what.reduction,
                         .lane = 1 + static_cast<int>(number % static_cast<std::uint64_t>(lanes)),
                         .bucket = what.tag});
  engine_->begin(slot);
}

CONVOY_FUNCTION const detail::Program& AnyNonblocking::program_of(const Operation& what) {
  switch (what.goal) {
    case schedule::Goal::all_reduce:
      return program_for(what.count, what.reduction.type);
    case schedule::Goal::reduce_scatter:
      return cut(schedules_.reduce_scatter, size(), what.count, what.reduction.type);
    case schedule::Goal::all_gather:
      return cut(schedules_.all_gather, size(), what.count, what.reduction.type);
    case schedule::Goal::broadcast: {
      const int segments = segments_for(what.count, size_of(what.reduction.type), 1, options());
      const schedule::Broadcast broadcast{segments, what.root};
      return engine_->program(schedule::View(broadcast), segments, what.root);
    }
    case schedule::Goal::all_to_all:
      break;
  }
  fail<ConfigError>(
      "this operation has no form with a handle; all_reduce, reduce_scatter, all_gather and broadcast have");
}

CONVOY_FUNCTION bool Handle::done() {
  if (exchange_ == nullptr) return true;
  if (!exchange_->over(slot_)) return false;
  exchange_->free_.push_back(slot_);
  exchange_ = nullptr;
  return true;
}

CONVOY_FUNCTION void Handle::wait() {
  if (exchange_ == nullptr) return;
  exchange_->await(slot_);
  exchange_->free_.push_back(slot_);
  exchange_ = nullptr;
}

CONVOY_FUNCTION void Handle::drop() noexcept {
  if (exchange_ == nullptr) return;
  if (std::uncaught_exceptions() > exceptions_) {
    exchange_->fail_with(
        CommError({exchange_->rank(), -1, "operation with a handle", 0, 0, 0, exchange_->rank()},
                  "an exception ended it"));
    exchange_ = nullptr;
    return;
  }
  try {
    wait();
  } catch (...) {  // the next use of the exchange throws
  }
  exchange_ = nullptr;
}

CONVOY_FUNCTION void NonblockingExchange::reserve(int more) {
  if (in_flight() > 0)
    fail<ConfigError>("reserve must be called before any operation is in flight; ", in_flight(),
                      " are in flight");
  const int reused = std::min(more, spare_);
  spare_ -= reused;
  slots_ += more - reused;
  resize(slots_);
  free_.resize(static_cast<std::size_t>(slots_));
  for (int slot = 0; slot < slots_; ++slot) free_[static_cast<std::size_t>(slot)] = slot;
  served_.assign(free_.size(), {});
}

CONVOY_FUNCTION Handle NonblockingExchange::begin(schedule::Goal goal, void* data, std::int64_t count,
                                                  const Reduction& reduction, int root, int tag) {
  if (tag < -1 || tag >= detail::Purpose::distinct)
    fail<ConfigError>("the tag of an operation is ", tag, "; it must be from 0 to ",
                      detail::Purpose::distinct - 1, ", or -1 for none");
  return launch(goal, data, count, reduction, root, tag);
}

CONVOY_FUNCTION Handle NonblockingExchange::launch(schedule::Goal goal, void* data, std::int64_t count,
                                                   const Reduction& reduction, int root, int tag) {
  if (root < 0 || root >= size()) fail<ConfigError>("broadcast from rank ", root, " in a world of ", size());
  if (free_.empty())
    fail<ConfigError>(slots_,
                      " operations are in flight, and there is room for no more; wait for one, or call ",
                      "reserve before the first");
  // A slot keeps what its last operation needed, so an operation on the same span allocates nothing.
  const auto served = [&](const void* span, std::int64_t elements) {
    return std::find_if(free_.begin(), free_.end(), [&](int slot) {
      const Span& last = served_[static_cast<std::size_t>(slot)];
      return last.data == span && last.count == elements;
    });
  };
  auto at = served(data, count);
  if (at == free_.end()) at = served(nullptr, -1);
  if (at == free_.end()) at = free_.begin();
  const int slot = *at;
  start(slot, {goal, data, count, reduction, root, tag}, begun_);
  ++begun_;  // not for an operation that was refused: other ranks do not count it
  free_.erase(at);
  served_[static_cast<std::size_t>(slot)] = {data, count};
  return Handle(this, slot);
}
#endif

}  // namespace convoy::comm
