// Server: a server's end of a parameter server. It does what its ServerState says with incoming gradients:
// adds them up or applies them at once, and sends the parameters back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/parameter_server/mailbox.hpp>
#include <convoy/comm/parameter_server/server_all_reduce.hpp>
#include <convoy/comm/parameter_server/server_state.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/pages.hpp>

namespace convoy::comm::detail {

class Server {
 public:
  explicit Server(transport::Any& transport) : transport_(transport) {}

  struct Setup {
    int workers = 1;
    Consistency consistency{};
    Range shard;
    Layout layout;                                ///< of this rank
    bool shares = false;                          ///< workers can read this rank's parameter arena
    std::pmr::memory_resource* memory = nullptr;  ///< a resource for memory that workers can read
    std::vector<int> servers = {};                ///< the ranks of the servers that update anything
  };

  void open(const Setup& setup, const ServedParts& parts) {
    consistency_ = setup.consistency;
    workers_ = setup.workers;
    parts_ = &parts;
    first_ = setup.shard.begin;
    const bool sync = consistency_.sync, works = transport_.rank() < workers_;
    const auto size = static_cast<std::size_t>(setup.shard.size());
    // With sync, the worker on this rank waits while its parameters are updated, so that worker and server
    // can share one arena. Without sync, the worker computes with its parameters meanwhile.
    const bool same = setup.shares && (sync || !works);
    master_ = Buffer<float>(same ? 0 : size, setup.memory);
    parameters_ = same ? setup.layout.parameters.data() + first_ : master_.data();
    // Sums begin with the gradients of worker 0, and overwrite them in place if worker 0 is on this rank.
    const bool first_here = sync && transport_.rank() == 0 && works;
    sums_ =
        Buffer<float>(sync && !first_here ? size : 0, transport_.in_place() ? memory::pages() : setup.memory);
    sum_ = first_here ? setup.layout.gradients.data() + first_ : sums_.data();
    clients_.clear();
    for (int w = 0; w < workers_; ++w) {
      const bool here = w == transport_.rank();
      clients_.emplace_back(w, reply_lane, push_lane, parts, !sync && !here, !here && (!sync || w > 0),
                            transport_.in_place(), setup.memory);
    }
    state_.emplace(workers_, static_cast<int>(parts.size()), consistency_);
    all_reduce_.open(transport_.rank(), setup.servers, setup.memory);
    started_ = 0;
    deciding_ = false;
  }
  /// How often each part has been updated; -1 if there are no parts.
  std::int64_t updates() const { return state_ ? state_->updates() : -1; }
  void set_updates(std::int64_t count) {
    if (state_) state_->set_updates(count);
  }
  Mailbox& client(int worker) { return clients_[static_cast<std::size_t>(worker)]; }

  /// Accepts letters from now on. If this rank's worker may still be reading or broadcasting its parameters
  /// where the server stores its own, the first parameters are accepted only after `admit`. Asks `update`
  /// once, for all steps, whether it decides.
  void serve(ServerUpdate update) {
    update_ = update;
    decides_ = update.decides();
    state_->decide_first(decides_);
    admits_ = master_.size() > 0 || transport_.rank() >= workers_;
  }
  /// The worker on this rank has begun its first step, or leaves without one.
  void admit() { admits_ = true; }
  /// Whether all workers have left; true where there is no server.
  bool over() const { return !state_ || state_->over(); }
  /// Prepares for the next training, which begins as the last one did. Its messages may come before `serve`
  /// is called again.
  void start_over() {
    state_->start_over();
    update_.reset();
    for (Mailbox& mail : clients_) mail.start_over();
    started_ = 0;
  }

  bool progress(Traffic& traffic) {
    bool moved = false;
    for (int w = 0; w < static_cast<int>(clients_.size()); ++w) {
      moved = receive(w) || moved;
      moved = client(w).deliver(transport_, traffic) || moved;
    }
    return decide(traffic) || moved;
  }

  bool delivered() {
    return std::all_of(clients_.begin(), clients_.end(),
                       [&](Mailbox& mail) { return mail.delivered(transport_); }) &&
           all_reduce_.delivered(transport_);
  }
  bool idle() {
    return delivered() && !all_reduce_.receiving() &&
           std::none_of(clients_.begin(), clients_.end(),
                        [](const Mailbox& mail) { return mail.receiving(); });
  }
  /// The worker or other server that this server waits for, or -1 if that is not one in particular.
  int awaited() {
    if (!state_) return -1;
    if (const int server = all_reduce_.waits_for([](int) { return true; }); server >= 0) return server;
    int behind = state_->awaited();
    // Or a worker whose letter has come in part.
    for (int w = 0; behind < 0 && w < workers_; ++w)
      if (client(w).opened()) behind = w;
    // Or a worker whose letter must be taken before another worker's.
    for (int w = 0; update_ && behind < 0 && w < workers_; ++w)
      if (const int first = before(w); first >= 0 && client(w).waiting(transport_)) behind = first;
    return behind;
  }
  /// A worker that has not left, or a server whose numbers have not come, for which `which(rank)` holds; or
  /// -1.
  template <class Which>
  int waits_for(Which&& which) {
    for (int w = 0; w < static_cast<int>(clients_.size()); ++w)
      if (!state_->gone(w) && which(w)) return w;
    return all_reduce_.waits_for(which);
  }
  void cancel() noexcept {
    for (Mailbox& mail : clients_) mail.cancel(transport_);
    all_reduce_.cancel(transport_);
  }

 private:
  Range range(int p) const { return (*parts_)[static_cast<std::size_t>(p)].range; }
  float* parameters(int p) { return parameters_ + (range(p).begin - first_); }
  float* sum(int p) { return sum_ + (range(p).begin - first_); }
  bool starting() const { return started_ < static_cast<int>(parts_->size()); }

