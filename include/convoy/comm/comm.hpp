// Comm: what Trainer asks of a way to exchange gradients, and the small types that pass between them.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <convoy/comm/error.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/range.hpp>

namespace convoy::comm {

enum class Role : unsigned char { worker, server };

/// A tensor of the arenas as a matrix, for codecs that look at shapes. Its rows go by panels of `panel`, a
/// divisor of `rows`: each panel is stored column after column, so that a panel of 1 is row-major order.
struct Tensor {
  Range range;
  std::int64_t rows = 1, columns = 1, panel = 1;
};

/// The arenas that `open` connects. `buckets` are contiguous ranges of elements, the same on all ranks; the
/// spans must outlive the exchange. Arenas made from `memory()` may be released at any time, others only
/// between steps. `tensors` may be empty: what lies in the arenas is then a row of numbers.
struct Layout {
  std::span<float> gradients;
  std::span<float> parameters;
  std::span<const Range> buckets;
  std::span<const Tensor> tensors = {};
};

template <class Signature>
class Call;

/// A view of a callable; it must outlive the view.
template <class R, class... Arguments>
class Call<R(Arguments...)> {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Call> && std::is_invocable_r_v<R, F&, Arguments...>)
      Call(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Arguments... arguments) -> R {
          return std::invoke(*static_cast<std::remove_reference_t<F>*>(object), arguments...);
        }) {}
  R operator()(Arguments... arguments) const { return call_(object_, arguments...); }

 private:
  void* object_;
  R (*call_)(void*, Arguments...);
};

/// `void(Range range, float scale)`: updates the parameters of `range` from the gradients of `range` times
/// `scale`. It may read the gradients but not write them: other ranks may still be reading.
using Update = Call<void(Range, float)>;

/// One update on a server: of the parameters of `range`, which lie at `parameters`, from the gradients that
/// lie at `gradients`, times `scale`. `step` is the training step that it belongs to, counted from 0 (for a
/// schedule of learning rates), `count` how many updates the range has had with this one (for bias
/// corrections).
struct ServerPart {
  Range range;
  float* parameters = nullptr;
  const float* gradients = nullptr;
  float scale = 1;
  std::int64_t step = 0, count = 1;
};

/// `void(const ServerPart& part)`.
using ServerUpdate = Call<void(const ServerPart&)>;

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
/// - `open(fingerprint, layout)`: before the first step; throws on every rank, naming rank and field, if the
///   ranks differ.
/// - `broadcast(span, root)`: every worker ends with the root's values.
/// - `reduce(span, op)`, also called `all_reduce`: every worker ends with the same combined values.
/// - `barrier()`: returns when all workers have called it.
/// - `serve(update)`: on a server, its loop, which ends when the workers dismiss it. A worker that is a
/// server
///   as well keeps the callable, to call it while it polls; any other worker returns at once.
/// - `memory()`: where arenas should live, so that the exchange need not copy.
///
/// Every wait has a deadline; failures throw CommError. What a policy may add, and what holds for those that
/// do not, is said by the functions below the concept.
template <class C>
concept Comm = requires(C& c, const C& k, const Fingerprint& fingerprint, const Layout& layout, Update update,
                        ServerUpdate server, int i, std::span<float> f, std::span<double> d) {
  { k.rank() } -> std::same_as<int>;
  { k.size() } -> std::same_as<int>;
  { k.role() } -> std::same_as<Role>;
  { c.memory() } -> std::same_as<std::pmr::memory_resource*>;
  {c.open(fingerprint, layout)};
  {c.begin(i)};
  {c.poll()};
  {c.finish(update)};
  {c.serve(server)};
  {c.broadcast(f, i)};
  {c.reduce(f, sum)};
  {c.reduce(d, max)};
  {c.all_reduce(f, mean)};
  {c.barrier()};
  {c.observe(Observer{})};
  { k.traffic() } -> std::same_as<Traffic>;
};

/// How many ranks compute gradients: ranks 0 to workers-1. All, unless the policy has servers beside them.
template <Comm C>
int workers(const C& comm) {
  if constexpr (requires { comm.workers(); })
    return comm.workers();
  else
    return comm.size();
}

/// Whether the workers end each step together, so that a reduction after it waits for nobody in particular.
template <Comm C>
bool lockstep(const C& comm) {
  if constexpr (requires { comm.lockstep(); })
    return comm.lockstep();
  else
    return true;
}

/// Whether servers make the updates, each from what it gets, whenever it polls.
template <Comm C>
bool has_servers(const C& comm) {
  if constexpr (requires { comm.has_servers(); })
    return comm.has_servers();
  else
    return false;
}

/// After `open`: the ranges that this rank updates, in ascending order; the optimizer needs state for no
/// others. All buckets of the layout, unless the policy shares the updates out.
template <Comm C>
std::vector<Range> updates(const C& comm, std::span<const Range> buckets) {
  if constexpr (requires { comm.updates(buckets); })
    return comm.updates(buckets);
  else
    return {buckets.begin(), buckets.end()};
}

/// Ends `serve` on the servers; every worker calls it once its steps are done.
template <Comm C>
void dismiss(C& comm) {
  if constexpr (requires { comm.dismiss(); }) comm.dismiss();
}

/// `void(double share, double& speed)`: finds out how many rows a second this worker computes when it takes
/// this share of every batch, all workers at the same time.
using MeasureSpeed = Call<void(double, double&)>;

/// The workers' shares of a batch, summing to 1; empty where all are equal. A policy that goes by speed has
/// every worker measure, as often as it needs. Every worker calls it, before its first step.
template <Comm C>
std::vector<double> shares(C& comm, MeasureSpeed measure) {
  if constexpr (requires { comm.shares(measure); })
    return comm.shares(measure);
  else
    return {};
}

}  // namespace convoy::comm
