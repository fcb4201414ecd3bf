// ParameterServer: workers push gradients to servers, which hold the parameters and their optimizer, and get
// the parameters back (Li et al. 2014). Servers are ranks beside the workers, or the first workers serve as
// well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/collectives.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/on_spans.hpp>
#include <convoy/comm/parameter_server/service.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/comm/transport/threads.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <functional>
#include <utility>

#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/layout.hpp>
#include <convoy/comm/parameter_server/client.hpp>
#include <convoy/comm/parameter_server/server.hpp>
#include <convoy/comm/transport/culprit.hpp>
#include <convoy/comm/transport/wait.hpp>
#include <convoy/core/decision.hpp>
#endif

namespace convoy::comm {

namespace detail {

class ClientAndServer;

#if CONVOY_DEFINITIONS
/// The worker's and the server's end on one rank, and how the rank waits for both. Not movable: arenas hold
/// this object's address.
class ClientAndServer : public std::pmr::memory_resource {
  Seconds deadline_;
  std::pmr::memory_resource* upstream_;
  Layout layout_;
  bool failed_ = false;

 public:
  /// `upstream`: a resource for memory that peers can reach.
  ClientAndServer(const transport::Any& where, Seconds deadline, std::pmr::memory_resource* upstream)
      : deadline_(deadline),
        upstream_(upstream),
        transport(where.isolated()),
        client(transport),
        server(transport) {
    transport.expect_sizes();
  }
  CONVOY_FUNCTION ~ClientAndServer() override;

  /// Ends what is in flight. If anything was, every later operation throws.
  void stop() noexcept;
  /// The arenas to exchange. An arena from this resource may be released at any time: an exchange in flight
  /// is ended first.
  void use(const Layout& layout) { layout_ = layout; }

  void expect_working() const {
    if (failed_)
      throw CommError({transport.rank(), -1, operation, 0, 0, 0}, "this exchange has failed before");
  }
  /// Advances whatever can advance; true if anything did.
  bool progress();
  /// Returns once `done(*this)` is true; `what` names the wait in errors.
  void wait(const char* what, bool (*done)(ClientAndServer&));
  /// Throws CommError for this reason, as does every later operation.
  [[noreturn]] void give_up(std::string_view reason);

  transport::Any transport;
  Client client;
  Server server;
  Traffic traffic;

 private:
  static constexpr const char* operation = "parameter server";