  // The worker whose letter must be taken before the next one of this worker, or -1. The first parameters
  // come before all gradients, and with sync gradients come in the order of workers.
  int before(int worker) {
    if (starting()) return worker == 0 ? -1 : 0;
    return state_->gone(worker) ? -1 : state_->before(worker, client(worker).expected());
  }

  bool receive(int worker) {
    Mailbox& mail = client(worker);
    bool moved = false;
    while (update_ && admits_ && !state_->gone(worker) && before(worker) < 0) {
      const LetterHead* head = mail.open(transport_);
      if (head == nullptr) break;
      expect_in_turn(worker, *head);
      if (!take(worker, head->kind)) break;
      mail.taken(transport_);
      moved = true;
    }
    return moved;
  }

  // Throws CommError for a letter that the worker should not send now.
  void expect_in_turn(int worker, const LetterHead& head) {
    const auto wrong = [&](int culprit, const auto&... what) {
      throw CommError(
          {transport_.rank(), worker, "parameter server", client(worker).sequence(), 0, 0, culprit},
          concat(what...));
    };
    const bool start = starting(), leaves = head.kind == LetterKind::goodbye;
    if (start != (head.kind == LetterKind::start))
      wrong(worker, "rank ", worker, start ? " began without its parameters" : " began twice");
    if (start) return;
    if (const int other = state_->contradicts(worker, leaves); other >= 0)
      wrong(leaves ? worker : other, "rank ", leaves ? worker : other, " left before rank ",
            leaves ? other : worker, " had made all its steps; with sync, all workers make equally many");
    if (leaves) return;
    if ((head.decides != 0) != decides_)
      wrong(worker, "rank ", worker, decides_ ? " expects no rule" : " expects a rule",
            " to decide over the whole gradient, and the server on rank ", transport_.rank(), " has ",
            decides_ ? "one" : "none");
    if (const std::int64_t step = state_->pushed(worker, client(worker).expected()); head.step != step)
      wrong(worker, "rank ", worker, " is at step ", head.step, " where step ", step, " was expected");
  }

  // Takes a letter of that kind, and acts on it; false until it has come whole.
  bool take(int worker, LetterKind kind) {
    Mailbox& mail = client(worker);
    const int p = mail.expected();
    if (kind == LetterKind::goodbye) {
      state_->goodbye(worker, [&](const auto& action) { act(action, nullptr); });
    } else if (kind == LetterKind::start) {
      if (!mail.fetch(transport_, parameters(p))) return false;
      ++started_;
    } else {
      // The part's parameters may be written only once the worker has received those of the step before.
      if (!mail.gone(transport_, p)) return false;
      const auto gradients = mail.numbers(transport_, consistency_.sync && worker == 0 ? sum(p) : nullptr);
      if (gradients.empty()) return false;
      state_->push(worker, p, [&](const auto& action) { act(action, gradients.data()); });
    }
    return true;
  }

  // Advances the exchange among servers once all parts of this server's shard have arrived, and updates once
  // the rule has decided.
  bool decide(Traffic& traffic) {
    bool moved = all_reduce_.progress(transport_, traffic);
    if (!deciding_) return moved;
    if (!all_reduce_.begun()) {
      if (!all_reduce_.delivered(transport_)) return moved;  // the numbers of the step before
      all_reduce_.begin(state_->pushed(0, 0), update_->partial());
      moved = all_reduce_.progress(transport_, traffic);
    }
    if (!all_reduce_.complete()) return moved;
    all_reduce_.finish(update_->partial());
    const Decision decision = update_->decide();
    const bool again = decision == Decision::again;
    deciding_ = again;
    skipped_ = decision == Decision::skip;
    const auto do_it = [&](const auto& action) { act(action, nullptr); };
    if (again)
      state_->arrive_again(do_it);
    else
      state_->decided(do_it);
    return true;
  }

  void act(const ServerState::Action& action, const float* gradients) {
    using Action = ServerState::Action;
    const int p = action.part;
    const bool sync = consistency_.sync;
    switch (action.kind) {
      case Action::keep:
        if (sync && gradients != sum(p)) std::copy_n(gradients, range(p).size(), sum(p));
        return;  // without sync they are applied at once
      case Action::add:
        reduction<f32>(comm::sum).loop(sum(p), gradients, range(p).size(), 1);
        return;
      case Action::arrive:
        update_->arrived({range(p), parameters(p), sum(p), 1.0f, action.step, action.count});
        return;
      case Action::decide:
        deciding_ = true;  // `decide` follows once the current letter has been taken
        return;
      case Action::apply:
        (*update_)({range(p), parameters(p), sync ? sum(p) : gradients,
                    sync ? 1.0f : static_cast<float>(workers_), action.step, action.count});
        return;
      case Action::reply:
        client(action.worker).post({LetterKind::reply, p, action.step, parameters(p), false, skipped_});
        return;
    }
  }

  transport::Any& transport_;
  Consistency consistency_;
  int workers_ = 0;
  const ServedParts* parts_ = nullptr;
  std::int64_t first_ = 0;  // first element of the shard
  Buffer<float> master_, sums_;
  float *parameters_ = nullptr, *sum_ = nullptr;
  std::vector<Mailbox> clients_;
  std::optional<ServerState> state_;
  std::optional<ServerUpdate> update_;  // from serve to start_over
  ServerAllReduce all_reduce_;
  bool admits_ = false;
  bool decides_ = false;   // whether a rule decides before updates
  bool deciding_ = false;  // all parts of the step have arrived
  bool skipped_ = false;   // the rule has skipped the step
  int started_ = 0;        // parts whose initial parameters have come
};

}  // namespace convoy::comm::detail
