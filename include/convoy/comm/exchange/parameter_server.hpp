// ParameterServer: workers push gradients to servers, which hold the parameters and their optimizer, and get
// the parameters back (Li et al. 2014). Servers are ranks beside the workers, or the first of the workers as
// well.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/exchange/collectives.hpp>
#include <convoy/comm/exchange/mailbox.hpp>
#include <convoy/comm/exchange/server_state.hpp>
#include <convoy/comm/transport/culprit.hpp>
#include <convoy/comm/transport/group.hpp>
#include <convoy/comm/transport/threads.hpp>
#include <convoy/comm/transport/wait.hpp>
#include <convoy/core/memory.hpp>

namespace convoy::comm {

enum class Placement : unsigned char {
  among,   ///< the first `servers` workers serve as well, whenever they poll
  beside,  ///< the last `servers` ranks only serve
};

/// How parameters are served.
struct Service {
  Consistency consistency{};
  int servers = 1;
  Placement placement = Placement::among;
};

/// The parameter server over transport `T`, configured at run time.
///
/// A training goes from `serve`, when the servers get worker 0's parameters, to `dismiss`, after which all
/// workers have the same ones. A step of a worker sends each server its part of each bucket's gradients and
/// is over when the parameters have come back. With sync, all workers make the same number of steps.
/// Gradients and parameters are read and written where they lie: those of worker 0 must stay as they are from
/// `serve` to the end of its first step.
template <transport::Transport T>
class Served {
  using Workers = Collectives<schedule::Ring, transport::Group<T>>;

 public:
  static constexpr std::string_view name = "ps";

  Served(const T& where, const Service& service, const Options& options = {})
      : service_(checked(service, where.size())),
        transport_(where.isolated()),
        everyone_(std::make_unique<Engine<T>>(where, options)),
        group_(transport::Group<T>(where, members()), options) {
    if constexpr (requires { transport_.expect_sizes(); }) transport_.expect_sizes();
  }
  Served(Served&&) = default;
  ~Served() {
    const auto receives = [](const Mailbox& mail) { return mail.receiving(); };
    const bool idle = delivered() && std::none_of(servers_.begin(), servers_.end(), receives) &&
                      std::none_of(clients_.begin(), clients_.end(), receives);
    if (!failed_ && !idle) leave("it was ended while it exchanged parameters");
  }

  /// "ps", "ps-async" or "ps-stale".
  std::string_view policy() const {
    if (service_.consistency.sync) return "ps";
    return service_.consistency.bound == Consistency::unbounded ? "ps-async" : "ps-stale";
  }
  int rank() const { return everyone_->rank(); }
  int size() const { return everyone_->size(); }
  int workers() const { return service_.placement == Placement::among ? size() : size() - service_.servers; }
  Role role() const { return rank() < workers() ? Role::worker : Role::server; }
  bool serves() const { return server_of(rank()) >= 0; }
  bool lockstep() const { return service_.consistency.sync; }
  bool has_servers() const { return true; }
  const Service& service() const { return service_; }
  std::pmr::memory_resource* memory() { return everyone_->memory(); }
  void observe(Observer observer) { observer_ = observer; }
  Traffic traffic() const { return traffic_; }

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket);
  void poll() { progress(); }
  void finish(Update);
  void serve(ServerUpdate update);
  void dismiss();

  /// What this rank's server updates; nothing on a worker that does not serve.
  std::vector<Range> updates(std::span<const Range>) const {
    if (!serves() || shard().empty()) return {};
    return {shard()};
  }