  CONVOY_FUNCTION void* do_allocate(std::size_t bytes, std::size_t align) override;
  CONVOY_FUNCTION void do_deallocate(void* data, std::size_t bytes, std::size_t align) override;
  CONVOY_FUNCTION bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  int awaited();
  int departed();
  // Cancels receives and withdraws from the transport: a peer may be reading what this rank has posted, and
  // this rank what a peer has.
  void withdraw(std::string_view reason) noexcept;
  [[noreturn]] void fail_and_throw(const CommError& error);
};

CONVOY_FUNCTION ClientAndServer::~ClientAndServer() { stop(); }

CONVOY_FUNCTION void* ClientAndServer::do_allocate(std::size_t bytes, std::size_t align) {
  return upstream_->allocate(bytes, align);
}

CONVOY_FUNCTION void ClientAndServer::do_deallocate(void* data, std::size_t bytes, std::size_t align) {
  const auto* begin = static_cast<const std::byte*>(data);
  const auto holds = [&](std::span<const float> arena) {
    const auto* at = reinterpret_cast<const std::byte*>(arena.data());
    return std::less_equal<>()(begin, at) && std::less<>()(at, begin + bytes);
  };
  if (holds(layout_.gradients) || holds(layout_.parameters)) stop();
  // Not freed: a message library may go on reading and writing there, and cannot be stopped.
  if (failed_ && !transport.in_place()) return;
  upstream_->deallocate(data, bytes, align);
}

CONVOY_FUNCTION void ClientAndServer::stop() noexcept {
  if (failed_ || (client.idle() && server.idle())) return;
  transport.accuse(transport.rank());
  withdraw("it was ended while it exchanged parameters");
}

CONVOY_FUNCTION void ClientAndServer::withdraw(std::string_view reason) noexcept {
  failed_ = true;
  client.cancel();
  server.cancel();
  transport.withdraw(reason);
}

CONVOY_FUNCTION void ClientAndServer::fail_and_throw(const CommError& error) {
  transport.accuse(error.culprit < 0 ? transport.rank() : error.culprit);
  withdraw(error.origin());
  throw error;
}

CONVOY_FUNCTION void ClientAndServer::give_up(std::string_view reason) {
  fail_and_throw(CommError({transport.rank(), -1, operation, 0, 0, 0}, reason));
}

CONVOY_FUNCTION bool ClientAndServer::progress() {
  expect_working();
  try {
    const bool moved = client.progress(traffic);
    return server.progress(traffic) || moved;
  } catch (const CommError& error) {
    fail_and_throw(error);
  } catch (const Error& error) {  // a transport or an optimizer that refuses
    fail_and_throw(CommError({transport.rank(), -1, operation, 0, 0, 0}, error.what()));
  } catch (...) {  // an optimizer that fails otherwise
    transport.accuse(transport.rank());
    withdraw("an update of its parameters has failed");
    throw;
  }
}

// The rank that this one waits for, or -1 if that is not one in particular. The rank that its server waits
// for comes first: two workers that also serve, and wait for each other's replies, both wait for a third
// rank.
CONVOY_FUNCTION int ClientAndServer::awaited() {
  const int me = transport.rank();
  if (const int behind = server.awaited(); behind >= 0 && behind != me) return behind;
  return client.waits_for([&](int r) { return r != me; });
}

// A departed rank that this one needs, or -1.
CONVOY_FUNCTION int ClientAndServer::departed() {
  const auto gone = [&](int r) { return !transport.departed(r).empty(); };
  const int server_rank = client.waits_for(gone);
  return server_rank >= 0 ? server_rank : server.waits_for(gone);
}

CONVOY_FUNCTION void ClientAndServer::wait(const char* what, bool (*done)(ClientAndServer&)) {
  transport::Wait wait(transport, deadline_);
  for (;;) {
    const bool moved = progress();
    // Even if something moved: on a server there may always be another worker's letter.
    if (done(*this)) return;
    if (moved) {
      wait.moved();
      continue;
    }
    if (wait.again()) continue;
    const auto fail_because_of = [&](int peer, const transport::Blame& blame) {
      CommError error(
          {transport.rank(), peer, concat(operation, ", ", what), 0, 0, wait.elapsed(), blame.culprit},
          blame.reason);
      error.root = blame.root;
      fail_and_throw(error);
    };
    if (const int gone = departed(); gone >= 0) {
      const std::string why(transport.departed(gone));
      // What the rank did just before it went is seen only now: its last message, and the last that it took.
      if (progress()) continue;
      if (done(*this)) return;
      if (departed() != gone) continue;
      // A rank that gave up because of this rank waits, in the end, for the rank that this one waits for.
      if (transport.accused(gone) == transport.rank())
        if (const int peer = awaited(); peer >= 0) transport.accuse(peer);
      fail_because_of(gone, transport::blame_departed(transport, gone, why, deadline_));
    }
    // Between two steps no worker is behind: workers evaluate, or load data, which may take ten deadlines.
    if (wait.late())
      if (const int peer = awaited(); peer >= 0 || wait.elapsed() > 10 * deadline_.count())
        fail_because_of(peer, transport::blame_late(transport, peer, deadline_));
    wait.rest();
  }
}
#endif

}  // namespace detail

/// The base of ParameterServer: over any transport, with a service chosen at run time.
///
/// A training lasts from `serve`, when the servers get worker 0's parameters, to `dismiss`, after which all
/// workers have the same parameters; in between only the servers update the parameters. In a step, a worker
/// sends each server its part of each bucket's gradients. The step is over when the parameters have come
/// back; the parameters of a bucket may be written from the bucket's `begin` on. With sync, all workers make
/// the same number of steps. If an exception has ended a training on all workers, whose servers are among
/// them, the next `serve` begins another one with worker 0's parameters. It throws CommError on all of them
/// if a worker was in the middle of a step, or if the servers are ranks beside the workers, which are still
/// within the first `serve`. Gradients and parameters are read and written in place: worker 0's parameters
/// must stay as they are from `serve` to the end of its first step, and a server may add up gradients in its
/// own gradient arena.
class AnyParameterServer : public OnSpans<AnyParameterServer> {
 public:
  using Space = memory::Host;

