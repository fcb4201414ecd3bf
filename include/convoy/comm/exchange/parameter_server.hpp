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
#include <convoy/comm/exchange/server_state.hpp>
#include <convoy/comm/transport/group.hpp>
#include <convoy/comm/transport/threads.hpp>
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
template <transport::Transport T>
class Served {
  using Workers = Collectives<schedule::Ring, transport::Group<T>>;

 public:
  static constexpr std::string_view name = "ps";

  Served(const T& where, const Service& service, const Options& options = {})
      : service_(checked(service, where.size())),
        transport_(where.isolated()),
        everyone_(std::make_unique<Engine<T>>(where, options)),
        group_(transport::Group<T>(where, members()), options) {}
  Served(Served&&) = default;
  ~Served() {
    // A peer may be reading what this rank has posted.
    if (!failed_ && !quiet()) transport_.withdraw("it was ended while it exchanged parameters");
  }

  int rank() const { return everyone_->rank(); }
  int size() const { return everyone_->size(); }
  int workers() const { return service_.placement == Placement::among ? size() : size() - service_.servers; }
  Role role() const { return rank() < workers() ? Role::worker : Role::server; }
  bool serves() const { return server_of(rank()) >= 0; }
  bool lockstep() const { return service_.consistency.sync; }
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

  enum class Kind : std::uint32_t { start = 1, push, reply, goodbye };
  // What every message begins with.
  struct Header {
    std::uint32_t magic = 0x636e7679;
    Kind kind{};
    std::int32_t part = 0;
    std::int32_t sender = 0;
    std::int64_t step = 0;
    std::int64_t count = 0;
    std::byte rest[32] = {};
  };
  static_assert(sizeof(Header) == 64);

  // What a server holds of a bucket.
  struct Part {
    Range range;
    int bucket = 0;
  };
  // A message that may be on its way, and its memory.
  struct Letter {
    Buffer<std::byte> memory;
    typename T::Request request{};
    bool posted = false;
  };
  struct Errand {
    Kind kind{};
    int part = 0;
    std::int64_t step = 0;
  };
  // What is to be sent to a peer, in order, and the receive from it.
  struct Mail {
    std::vector<Errand> errands;
    std::size_t next = 0;
    std::vector<Letter> letters;  // by part; one more for goodbyes
    std::vector<Letter> starts;   // worker 0's
    Buffer<std::byte> inbox;
    typename T::Request receive{};
    bool receiving = false;
    int expected = 0;  // the part that comes next
  };

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
  static std::size_t letter_bytes(const Part& part) {
    return sizeof(Header) + static_cast<std::size_t>(part.range.size()) * sizeof(float);
  }

  Mail& to_server(int server) { return servers_[static_cast<std::size_t>(server)]; }
  Mail& to_worker(int worker) { return clients_[static_cast<std::size_t>(worker)]; }
  std::vector<Part>& parts(int server) { return parts_[static_cast<std::size_t>(server)]; }