  template <class E, OperationTag O>
  void all_reduce(std::span<E> values, O op) {
    if (role() == Role::worker) group().all_reduce(values, op);
  }
  template <class E, OperationTag O>
  void reduce(std::span<E> values, O op) {
    all_reduce(values, op);
  }
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    if (role() == Role::worker) group().all_reduce(values, count, reduction);
  }
  template <class E>
  void broadcast(std::span<E> values, int root) {
    if (role() == Role::worker) group().broadcast(values, root);
  }
  void broadcast(void* data, std::size_t bytes, int root) {
    if (role() == Role::worker) group().broadcast(data, bytes, root);
  }
  void barrier() {
    if (role() == Role::worker) group().barrier();
  }

 private:
  static constexpr int push_lane = 1, reply_lane = 2;

  using Kind = detail::LetterKind;
  using Head = detail::LetterHead;
  using Part = detail::ServedPart;
  using Mailbox = detail::Mailbox<T>;
  using Errand = typename Mailbox::Errand;

  // The workers among themselves: who serves goes on doing so while it waits.
  Workers& group() {
    if (serves() && state_)
      group_.while_waiting({[](void* served) { return static_cast<Served*>(served)->progress(); }, this});
    return group_;
  }
  static Service checked(const Service& s, int ranks) {
    if (s.servers < 1 || s.servers > ranks || (s.placement == Placement::beside && s.servers == ranks))
      fail<ConfigError>("a parameter server needs 1 to ",
                        s.placement == Placement::beside ? ranks - 1 : ranks, " servers in a world of ",
                        ranks, ", not ", s.servers);
    if (!s.consistency.sync && s.consistency.bound < 0)
      fail<ConfigError>("the staleness is ", s.consistency.bound, " steps; it must not be negative");
    return s;
  }
  // Workers in one group, servers beside them in another.
  std::vector<int> members() const {
    std::vector<int> all;
    const bool works = rank() < workers();
    for (int r = 0; r < size(); ++r)
      if ((r < workers()) == works) all.push_back(r);
    return all;
  }
  int rank_of(int server) const {
    return service_.placement == Placement::among ? server : workers() + server;
  }
  int server_of(int rank) const {
    const int server = service_.placement == Placement::among ? rank : rank - workers();
    return server >= 0 && server < service_.servers ? server : -1;
  }
  Range shard_of(int server) const {
    return schedule::part(static_cast<std::int64_t>(layout_.gradients.size()), server, service_.servers, 16);
  }
  Range shard() const { return shard_of(server_of(rank())); }
  const std::vector<Part>& parts(int server) const { return parts_[static_cast<std::size_t>(server)]; }
  const Part& part(int server, int p) const { return parts(server)[static_cast<std::size_t>(p)]; }
  const std::vector<Part>& own_parts() const { return parts(server_of(rank())); }
  Mailbox& to_server(int server) { return servers_[static_cast<std::size_t>(server)]; }
  Mailbox& to_worker(int worker) { return clients_[static_cast<std::size_t>(worker)]; }
  // Where a part of this rank's shard lies in its own memory.
  float* held(Buffer<float>& shard_values, const Range& r) {
    return shard_values.data() + (r.begin - shard().begin);
  }

  bool progress();
  bool starting() const { return started_ < static_cast<int>(own_parts().size()); }
  // Whose letter a server must take before the next one of this worker, or -1: the first parameters come
  // before all gradients, and those of some workers before those of others.
  int before(int worker) {
    if (starting()) return worker == 0 ? -1 : 0;
    return state_->gone(worker) ? -1 : state_->before(worker, to_worker(worker).expected());
  }
  // Takes the numbers of an opened letter to where they belong, if they have come.
  bool fetch(Mailbox& mail, float* into) {
    const std::span<const float> numbers = mail.numbers(transport_, into);
    if (numbers.data() != into) std::copy(numbers.begin(), numbers.end(), into);
    return !numbers.empty();
  }
  bool receive_replies(int server);
  bool receive_pushes(int worker);
  void act(const typename detail::ServerState::Action& action, const float* gradients);
  void expect(int server, int part) {
    ++owed_[static_cast<std::size_t>(server)];
    ++missing_[static_cast<std::size_t>(this->part(server, part).bucket)];
  }
  bool served() const {
    return std::all_of(owed_.begin(), owed_.end(), [](int replies) { return replies == 0; });
  }
  bool delivered(std::vector<Mailbox>& mails) {
    return std::all_of(mails.begin(), mails.end(), [&](Mailbox& mail) { return mail.delivered(transport_); });
  }
  bool delivered() { return delivered(servers_) && delivered(clients_); }
  // Whether servers can read an arena where it is.
  bool reached(std::span<float> arena) const {
    if constexpr (requires { transport_.reaches(arena.data(), arena.size_bytes()); })
      return transport_.reaches(arena.data(), arena.size_bytes());
    else
      return true;
  }
  void start_over();

  template <class Done>
  void wait(const char* what, Done done);
  bool needs(int server) {
    return owed_[static_cast<std::size_t>(server)] > 0 || !to_server(server).delivered(transport_);
  }
  int awaited();
  int departed();
  // A peer may be reading what this rank has posted, and this rank what a peer has.
  void leave(std::string_view reason) {
    failed_ = true;
    for (auto* mails : {&servers_, &clients_})
      for (Mailbox& mail : *mails) mail.cancel(transport_);
    transport_.withdraw(reason);
  }
  [[noreturn]] void give_up(const CommError& error) {
    transport_.accuse(error.culprit < 0 ? rank() : error.culprit);
    leave(error.what());
    throw error;
  }

  Service service_;
  T transport_;
  std::unique_ptr<Engine<T>> everyone_;
  Workers group_;
  Observer observer_;
  Traffic traffic_;

  Layout layout_;
  std::vector<Range> buckets_;
  std::vector<std::vector<Part>> parts_;    // of each server
  std::vector<Mailbox> servers_, clients_;  // a worker's, a server's
  std::vector<bool> begun_;
  std::vector<Clock::time_point> begin_;
  std::vector<int> missing_;  // replies, of each bucket
  std::vector<int> owed_;     // replies, by each server
  int begun_count_ = 0;
  std::int64_t step_ = 0;

  // of a server
  std::optional<detail::ServerState> state_;
  std::optional<ServerUpdate> update_;  // from serve to dismiss
  Buffer<float> master_, sums_;
  int started_ = 0;  // parts whose first parameters have come
  bool failed_ = false;
};

