// Comm: what Trainer asks of a way to exchange gradients, and the small types that pass between them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/error.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/state.hpp>
#include <convoy/comm/update.hpp>
#include <convoy/core/call.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/anywhere.hpp>
#include <convoy/memory/ready.hpp>

namespace convoy::comm {

enum class Role : unsigned char { worker, server };

/// A tensor of the arenas as a matrix, for codecs that look at shapes. The rows of the matrix go by panels of
/// `panel`, a divisor of `rows`: each panel is stored column after column, so that a panel of 1 is row-major
/// order.
struct Tensor {
  Range range;
  std::int64_t rows = 1, columns = 1, panel = 1;
};

/// The arenas that `open` connects. `buckets` are contiguous ranges of elements, the same on all ranks.
/// Arenas made from `memory()` may be released at any time, others once the exchange is closed; all else
/// lives until then, too. `tensors` may be empty: what lies in the arenas is then a row of numbers. `whole`:
/// what is updated as one, as a matrix may be, in ascending order, each apart from the others and within one
/// bucket; ranks that share out updates cut none of it.
struct Layout {
  std::span<float> gradients;
  std::span<float> parameters;
  std::span<const Range> buckets;
  std::span<const Tensor> tensors = {};
  std::span<const Range> whole = {};
  void* space = nullptr;  ///< the object of type Comm::Space that the arenas lie in; null: plain host memory
};

/// When a bucket was begun and when its exchange was over on this rank.
struct ExchangeEvent {
  int bucket = 0;
  Clock::time_point begin, end;
};

/// Who wants to know (a timeline); called on the rank's own thread. Without an observer no clock is read.
struct Observer {
  void (*call)(void* context, const ExchangeEvent& event) = nullptr;
  void* context = nullptr;
};

/// What a rank has sent so far.
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;
};

/// `void(double share, double& speed)`: finds out how many rows a second this worker computes when the worker
/// takes this share of every batch, all workers at the same time.
using MeasureSpeed = Call<void(double, double&)>;

/// An operation on an element type, as a value (engine/kernel.hpp).
struct Reduction;