  bool progress();
  bool deliver(Mail& mail, int peer, int lane, const std::vector<Part>& parts);
  // A message from a peer, checked; null if there is none yet.
  const Header* look(Mail& mail, int peer, int lane, const std::vector<Part>& parts, std::size_t longest);
  void taken(Mail& mail) {
    transport_.release(mail.receive);
    mail.receiving = false;
  }
  bool receive_replies(int server);
  bool receive_pushes(int worker);
  void act(const typename detail::ServerState::Action& action, const float* gradients);
  void fill(Letter& letter, const Errand& errand, const Part& part);
  bool quiet();
  int awaited();
  void start_over();
  template <class Done>
  void wait(const char* what, Done done);
  [[noreturn]] void give_up(const CommError& error) {
    failed_ = true;
    for (auto* mails : {&servers_, &clients_})
      for (Mail& mail : *mails)
        if (mail.receiving) transport_.cancel(mail.receive);
    transport_.accuse(rank());
    transport_.withdraw(error.what());
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
  std::vector<std::vector<Part>> parts_;  // of each server
  std::vector<Mail> servers_, clients_;
  std::vector<bool> begun_;
  std::vector<Clock::time_point> begin_;
  std::vector<int> missing_;  // replies, of each bucket
  int begun_count_ = 0, missing_count_ = 0;
  std::int64_t step_ = 0;

  // of a server
  std::optional<detail::ServerState> state_;
  std::optional<ServerUpdate> update_;
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
  all.add("comm", name);
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
  parts_.assign(static_cast<std::size_t>(service_.servers), {});
  for (int s = 0; s < service_.servers; ++s)
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const Range whole = shard_of(s);
      const Range r{std::max(whole.begin, buckets_[b].begin), std::min(whole.end, buckets_[b].end)};
      if (r.begin < r.end) parts(s).push_back({r, static_cast<int>(b)});
    }
  const auto make = [&](Mail& mail, const std::vector<Part>& its, bool starts) {
    std::size_t longest = sizeof(Header);
    for (const Part& part : its) {
      mail.letters.push_back({Buffer<std::byte>(letter_bytes(part), memory()), {}, false});
      if (starts) mail.starts.push_back({Buffer<std::byte>(letter_bytes(part), memory()), {}, false});
      longest = std::max(longest, letter_bytes(part));
    }
    mail.letters.push_back({Buffer<std::byte>(sizeof(Header), memory()), {}, false});
    mail.errands.reserve(3 * its.size() + 4);
    if (!T::in_place) mail.inbox = Buffer<std::byte>(longest);
  };
  servers_.clear();
  clients_.clear();
  if (role() == Role::worker) {
    servers_.resize(static_cast<std::size_t>(service_.servers));
    for (int s = 0; s < service_.servers; ++s) make(to_server(s), parts(s), rank() == 0);
  }
  if (serves()) {
    const auto& mine = parts(server_of(rank()));
    clients_.resize(static_cast<std::size_t>(workers()));
    for (Mail& mail : clients_) make(mail, mine, false);
    state_.emplace(workers(), static_cast<int>(mine.size()), service_.consistency);
    master_ = Buffer<float>(static_cast<std::size_t>(shard().size()));
    sums_ = Buffer<float>(static_cast<std::size_t>(shard().size()));
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
  if (step_ == 0 && begun_count_ == 0 && rank() == 0)
    for (int s = 0; s < service_.servers; ++s)
      for (int p = 0; p < static_cast<int>(parts(s).size()); ++p)
        to_server(s).errands.push_back({Kind::start, p, 0});
  // Pushed in the order of buckets, which is what servers expect.
  for (; begun_count_ < static_cast<int>(buckets_.size()) && begun_[static_cast<std::size_t>(begun_count_)];
       ++begun_count_)
    for (int s = 0; s < service_.servers; ++s)
      for (int p = 0; p < static_cast<int>(parts(s).size()); ++p)
        if (parts(s)[static_cast<std::size_t>(p)].bucket == begun_count_) {
          to_server(s).errands.push_back({Kind::push, p, step_});
          ++missing_[static_cast<std::size_t>(begun_count_)];
          ++missing_count_;
        }
  progress();
}

template <transport::Transport T>
void Served<T>::finish(Update) {
  for (int b = 0; b < static_cast<int>(buckets_.size()); ++b)
    if (!begun_[static_cast<std::size_t>(b)]) begin(b);
  wait("the exchange of a step", [&] { return missing_count_ == 0; });
  begun_.assign(buckets_.size(), false);
  begun_count_ = 0;
  ++step_;
}

template <transport::Transport T>
void Served<T>::serve(ServerUpdate update) {
  if (!serves()) return;
  update_ = update;
  if (role() == Role::worker) return;
  wait("serving", [&] { return state_->over() && quiet(); });
  start_over();
}

template <transport::Transport T>
void Served<T>::dismiss() {
  if (role() != Role::worker || servers_.empty()) return;
  for (Mail& mail : servers_) mail.errands.push_back({Kind::goodbye, 0, step_});
  wait("leaving the servers", [&] { return (!serves() || state_->over()) && quiet(); });
  start_over();
  group().barrier();
}

// The next training begins as the last one did.
template <transport::Transport T>
void Served<T>::start_over() {
  if (serves()) state_->start_over();
  for (Mail& mail : clients_) mail.expected = 0;
  started_ = 0;
  step_ = 0;
}

// Posts what can be posted to a peer; true if anything was.
template <transport::Transport T>
bool Served<T>::deliver(Mail& mail, int peer, int lane, const std::vector<Part>& its) {
  bool moved = false;
  for (; mail.next < mail.errands.size(); ++mail.next) {
    const Errand& errand = mail.errands[mail.next];
    const bool bye = errand.kind == Kind::goodbye;
    auto& letters = errand.kind == Kind::start ? mail.starts : mail.letters;
    Letter& letter = bye ? mail.letters.back() : letters[static_cast<std::size_t>(errand.part)];
    if (letter.posted && !transport_.sent(letter.request)) return moved;
    letter.posted = false;
    static const Part none{};
    fill(letter, errand, bye ? none : its[static_cast<std::size_t>(errand.part)]);
    if (!transport_.send(letter.request, peer, lane, letter.memory.data(), letter.memory.size()))
      return moved;
    letter.posted = moved = true;
    ++traffic_.messages;
    traffic_.bytes += static_cast<std::int64_t>(letter.memory.size());
  }
  mail.errands.clear();
  mail.next = 0;
  return moved;
}

template <transport::Transport T>
void Served<T>::fill(Letter& letter, const Errand& errand, const Part& part) {
  Header header;
  header.kind = errand.kind;
  header.part = errand.part;
  header.sender = rank();
  header.step = errand.step;
  header.count = part.range.size();
  std::memcpy(letter.memory.data(), &header, sizeof header);
  const float* from = errand.kind == Kind::reply  ? master_.data() + (part.range.begin - shard().begin)
                      : errand.kind == Kind::push ? layout_.gradients.data() + part.range.begin
                                                  : layout_.parameters.data() + part.range.begin;
  if (!part.range.empty())
    std::memcpy(letter.memory.data() + sizeof header, from,
                static_cast<std::size_t>(part.range.size()) * sizeof(float));
}

template <transport::Transport T>
const typename Served<T>::Header* Served<T>::look(Mail& mail, int peer, int lane,
                                                  const std::vector<Part>& its, std::size_t longest) {
  if (!mail.receiving) {
    transport_.receive(mail.receive, peer, lane, mail.inbox.data(), longest);
    mail.receiving = true;
  }
  const transport::Arrival arrival = transport_.arrived(mail.receive);
  if (arrival.data == nullptr) return nullptr;
  const auto wrong = [&](std::string_view what) {
    CommError::Fields f{rank(), peer, "parameter server", mail.receive.sequence, arrival.bytes, 0, peer};
    give_up(CommError(f, what));
  };
  if (arrival.bytes < sizeof(Header))
    wrong(concat("rank ", peer, " sent ", arrival.bytes, " bytes, less than a header"));
  const auto* header = static_cast<const Header*>(arrival.data);
  if (header->magic != Header{}.magic || header->sender != peer)
    wrong(concat("what rank ", peer, " sent is not of a parameter server"));
  if (header->kind == Kind::goodbye) return header;
  if (header->part != mail.expected)
    wrong(concat("rank ", peer, " sent part ", header->part, " where part ", mail.expected, " was expected"));
  const Part& part = its[static_cast<std::size_t>(mail.expected)];
  if (header->count != part.range.size() || arrival.bytes != letter_bytes(part))
    wrong(concat("rank ", peer, " sent ", header->count, " elements of part ", header->part, " where ",
                 part.range.size(), " were expected"));
  return header;
}

template <transport::Transport T>
bool Served<T>::receive_replies(int server) {
  Mail& mail = to_server(server);
  const auto& its = parts(server);
  bool moved = false;
  while (!its.empty() && missing_count_ > 0) {
    const Header* header = look(mail, rank_of(server), reply_lane, its, mail.inbox.size());
    if (header == nullptr) break;
    const Part& part = its[static_cast<std::size_t>(mail.expected)];
    std::memcpy(layout_.parameters.data() + part.range.begin, header + 1,
                static_cast<std::size_t>(part.range.size()) * sizeof(float));
    taken(mail);
    mail.expected = (mail.expected + 1) % static_cast<int>(its.size());
    const auto b = static_cast<std::size_t>(part.bucket);
    --missing_count_;
    if (--missing_[b] == 0 && observer_.call != nullptr)
      observer_.call(observer_.context, {part.bucket, begin_[b], Clock::now()});
    moved = true;
  }
  return moved;
}

template <transport::Transport T>
bool Served<T>::receive_pushes(int worker) {
  Mail& mail = to_worker(worker);
  const auto& its = parts(server_of(rank()));
  bool moved = false;
  while (!state_->gone(worker) && update_) {
    const bool starting = started_ < static_cast<int>(its.size());
    const Header* header = look(mail, worker, push_lane, its, mail.inbox.size());
    if (header == nullptr) break;
    const auto on = [&](const auto& action) { act(action, reinterpret_cast<const float*>(header + 1)); };
    if (header->kind == Kind::goodbye) {
      state_->goodbye(worker, on);
      taken(mail);
      return true;
    }
    // The first parameters come before all gradients, and those of some workers before those of others.
    if (starting ? worker != 0 : !state_->accepts(worker, mail.expected)) break;
    const Part& part = its[static_cast<std::size_t>(mail.expected)];
    if ((header->kind == Kind::start) != starting ||
        header->step != (starting ? 0 : state_->pushed(worker, mail.expected))) {
      CommError::Fields f{rank(), worker, "parameter server", mail.receive.sequence, letter_bytes(part),
                          0,      worker};
      give_up(CommError(f, concat("rank ", worker, " is at step ", header->step, " where step ",
                                  state_->pushed(worker, mail.expected), " was expected")));
    }
    if (starting) {
      std::memcpy(master_.data() + (part.range.begin - shard().begin), header + 1,
                  static_cast<std::size_t>(part.range.size()) * sizeof(float));
      ++started_;
    } else {
      state_->push(worker, mail.expected, on);
    }
    taken(mail);
    mail.expected = (mail.expected + 1) % static_cast<int>(its.size());
    moved = true;
  }
  return moved;
}

template <transport::Transport T>
void Served<T>::act(const typename detail::ServerState::Action& action, const float* gradients) {
  using Action = detail::ServerState::Action;
  const Part& part = parts(server_of(rank()))[static_cast<std::size_t>(action.part)];
  const std::int64_t offset = part.range.begin - shard().begin;
  const auto bytes = static_cast<std::size_t>(part.range.size()) * sizeof(float);
  switch (action.kind) {
    case Action::keep:
      std::memcpy(sums_.data() + offset, gradients, bytes);
      return;
    case Action::add:
      reduction<f32>(sum).loop(sums_.data() + offset, gradients, part.range.size(), 1.0f);
      return;
    case Action::apply:
      (*update_)({part.range, master_.data() + offset, sums_.data() + offset,
                  service_.consistency.sync ? 1.0f : static_cast<float>(workers()), action.step,
                  action.count});
      return;
    case Action::reply:
      to_worker(action.worker).errands.push_back({Kind::reply, action.part, action.step});
      return;
  }
}

template <transport::Transport T>
bool Served<T>::progress() {
  if (failed_) throw CommError({rank(), -1, "parameter server", 0, 0, 0}, "this exchange has failed before");
  bool moved = false;
  try {
    for (int s = 0; s < static_cast<int>(servers_.size()); ++s) {
      moved = deliver(to_server(s), rank_of(s), push_lane, parts(s)) || moved;
      moved = receive_replies(s) || moved;
    }
    for (int w = 0; w < static_cast<int>(clients_.size()); ++w) {
      moved = receive_pushes(w) || moved;
      moved = deliver(to_worker(w), w, reply_lane, parts(server_of(rank()))) || moved;
    }
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    give_up(CommError({rank(), -1, "parameter server", 0, 0, 0}, error.what()));
  }
  return moved;
}

template <transport::Transport T>
bool Served<T>::quiet() {
  const auto done = [&](Mail& mail) {
    if (!mail.errands.empty()) return false;
    for (auto* letters : {&mail.letters, &mail.starts})
      for (Letter& letter : *letters) {
        if (letter.posted && !transport_.sent(letter.request)) return false;
        letter.posted = false;
      }
    return true;
  };
  return std::all_of(servers_.begin(), servers_.end(), done) &&
         std::all_of(clients_.begin(), clients_.end(), done);
}

// The rank that this one waits for.
template <transport::Transport T>
int Served<T>::awaited() {
  for (int s = 0; s < static_cast<int>(servers_.size()); ++s) {
    const Mail& mail = to_server(s);
    if (!mail.errands.empty()) return rank_of(s);
    if (!parts(s).empty() &&
        missing_[static_cast<std::size_t>(parts(s)[static_cast<std::size_t>(mail.expected)].bucket)] > 0 &&
        rank_of(s) != rank())
      return rank_of(s);
  }
  if (state_)
    for (int p = 0; p < static_cast<int>(parts(server_of(rank())).size()); ++p)
      if (const int w = state_->awaited(p); w >= 0 && w != rank()) return w;
  return -1;
}

template <transport::Transport T>
template <class Done>
void Served<T>::wait(const char* what, Done done) {
  const int spins = transport_.patience();
  Deadline deadline(everyone_->options().deadline);
  int idle = 0;
  for (;;) {
    const std::uint32_t ticket = transport_.ticket();
    if (progress()) {
      idle = 0;
      deadline = Deadline(everyone_->options().deadline);
      continue;
    }
    if (done()) return;
    if (++idle < spins) {
      transport::pause();
      continue;
    }
    const int peer = awaited();
    const std::string_view gone = peer < 0 ? std::string_view() : transport_.departed(peer);
    if (!gone.empty() && !progress())
      give_up(CommError({rank(), peer, concat("parameter server, ", what), 0, 0, deadline.elapsed(), peer},
                        gone));
    if (deadline.expired())
      give_up(CommError(
          {rank(), peer, concat("parameter server, ", what), 0, 0, deadline.elapsed(), peer},
          concat("no answer within the deadline of ", everyone_->options().deadline.count(), " s")));
    transport_.rest(ticket, idle - spins);
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