template <transport::Transport T>
void Served<T>::open(const Fingerprint& fingerprint, const Layout& layout) {
  if (layout.parameters.size() < layout.gradients.size())
    fail<ConfigError>("a parameter server needs a parameter for each of the ", layout.gradients.size(),
                      " gradients, not ", layout.parameters.size());
  Workers::check(layout);
  Fingerprint all = fingerprint;
  all.add("comm", policy());
  all.add("comm servers", service_.servers);
  all.add("comm placement", service_.placement == Placement::among ? "among" : "beside");
  all.add("comm staleness", service_.consistency.sync ? -1 : service_.consistency.bound);
  all.add("gradients", layout.gradients.size());
  std::uint64_t hash = hash_of("buckets");
  for (const Range& b : layout.buckets) hash = hash_of(concat(b.begin, ' ', b.end), hash);
  all.add("buckets", hash, concat(layout.buckets.size()));
  agree(*everyone_, all);

  layout_ = layout;
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  begun_.assign(buckets_.size(), false);
  begin_.assign(buckets_.size(), {});
  missing_.assign(buckets_.size(), 0);
  owed_.assign(static_cast<std::size_t>(service_.servers), 0);
  parts_.assign(static_cast<std::size_t>(service_.servers), {});
  for (int s = 0; s < service_.servers; ++s)
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const Range whole = shard_of(s);
      const Range r{std::max(whole.begin, buckets_[b].begin), std::min(whole.end, buckets_[b].end)};
      if (r.begin < r.end) parts_[static_cast<std::size_t>(s)].push_back({r, static_cast<int>(b)});
    }
  servers_.clear();
  clients_.clear();
  // A worker's gradients stay as they are until the step is over. A server's parameters do if no other
  // worker's gradients may reach them first.
  const bool copies = !reached(layout.gradients) || !reached(layout.parameters);
  if (role() == Role::worker)
    for (int s = 0; s < service_.servers; ++s)
      servers_.emplace_back(rank_of(s), push_lane, reply_lane, parts(s), copies, false, memory());
  if (serves()) {
    // The first gradients of a sum become the sum.
    for (int w = 0; w < workers(); ++w)
      clients_.emplace_back(w, reply_lane, push_lane, own_parts(), !lockstep(), !lockstep() || w > 0,
                            memory());
    state_.emplace(workers(), static_cast<int>(own_parts().size()), service_.consistency);
    master_ = Buffer<float>(static_cast<std::size_t>(shard().size()), memory());
    if (lockstep()) sums_ = Buffer<float>(master_.size());
  }
}