  AnyParameterServer(const transport::Any& where, const Service& service, const Options& options = {});
  AnyParameterServer(AnyParameterServer&&) noexcept;
  AnyParameterServer& operator=(AnyParameterServer&&) noexcept;
  ~AnyParameterServer();

  /// "ps", "ps-async" or "ps-stale".
  std::string_view policy() const {
    if (service_.consistency.sync) return "ps";
    return service_.consistency.bound == Consistency::unbounded ? "ps-async" : "ps-stale";
  }
  int rank() const { return everyone_->rank(); }
  int size() const { return everyone_->size(); }
  int workers() const { return service_.workers(size()); }
  Role role() const { return rank() < workers() ? Role::worker : Role::server; }
  bool serves() const { return server() >= 0; }
  bool lockstep() const { return service_.consistency.sync; }
  static constexpr bool has_servers() { return true; }
  static constexpr bool exchanges() { return true; }
  /// Only with sync: without it, an update is made from one worker's gradients, when they come.
  bool decides() const { return service_.consistency.sync; }
  static constexpr bool heeds_decisions() { return true; }
  static constexpr bool repeats() { return false; }
  const Service& service() const { return service_; }
  std::pmr::memory_resource* memory();
  void observe(Observer observer);
  void close() noexcept;
  Traffic traffic() const;

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready = {});
  void poll();
  void finish(Update);
  void repeat() {}
  void serve(ServerUpdate update);
  void dismiss();
  std::vector<double> shares(MeasureSpeed) { return {}; }

  /// The range that this rank's server updates; empty on a worker that does not serve.
  std::vector<Range> updates(std::span<const Range>) const {
    if (!serves() || shard_.empty()) return {};
    return {shard_};
  }

  using OnSpans<AnyParameterServer>::all_reduce;
  using OnSpans<AnyParameterServer>::broadcast;
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    if (role() == Role::worker) group_.all_reduce(values, count, reduction);
  }
  void broadcast(void* data, std::int64_t count, DType type, int root) {
    if (role() == Role::worker) group_.broadcast(data, count, type, root);
  }
  void broadcast(void* data, std::size_t bytes, int root) {
    if (role() == Role::worker) group_.broadcast(data, bytes, root);
  }
  /// Throws ConfigError while servers that are ranks of their own serve.
  void all_reduce_with_servers(void* values, std::int64_t count, const Reduction& reduction);
  /// How often each parameter has been updated. Without sync, only once the servers are dismissed.
  void visit_state(StateVisitor& visitor);
  void barrier() {
    if (role() == Role::worker) group_.barrier();
  }

 private:
  using Ends = detail::ClientAndServer;

  int server() const { return service_.server_of(rank(), size()); }
  // Prepares for the next training, which begins as the last one did.
  void start_over();
  // The same if no worker has called `dismiss`, because an exception has ended the last training.
  void start_over_after_exception();
  // Whether servers can read an arena in place.
  bool reached(std::span<float> arena) const;

  Service service_;
  std::unique_ptr<Engine> everyone_;
  AnyCollectives group_;                    // of the workers
  std::vector<detail::ServedParts> parts_;  // of each server
  Range shard_;                             // of this rank's
  bool served_ = false;                     // from `serve` to `dismiss`
  std::unique_ptr<Ends> ends_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION AnyParameterServer::AnyParameterServer(const transport::Any& where, const Service& service,
                                                       const Options& options)
    : service_((service.check(where.size()), service)),
      everyone_(std::make_unique<Engine>(where, options)),
      group_(where.group(service.group_of(where.rank(), where.size())), Schedules::of<schedule::Ring>(),
             options),
      ends_(std::make_unique<Ends>(where, options.deadline, everyone_->memory())) {}
