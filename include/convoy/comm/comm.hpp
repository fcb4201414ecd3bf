// Comm: the interface that Trainer requires of a gradient exchange, and the small types in it.
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
#include <convoy/memory/space.hpp>

namespace convoy::comm {

enum class Role : unsigned char { worker, server };

/// A tensor of the arenas as a matrix, for codecs that use shapes. The matrix is stored in panels of `panel`
/// rows each; `panel` divides `rows`. A panel is stored column by column, so `panel` = 1 is row-major order.
struct Matrix {
  Range range;
  std::int64_t rows = 1, columns = 1, panel = 1;
};

/// The arenas that `open` connects. `buckets` are contiguous ranges of elements, the same on all ranks.
/// Arenas allocated from `memory()` may be freed at any time. Other arenas, and everything else that a Layout
/// refers to, must live until the exchange is closed. If `matrices` is empty, codecs treat the arenas as
/// plain arrays. `whole` lists the ranges that are updated as a unit, such as a matrix, in ascending order;
/// they are disjoint and each lies within one bucket, from a multiple of 16 elements of the bucket on.
/// Policies that shard the updates do not split such a range.
struct Layout {
  std::span<float> gradients;
  std::span<float> parameters;
  std::span<const Range> buckets;
  std::span<const Matrix> matrices = {};
  std::span<const Range> whole = {};
  void* space = nullptr;  ///< the Comm::Space object of the arenas; null: plain host memory
};

/// When the exchange of a bucket began and ended on this rank. A step has one event for each bucket, however
/// many transfers exchange it: from `begin` until the last of them is over. On GPUs it begins when the
/// gradients are final and the exchanges of earlier buckets are over.
struct ExchangeEvent {
  int bucket = 0;
  Clock::time_point begin, end;
};

/// Callback for exchange events (for a timeline), called on the rank's own thread in the middle of a call of
/// the exchange, so that it must not call the exchange itself. Without an observer no clock is read.
struct Observer {
  void (*call)(void* context, const ExchangeEvent& event) = nullptr;
  void* context = nullptr;
};

/// How the exchange between ranks accesses the arenas that were opened.
enum class Access : unsigned char {
  plain,       ///< as any memory
  registered,  ///< registered with the library that exchanges, which may then avoid copies
  symmetric,   ///< registered by all ranks as one window, so that GPUs may access one another's arenas
};
constexpr std::string_view name_of(Access access) {
  return access == Access::plain ? "plain" : access == Access::registered ? "registered" : "symmetric";
}

/// The payload that a rank has sent since its Comm was constructed. A policy may leave out reads of shared
/// memory and exchanges inside a node, where nothing is sent.
struct Traffic {
  std::int64_t messages = 0;
  std::int64_t bytes = 0;  ///< without the transport's headers
  Access arenas{};
};

/// `void(double share, double& speed)`: measures how many rows per second this worker computes when it takes
/// this share of every batch. All workers measure at the same time.
using MeasureSpeed = Call<void(double, double&)>;

/// An operation on an element type, as a value (engine/kernel.hpp).
struct Reduction;

/// A gradient exchange. In a training step each rank calls
/// 1. `begin(b)` when the gradients of bucket b are final. It posts the exchange and returns. All ranks begin
///    the buckets in the same order.
/// 2. `poll()` as often as convenient.
/// 3. `finish(update)`, which updates this rank's ranges in bucket order, each as soon as its sums are ready
///    or, if a rule decides over the whole gradient, after the decision (comm/update.hpp). It returns when
///    the parameters are up to date and the gradients may be overwritten.
///
/// Workers scale their gradients so that the sum over ranks is the gradient that the optimizer expects.
///
/// Queries:
/// - `policy()`: a name for messages and comparison: that of `--comm`, of the codec or of the schedule, with
///   `sharded ` before it where updates are sharded. Wrappers have the name of what they wrap.
/// - `rank()`, `size()`, `role()`; `workers()`: how many ranks compute gradients, ranks 0 to workers-1.
/// - `lockstep()`: whether the workers end each step together, so that an all-reduce after a step costs no
///   extra waiting.
/// - `has_servers()`: whether servers make the updates, while they poll, from the gradients they receive.
/// - `exchanges()`: whether gradients are exchanged at all, so that an early `begin` pays off. If not, calls
///   of `begin` may be left out.
/// - `decides()`: whether a rule may decide over the whole gradient before it updates.
/// - `heeds_decisions()`: whether the exchange must learn that a step is skipped, for example for its error
///   feedback. If not, a rule on a device may leave the decision there and return `apply`.
/// - `repeats()`: whether a device graph may replay steps, which requires that `begin` and `finish` enqueue
///   the same work in each step and never wait on the host.
/// - `one_thread()`: whether all calls must come from the thread that made the exchange. No background thread
///   may then poll. An exchange without this member takes calls from any thread (transport::one_thread).
/// - `Space`: the memory space of the arenas; memory::Anywhere for any space.
///
/// Operations:
/// - `open(fingerprint, layout)`: called before the first step. If the ranks' fingerprints differ, it throws
///   on every rank and names the rank and the field.
/// - `updates(buckets)`: after `open`, the ranges of these buckets, which are those that were opened, that
///   this rank updates, in ascending order. The optimizer needs state for these only.
/// - `begin(bucket, ready)`: the gradients are final once the stream has passed `ready`; null on the host.
/// - `repeat()`: called instead of `begin` and `finish` when a graph that captured them runs the step.
/// - `broadcast(span, root)`: every worker ends with the root's values.
/// - `all_reduce(span, op)`: every worker ends with the same combined values.
/// - `all_reduce_with_servers(data, count, reduction)`: the same for every rank, including those that only
///   serve; not between `serve` and `dismiss`.
/// - `barrier()`: returns when all workers have called it.
/// - `serve(update)`: on a rank that only serves, the server loop, which returns when the workers dismiss the
///   server. A worker that also serves keeps the callable and calls it while the worker polls. On any other
///   worker it returns at once.
/// - `dismiss()`: ends `serve` on the servers; every worker calls it after its last step.
/// - `shares(measure)`: the workers' shares of a batch, which sum to 1; empty if all are equal. If shares
///   follow speed, it calls `measure` on every worker, as often as the policy needs. Every worker calls
///   `shares` before its first step.
/// - `memory()`: the memory resource for arenas that the exchange can use without copying; null if any memory
///   of its space will do. Ask by `arena_memory`.
/// - `visit_state(visitor)`: visits the state that the exchange carries from step to step (comm/state.hpp);
///   called after `open`, between steps, on all ranks.
/// - `observe(observer)`, `traffic()`.
/// - `close()`: the last call, made on all ranks before memory that was passed to the exchange is freed; a
///   second call is a no-op. Afterwards the exchange does not access that memory, and no rank has it
///   registered or mapped. `close` does not throw and waits no longer than the deadline. During stack
///   unwinding, or if the exchange has failed, `close` abandons pending transfers and waits for no other
///   rank; the other ranks release this rank's memory once they learn of the failure. `Closing` calls
///   `close`.
///
/// Every wait has a deadline; failures throw CommError. No other member is optional, so that a wrapper
/// cannot forget one: comm::Defaults has the common defaults, and comm::Wrapper (policy/wrapper.hpp) forwards
/// every member.
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

/// Scope guard that closes a Comm. Declare it after the memory that the Comm is given, so that the Comm is
/// closed before that memory is freed.
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

/// Whether a Comm exchanges arenas in the memory space `S`.
template <class C, class S>
inline constexpr bool works_in =
    std::is_same_v<typename C::Space, S> || std::is_same_v<typename C::Space, memory::Anywhere>;

/// The memory resource for arenas of a Comm in the space S; null if any memory of the space will do.
template <memory::Space S, Comm C>
std::pmr::memory_resource* arena_memory(C& comm) {
  if constexpr (std::is_same_v<typename C::Space, memory::Anywhere> && !S::addressable)
    return nullptr;
  else
    return comm.memory();
}

/// Whether the type of a Comm alone tells that no rule may decide over the whole gradient. If false, call
/// `decides()` on the object.
template <class C>
inline constexpr bool never_decides = [] {
  if constexpr (requires { typename C::Wrapped; })  // a wrapper answers as the Comm that it wraps
    return never_decides<typename C::Wrapped>;
  else
    return requires { requires !C::decides(); };
}();

}  // namespace convoy::comm