template <transport::Transport T>
void Served<T>::begin(int bucket) {
  if (bucket < 0 || static_cast<std::size_t>(bucket) >= buckets_.size())
    fail("there is no bucket ", bucket, "; ", buckets_.size(), " were opened");
  const auto b = static_cast<std::size_t>(bucket);
  if (begun_[b]) fail("bucket ", bucket, " was begun twice in one step");
  begun_[b] = true;
  if (observer_.call != nullptr) begin_[b] = Clock::now();
  // Pushed in the order of buckets, which is what servers expect.
  for (; begun_count_ < static_cast<int>(buckets_.size()) && begun_[static_cast<std::size_t>(begun_count_)];
       ++begun_count_)
    for (int s = 0; s < service_.servers; ++s)
      for (int p = 0; p < static_cast<int>(parts(s).size()); ++p)
        if (part(s, p).bucket == begun_count_) {
          to_server(s).post({Kind::push, p, step_});
          expect(s, p);
        }
  progress();
}

template <transport::Transport T>
void Served<T>::finish(Update) {
  for (int b = 0; b < static_cast<int>(buckets_.size()); ++b)
    if (!begun_[static_cast<std::size_t>(b)]) begin(b);
  wait("the exchange of a step", [&] { return served() && delivered(servers_); });
  begun_.assign(buckets_.size(), false);
  begun_count_ = 0;
  ++step_;
}

template <transport::Transport T>
void Served<T>::serve(ServerUpdate update) {
  if (rank() == 0)
    for (int s = 0; s < static_cast<int>(servers_.size()); ++s)
      for (int p = 0; p < static_cast<int>(parts(s).size()); ++p) to_server(s).post({Kind::start, p, 0});
  if (serves()) update_ = update;
  progress();
  if (role() == Role::worker) return;
  wait("serving", [&] { return state_->over() && delivered(); });
  start_over();
}

template <transport::Transport T>
void Served<T>::dismiss() {
  if (role() != Role::worker) return;
  for (int s = 0; s < static_cast<int>(servers_.size()); ++s) {
    to_server(s).post({Kind::goodbye, 0, step_});
    // The last parameters, with what the others have done to them since.
    for (int p = 0; !lockstep() && p < static_cast<int>(parts(s).size()); ++p) expect(s, p);
  }
  wait("leaving the servers", [&] { return (!serves() || state_->over()) && served() && delivered(); });
  start_over();
  group().barrier();
}

// The next training begins as the last one did. Its messages may come before this rank calls `serve` again.
template <transport::Transport T>
void Served<T>::start_over() {
  if (serves()) state_->start_over();
  update_.reset();
  for (Mailbox& mail : clients_) mail.start_over();
  started_ = 0;
  step_ = 0;
}

template <transport::Transport T>
bool Served<T>::receive_replies(int server) {
  Mailbox& mail = to_server(server);
  int& owed = owed_[static_cast<std::size_t>(server)];
  bool moved = false;
  while (owed > 0) {
    if (mail.open(transport_) == nullptr) break;
    const Part& its = part(server, mail.expected());
    if (!fetch(mail, layout_.parameters.data() + its.range.begin)) break;
    mail.taken(transport_);
    --owed;
    const auto b = static_cast<std::size_t>(its.bucket);
    if (--missing_[b] == 0 && begun_[b] && observer_.call != nullptr)
      observer_.call(observer_.context, {its.bucket, begin_[b], Clock::now()});
    moved = true;
  }
  return moved;
}