CONVOY_FUNCTION AnyParameterServer::AnyParameterServer(AnyParameterServer&&) noexcept = default;
CONVOY_FUNCTION AnyParameterServer& AnyParameterServer::operator=(AnyParameterServer&& other) noexcept {
  ends_ = std::move(other.ends_);  // first, because the memory of the old ends is of the old `everyone_`
  service_ = other.service_;
  everyone_ = std::move(other.everyone_);
  group_ = std::move(other.group_);
  parts_ = std::move(other.parts_);
  shard_ = other.shard_;
  served_ = other.served_;
  return *this;
}
CONVOY_FUNCTION AnyParameterServer::~AnyParameterServer() = default;

CONVOY_FUNCTION void AnyParameterServer::visit_state(StateVisitor& visitor) {
  const std::int64_t before = ends_->server.updates();
  std::int64_t updates = before;
  visitor.common("updates", updates);
  if (updates != before) ends_->server.set_updates(updates);
}

CONVOY_FUNCTION void AnyParameterServer::all_reduce_with_servers(void* values, std::int64_t count,
                                                                 const Reduction& reduction) {
  if (workers() == size()) return group_.all_reduce(values, count, reduction);
  if (served_)
    fail<ConfigError>("comm \"", policy(),
                      "\": its server ranks take part in no other exchange until they are dismissed, as at a "
                      "checkpoint and at the end of a fit that no exception ends");
  const auto ring = schedule::View::of<schedule::Ring>();
  const int segments =
      segments_for(count, size_of(reduction.type), ring.blocks(size()), everyone_->options());
  everyone_->run(everyone_->program(ring, segments), values, count, reduction);
}

CONVOY_FUNCTION std::pmr::memory_resource* AnyParameterServer::memory() { return ends_.get(); }

CONVOY_FUNCTION void AnyParameterServer::observe(Observer observer) { ends_->client.observe(observer); }

CONVOY_FUNCTION void AnyParameterServer::close() noexcept {
  ends_->stop();
  group_.close();
  everyone_->stop();
}

CONVOY_FUNCTION Traffic AnyParameterServer::traffic() const { return ends_->traffic; }

CONVOY_FUNCTION void AnyParameterServer::begin(int bucket, Ready) {
  ends_->expect_working();
  ends_->client.begin(bucket);
  ends_->server.admit();
  ends_->progress();
}

CONVOY_FUNCTION void AnyParameterServer::poll() { ends_->progress(); }

CONVOY_FUNCTION void AnyParameterServer::finish(Update update) {
  ends_->expect_working();
  ends_->client.begin_all();
  ends_->server.admit();
  ends_->wait("the exchange of a step",
              [](Ends& ends) { return ends.client.served() && ends.client.delivered(); });
  ends_->client.end_step();
  if (updates({}).empty() && update.decides())
    update.decided(ends_->client.skipped() ? Decision::skip : Decision::apply);
}

CONVOY_FUNCTION bool AnyParameterServer::reached(std::span<float> arena) const {
  return ends_->transport.reaches(arena.data(), arena.size_bytes());
}

CONVOY_FUNCTION void AnyParameterServer::open(const Fingerprint& fingerprint, const Layout& layout) {
  if (layout.parameters.size() < layout.gradients.size())
    fail<ConfigError>("a parameter server needs a parameter for each of the ", layout.gradients.size(),
                      " gradients, not ", layout.parameters.size());
  const Fingerprint all = detail::fingerprint_of(fingerprint, layout, policy())
                              .add("comm", service_)
                              .add("comm", everyone_->options());
  ends_->stop();
  ends_->expect_working();
  const std::size_t segment =
      everyone_->options().segment_bytes * (ends_->transport.in_place() ? detail::segments_in_place : 1);
  agree(*everyone_, all);

  const auto arena = static_cast<std::int64_t>(layout.gradients.size());
  ends_->use(layout);
  parts_.clear();
  std::vector<int> ranks;
  for (int s = 0; s < service_.servers; ++s) {
    parts_.push_back(detail::parts_of(service_.shard(s, arena, layout.whole), layout.buckets,
                                      static_cast<std::int64_t>(segment / sizeof(float)), layout.whole));
    ranks.push_back(service_.rank_of(s, size()));
  }
  Ends& ends = *ends_;
  if (role() == Role::worker)
    ends.client.open(layout, parts_, ranks, everyone_->options().window,
                     !reached(layout.gradients) || !reached(layout.parameters), memory());
  if (!serves()) return;
  const int me = server();
  shard_ = service_.shard(me, arena, layout.whole);
  std::vector<int> busy;
  for (std::size_t s = 0; s < parts_.size(); ++s)
    if (!parts_[s].empty()) busy.push_back(ranks[s]);
  ends.server.open(
      {workers(), service_.consistency, shard_, layout, reached(layout.parameters), memory(), busy},
      parts_[static_cast<std::size_t>(me)]);
  if (role() == Role::worker) {
    ends.client.server(me).join(ends.server.client(rank()));
    ends.server.client(rank()).join(ends.client.server(me));
  }
  // A rank that serves goes on serving while it waits for other workers.
  group_.while_waiting({[](void* both) { return static_cast<Ends*>(both)->progress(); }, &ends});
}