/// A way to exchange gradients. A training step of rank r is: `begin(b)` when bucket b's gradients are final
/// (in the same order on all ranks; posts and returns), `poll()` as often as convenient, `finish(update)`,
/// which updates in bucket order each range that this rank must update, as soon as the range is ready (or,
/// where a rule decides over the whole gradient, once the rule has decided: comm/update.hpp), and returns
/// when the parameters are up to date and the gradients may be written again. A worker's gradients are scaled
/// so that the sum over ranks is what the optimizer wants.
///
/// Who a rank is:
/// - `policy()`: the name of the exchange, as `--comm` says it.
/// - `rank()`, `size()`, `role()`; `workers()`: how many ranks compute gradients, ranks 0 to workers-1.
/// - `lockstep()`: whether the workers end each step together, so that a reduction after a step waits for
///   nobody in particular.
/// - `has_servers()`: whether servers make the updates, each from what the server gets, whenever it polls.
/// - `exchanges()`: whether gradients go anywhere, so that the sooner `begin` hears of them the better; else
///   `begin` need not be called.
/// - `decides()`: whether a rule may decide over the whole gradient before it updates.
/// - `heeds_decisions()`: whether the exchange must know of a step that it is skipped, as one does that keeps
///   account of what it left out. Else a rule on a device may keep that there, and answer that it is applied.
/// - `repeats()`: whether a graph of the device may make steps: `begin` and `finish` enqueue the same work in
///   each step, and wait for nothing on the host.
/// - `Space`: the space that the arenas lie in, or memory::Anywhere.
///
/// What a rank does:
/// - `open(fingerprint, layout)`: before the first step; throws on every rank, naming rank and field, if the
///   ranks differ.
/// - `updates(buckets)`: after `open`, the ranges that this rank updates, in ascending order; the optimizer
///   needs state for no others.
/// - `begin(bucket, ready)`: the gradients are final once `ready` has passed; null on the host.
/// - `repeat()`: in place of `begin` and `finish`, where a graph that holds them makes the step.
/// - `broadcast(span, root)`: every worker ends with the root's values.
/// - `all_reduce(span, op)`: every worker ends with the same combined values.
/// - `all_reduce_with_servers(data, count, reduction)`: so does every rank, those that only serve too, which
///   they cannot do from `serve` to `dismiss`.
/// - `barrier()`: returns when all workers have called it.
/// - `serve(update)`: on a server, its loop, which ends when the workers dismiss the server. A worker that is
///   a server as well keeps the callable, to call it while the worker polls; any other worker returns at
///   once.
/// - `dismiss()`: ends `serve` on the servers; every worker calls it once its steps are done.
/// - `shares(measure)`: the workers' shares of a batch, summing to 1; empty where all are equal. A policy
///   that goes by speed has every worker measure, as often as the policy needs. Every worker calls it, before
///   its first step.
/// - `memory()`: where arenas should live, so that the exchange need not copy.
/// - `visit_state(visitor)`: after `open`, between steps, on all ranks: what the exchange carries from
///   step to step (comm/state.hpp).
/// - `observe(observer)`, `traffic()`.
/// - `close()`: the last call, on all ranks, before memory that the exchange was given is freed; called again
///   it does nothing. Afterwards the exchange touches none of that memory, and no rank has it registered or
///   mapped. `close` throws nothing and waits no longer than the deadline. Where an exception flies or the
///   exchange has failed, `close` gives up what is under way and waits for no other rank; the others let go
///   of this rank's memory once they hear of that. `Closing` makes the call.
///
/// Every wait has a deadline; failures throw CommError. Nothing is optional, so that a wrapper can forget
/// nothing: comm::Defaults has what most policies say, comm::Wrapper (policy/wrapper.hpp) forwards it all.
template <class C>
concept Comm = requires(C& c, const C& k, const Fingerprint& fingerprint, const Layout& layout, Update update,
                        ServerUpdate server, MeasureSpeed measure, std::span<const Range> buckets,
                        const Reduction& reduction, Ready ready, int i, std::span<float> f,
                        std::span<double> d, void* data, std::size_t bytes, std::int64_t count,
                        StateVisitor& visitor) {
  typename C::Space;
  { k.policy() } -> std::convertible_to<std::string_view>;
  { k.rank() } -> std::same_as<int>;
  { k.size() } -> std::same_as<int>;
  { k.workers() } -> std::same_as<int>;
  { k.role() } -> std::same_as<Role>;
  { k.lockstep() } -> std::same_as<bool>;
  { k.has_servers() } -> std::same_as<bool>;
  { k.exchanges() } -> std::same_as<bool>;
  { k.decides() } -> std::same_as<bool>;
  { k.heeds_decisions() } -> std::same_as<bool>;
  { k.repeats() } -> std::same_as<bool>;
  { k.updates(buckets) } -> std::same_as<std::vector<Range>>;
  { k.traffic() } -> std::same_as<Traffic>;
  { c.memory() } -> std::same_as<std::pmr::memory_resource*>;
  { c.shares(measure) } -> std::same_as<std::vector<double>>;
  {c.open(fingerprint, layout)};
  {c.begin(i)};
  {c.begin(i, ready)};
  {c.poll()};
  {c.finish(update)};
  {c.repeat()};
  {c.serve(server)};
  {c.dismiss()};
  {c.broadcast(f, i)};
  {c.broadcast(data, bytes, i)};
  {c.all_reduce(f, mean)};
  {c.all_reduce(d, max)};
  {c.all_reduce(data, count, reduction)};
  {c.all_reduce_with_servers(data, count, reduction)};
  {c.barrier()};
  {c.visit_state(visitor)};
  {c.observe(Observer{})};
  requires noexcept(c.close());
};

/// Closes a Comm at the end of a scope, whatever ended the scope. A Closing stands behind the memory that the
/// Comm is given.
template <Comm C>
class Closing {
 public:
  explicit Closing(C& comm) : comm_(comm) {}
  Closing(const Closing&) = delete;
  Closing& operator=(const Closing&) = delete;
  ~Closing() { comm_.close(); }

 private:
  C& comm_;
};

/// Whether a Comm exchanges arenas that lie in the space `S`.
template <class C, class S>
inline constexpr bool works_in =
    std::is_same_v<typename C::Space, S> || std::is_same_v<typename C::Space, memory::Anywhere>;

/// Whether the type of a Comm alone says that no rule may decide over the whole gradient. False: ask
/// `decides()` of the object.
template <class C>
inline constexpr bool never_decides = [] {
  if constexpr (requires { typename C::Wrapped; })  // it says what that says
    return never_decides<typename C::Wrapped>;
  else
    return requires { requires !C::decides(); };
}();

}  // namespace convoy::comm