template <transport::Transport T>
bool Served<T>::receive_pushes(int worker) {
  Mailbox& mail = to_worker(worker);
  bool moved = false;
  while (update_ && !state_->gone(worker)) {
    if (before(worker) >= 0) break;
    const bool starting = this->starting();
    const Head* head = mail.open(transport_);
    if (head == nullptr) break;
    const auto wrong = [&](int culprit, const auto&... what) {
      throw CommError({rank(), worker, "parameter server", mail.sequence(), 0, 0, culprit}, concat(what...));
    };
    const bool leaves = head->kind == Kind::goodbye;
    if (starting != (head->kind == Kind::start))
      wrong(worker, "rank ", worker, starting ? " began without its parameters" : " began twice");
    if (const int other = starting ? -1 : state_->contradicts(worker, leaves); other >= 0)
      wrong(leaves ? worker : other, "rank ", leaves ? worker : other, " left before rank ",
            leaves ? other : worker, " had made all its steps; with sync all make as many");
    const int p = mail.expected();
    const auto range = [&] { return own_parts()[static_cast<std::size_t>(p)].range; };
    if (leaves) {
      state_->goodbye(worker, [&](const auto& action) { act(action, nullptr); });
    } else if (starting) {
      if (!fetch(mail, held(master_, range()))) break;
      ++started_;
    } else {
      if (const std::int64_t step = state_->pushed(worker, p); head->step != step)
        wrong(worker, "rank ", worker, " is at step ", head->step, " where step ", step, " was expected");
      // The parameters that it got last may be written only when they have gone.
      if (!mail.gone(transport_, p)) break;
      const auto gradients =
          mail.numbers(transport_, lockstep() && worker == 0 ? held(sums_, range()) : nullptr);
      if (gradients.empty()) break;
      state_->push(worker, p, [&](const auto& action) { act(action, gradients.data()); });
    }
    mail.taken(transport_);
    moved = true;
  }
  return moved;
}

template <transport::Transport T>
void Served<T>::act(const typename detail::ServerState::Action& action, const float* gradients) {
  using Action = detail::ServerState::Action;
  const Range range = own_parts()[static_cast<std::size_t>(action.part)].range;
  switch (action.kind) {
    case Action::keep:
      if (!lockstep()) return;  // they are applied at once
      if (float* sum_of_part = held(sums_, range); gradients != sum_of_part)
        std::copy_n(gradients, range.size(), sum_of_part);
      return;
    case Action::add:
      reduction<f32>(sum).loop(held(sums_, range), gradients, range.size(), 1.0f);
      return;
    case Action::apply:
      (*update_)({range, held(master_, range), lockstep() ? held(sums_, range) : gradients,
                  lockstep() ? 1.0f : static_cast<float>(workers()), action.step, action.count});
      return;
    case Action::reply:
      to_worker(action.worker).post({Kind::reply, action.part, action.step});
      return;
  }
}

template <transport::Transport T>
bool Served<T>::progress() {
  if (failed_) throw CommError({rank(), -1, "parameter server", 0, 0, 0}, "this exchange has failed before");
  bool moved = false;
  try {
    for (int s = 0; s < static_cast<int>(servers_.size()); ++s) {
      moved = to_server(s).deliver(transport_, traffic_, [&](const Errand& errand) {
        const Range r = part(s, errand.part).range;
        return (errand.kind == Kind::push ? layout_.gradients : layout_.parameters).data() + r.begin;
      }) || moved;
      moved = receive_replies(s) || moved;
    }
    for (int w = 0; w < static_cast<int>(clients_.size()); ++w) {
      moved = receive_pushes(w) || moved;
      moved = to_worker(w).deliver(transport_, traffic_, [&](const Errand& errand) {
        return held(master_, own_parts()[static_cast<std::size_t>(errand.part)].range);
      }) || moved;
    }
  } catch (const CommError& error) {
    give_up(error);
  } catch (const Error& error) {  // a transport or an optimizer that refuses
    give_up(CommError({rank(), -1, "parameter server", 0, 0, 0}, error.what()));
  }
  return moved;
}

