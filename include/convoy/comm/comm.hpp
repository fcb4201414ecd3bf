// Comm: what Trainer asks of a way to exchange gradients, and the small types that pass between them.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <span>
#include <type_traits>

#include <convoy/comm/error.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/range.hpp>

namespace convoy::comm {

enum class Role : unsigned char { worker, server };

/// The arenas that `open` connects. `buckets` are contiguous ranges of elements, the same on all ranks; the
/// spans must outlive the exchange. Arenas made from `memory()` may be released at any time, others only
/// between steps.
struct Layout {
  std::span<float> gradients;
  std::span<float> parameters;
  std::span<const Range> buckets;
};

/// A view of a callable `void(Range range, float scale)`: updates the parameters of `range` from the
/// gradients of `range` times `scale`. It may read the gradients but not write them: other ranks may still be
/// reading.
class Update {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Update> && std::invocable<F&, Range, float>) Update(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Range range, float scale) {
          std::invoke(*static_cast<std::remove_reference_t<F>*>(object), range, scale);
        }) {}
  void operator()(Range range, float scale) const { call_(object_, range, scale); }

 private:
  void* object_;
  void (*call_)(void*, Range, float);
};

/// When a bucket was begun and when its exchange was over on this rank.
struct ExchangeEvent {
  int bucket = 0;
  Clock::time_point begin, end;
};

/// Who wants to know (a timeline); called on the rank's own thread. Without one, no clock is read.
struct Observer {
  void (*call)(void* context, const ExchangeEvent& event) = nullptr;
  void* context = nullptr;
};

/// What a rank has sent so far.
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
};

/// A way to exchange gradients. One training step of rank r is: `begin(b)` when bucket b's gradients are
/// final (in the same order on all ranks; posts and returns), `poll()` as often as convenient,
/// `finish(update)`, which calls `update(range, scale)` in bucket order for each range that this rank must
/// update, as soon as it is ready, and returns when the parameters are up to date and the gradients may be
/// written again. A worker's gradients are scaled so that the sum over ranks is what the optimizer wants.
///
///   open(fingerprint, layout)  before the first step; throws on every rank, naming rank and field, if the
///   ranks differ broadcast(span, root)      every rank ends with the root's values reduce(span, op) every
///   rank ends with the same combined values (also called all_reduce) barrier()                  returns when
///   all ranks have called it serve(update)              the loop of a server rank; returns at once on a
///   worker memory()                   where arenas should live, so that the exchange need not copy
///
/// Every wait has a deadline; failures throw CommError.
template <class C>
concept Comm = requires(C& c, const C& k, const Fingerprint& fingerprint, const Layout& layout, Update update,
                        int i, std::span<float> f, std::span<double> d) {
  { k.rank() } -> std::same_as<int>;
  { k.size() } -> std::same_as<int>;
  { k.role() } -> std::same_as<Role>;
  { c.memory() } -> std::same_as<std::pmr::memory_resource*>;
  {c.open(fingerprint, layout)};
  {c.begin(i)};
  {c.poll()};
  {c.finish(update)};
  {c.serve(update)};
  {c.broadcast(f, i)};
  {c.reduce(f, sum)};
  {c.reduce(d, max)};
  {c.all_reduce(f, mean)};
  {c.barrier()};
  {c.observe(Observer{})};
  { k.traffic() } -> std::same_as<Traffic>;
};

}  // namespace convoy::comm