CONVOY_FUNCTION void AnyParameterServer::serve(ServerUpdate update) {
  Ends& ends = *ends_;
  ends.expect_working();
  if (update.decides() && !decides())
    fail<ConfigError>("comm \"", policy(),
                      "\" applies each worker's gradients on arrival, so that no rule can decide over the "
                      "whole gradient of a step; use ps");
  if (served_) start_over_after_exception();
  served_ = true;
  ends.client.decide_first(update.decides());
  if (rank() == 0 && role() == Role::worker) ends.client.start();
  if (serves()) ends.server.serve(update);
  ends.progress();
  if (role() == Role::worker) return;
  ends.wait("serving", [](Ends& e) { return e.server.over() && e.server.delivered(); });
  ends.server.start_over();
  served_ = false;
}

CONVOY_FUNCTION void AnyParameterServer::dismiss() {
  if (role() != Role::worker) return;
  Ends& ends = *ends_;
  ends.expect_working();
  // Without sync, the last parameters include the other workers' updates since this worker's last step.
  ends.client.leave(!lockstep());
  ends.server.admit();
  ends.wait("leaving the servers", [](Ends& e) {
    return e.server.over() && e.server.delivered() && e.client.served() && e.client.delivered();
  });
  start_over();
}

CONVOY_FUNCTION void AnyParameterServer::start_over() {
  if (serves()) ends_->server.start_over();
  ends_->client.start_over();
  group_.barrier();
  served_ = false;
}

CONVOY_FUNCTION void AnyParameterServer::start_over_after_exception() {
  Ends& ends = *ends_;
  ends.server.admit();  // if the exception came before the first step
  const bool between_steps = ends.client.between_steps();
  if (between_steps)
    ends.wait("starting over after an exception", [](Ends& e) { return e.client.delivered(); });
  double in_steps = between_steps ? 0 : 1;
  all_reduce(std::span<double>(&in_steps, 1), sum);
  if (in_steps > 0)
    ends.give_up(
        "an exception ended the last fit in the middle of a step; construct the trainer again and restore it "
        "from a checkpoint");
  start_over();
}
#endif

/// The gradients of a step are added up in the order of workers and then applied, with the same bits as if
/// the ranks came one after the other.
struct Sync {
  static constexpr std::string_view name = "ps";
  static constexpr Consistency consistency{};
};
/// Each worker's gradients are applied as they come, and no worker waits for another.
struct Async {
  static constexpr std::string_view name = "ps-async";
  static constexpr Consistency consistency{false, Consistency::unbounded};
};
/// Like Async, but no worker is more than `k` steps ahead of the slowest.
template <int k>
struct Stale {
  static_assert(k >= 0, "convoy: a staleness is at least 0 steps");
  static constexpr std::string_view name = "ps-stale";
  static constexpr Consistency consistency{false, k};
};

/// `ParameterServer<transport::Mpi>`, `ParameterServer<transport::Threads, Stale<4>, 2>`.
template <class T, class C = Sync, int servers = 1, Placement placement = Placement::among>
class ParameterServer : public AnyParameterServer {
 public:
  static constexpr std::string_view policy() { return C::name; }
  static constexpr bool decides() { return C::consistency.sync; }
  explicit ParameterServer(const T& where = T{}, const Options& options = {})
      : AnyParameterServer(where, {C::consistency, servers, placement}, options) {}
};

}  // namespace convoy::comm