// The rank that this one waits for, or -1 if that is not one in particular.
template <transport::Transport T>
int Served<T>::awaited() {
  for (int s = 0; s < static_cast<int>(servers_.size()); ++s)
    if (rank_of(s) != rank() && needs(s)) return rank_of(s);
  if (!state_) return -1;
  int behind = state_->awaited();
  // Or one whose letter has come in part.
  for (int w = 0; behind < 0 && w < static_cast<int>(clients_.size()); ++w)
    if (to_worker(w).opened()) behind = w;
  // Or one without whom another's letter may not be taken.
  for (int w = 0; update_ && behind < 0 && w < static_cast<int>(clients_.size()); ++w)
    if (const int first = before(w); first >= 0 && to_worker(w).waiting(transport_)) behind = first;
  return behind == rank() ? -1 : behind;
}

// A rank that this one needs and that is gone, or -1.
template <transport::Transport T>
int Served<T>::departed() {
  for (int s = 0; s < static_cast<int>(servers_.size()); ++s)
    if (needs(s) && !transport_.departed(rank_of(s)).empty()) return rank_of(s);
  for (int w = 0; w < static_cast<int>(clients_.size()); ++w)
    if (!state_->gone(w) && !transport_.departed(w).empty()) return w;
  return -1;
}

template <transport::Transport T>
template <class Done>
void Served<T>::wait(const char* what, Done done) {
  const Seconds limit = everyone_->options().deadline;
  transport::Wait wait(transport_, limit);
  for (;;) {
    if (progress()) {
      wait.moved();
      continue;
    }
    if (done()) return;
    if (wait.again()) continue;
    const auto stop = [&](int peer, const transport::Blame& blame) {
      const std::string operation = concat("parameter server, ", what);
      give_up(CommError({rank(), peer, operation, 0, 0, wait.elapsed(), blame.culprit}, blame.reason));
    };
    if (const int gone = departed(); gone >= 0) {
      const std::string why(transport_.departed(gone));
      if (progress()) continue;  // its last message may have come just before it went
      if (done()) return;
      stop(gone, transport::blame_departed(transport_, gone, why, limit));
    }
    // Between two steps nobody is behind: workers evaluate, or load data, for as long as they like within
    // reason.
    if (wait.late())
      if (const int peer = awaited(); peer >= 0 || wait.elapsed() > 10 * limit.count())
        stop(peer, transport::blame_late(transport_, peer, limit));
    wait.rest();
  }
}

/// Gradients of a step are added up in the order of workers before they are applied: the bits of one rank
/// after the other.
struct Sync {
  static constexpr std::string_view name = "ps";
  static constexpr Consistency consistency{};
};
/// Each worker's gradients are applied as they come, and nobody waits for anybody.
struct Async {
  static constexpr std::string_view name = "ps-async";
  static constexpr Consistency consistency{false, Consistency::unbounded};
};
/// As Async, but no worker is more than `k` steps ahead of the slowest.
template <int k>
struct Stale {
  static_assert(k >= 0, "convoy: a staleness is at least 0 steps");
  static constexpr std::string_view name = "ps-stale";
  static constexpr Consistency consistency{false, k};
};

/// `ParameterServer<transport::Mpi>`, `ParameterServer<transport::Threads, Stale<4>, 2>`.
template <class T, class C = Sync, int servers = 1, Placement placement = Placement::among>
class ParameterServer : public Served<T> {
 public:
  static constexpr std::string_view name = C::name;
  explicit ParameterServer(const T& where = T{}, const Options& options = {})
      : Served<T>(where, {C::consistency, servers, placement}, options) {}
};

static_assert(Comm<ParameterServer<transport::Threads>>);

}  // namespace convoy::comm
