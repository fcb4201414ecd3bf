// Client: a worker's end of a parameter server. It pushes the worker's gradients to the servers, bucket by
// bucket, and takes the parameters that come back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/comm/parameter_server/mailbox.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/range.hpp>

namespace convoy::comm::detail {

class Client {
 public:
  explicit Client(transport::Any& transport) : transport_(transport) {}

  /// `parts`: the parts of each server's shard, by bucket; they must outlive this object. `ranks`: the
  /// servers' ranks. At most `window` parts are pushed to a server ahead of its replies, so that pushes to
  /// several servers over one link advance evenly. `copies`: servers cannot read the arenas in place.
  void open(const Layout& layout, std::span<const ServedParts> parts, const std::vector<int>& ranks,
            int window, bool copies, std::pmr::memory_resource* memory) {
    layout_ = layout;
    parts_ = parts;
    window_ = window;
    const std::size_t buckets = layout.buckets.size();
    begun_.resize(buckets);
    begin_.assign(buckets, {});
    missing_.assign(buckets, 0);
    owed_.assign(parts.size(), 0);
    step_of_.assign(parts.size(), {});
    servers_.clear();
    for (std::size_t s = 0; s < parts.size(); ++s)
      servers_.emplace_back(ranks[s], push_lane, reply_lane, parts[s],
                            copies && ranks[s] != transport_.rank(), false, transport_.in_place(), memory);
  }
  void observe(Observer observer) { observer_ = observer; }
  Mailbox& server(int s) { return servers_[static_cast<std::size_t>(s)]; }
  int servers() const { return static_cast<int>(servers_.size()); }

  /// Whether a rule decides over a whole step before servers reply; if so, no push waits for replies.
  void decide_first(bool decides) { decides_ = decides; }

  /// Sends the servers the parameters that a training begins with.
  void start() {
    for (std::size_t s = 0; s < servers_.size(); ++s)
      for (int p = 0; p < count(s); ++p)
        servers_[s].post({LetterKind::start, p, 0, layout_.parameters.data() + part(s, p).range.begin});
  }
  /// A bucket's gradients are final. Gradients are pushed in bucket order, which servers expect.
  void begin(int bucket) {
    const std::size_t b = begun_.begin(bucket);
    if (observer_.call != nullptr) begin_[b] = Clock::now();
    while (first_ < begun_.size() && begun_[first_]) ++first_;
    for (std::size_t s = 0; s < servers_.size(); ++s)
      for (int& p = step_of_[s].final; p < count(s) && part(s, p).bucket < static_cast<int>(first_); ++p)
        expect(s, p);
  }
  void begin_all() {
    for (std::size_t b = 0; b < begun_.size(); ++b)
      if (!begun_[b]) begin(static_cast<int>(b));
  }
  /// Whether a rule of the servers has skipped the step whose replies came last.
  bool skipped() const { return skipped_; }
  /// Ends a step, once all replies have come.
  void end_step() {
    begun_.reset();
    step_of_.assign(step_of_.size(), {});
    first_ = 0;
    ++step_;
  }
  /// Leaves: no more steps. `parameters`: the servers send the parameters once more when all workers have
  /// left.
  void leave(bool parameters) {
    for (std::size_t s = 0; s < servers_.size(); ++s) {
      servers_[s].post({LetterKind::goodbye, 0, step_});
      for (int p = 0; parameters && p < count(s); ++p) expect(s, p);
    }
  }
  void start_over() {
    step_of_.assign(step_of_.size(), {});
    step_ = 0;
  }

  bool progress(Traffic& traffic) {
    bool moved = false;
    for (std::size_t s = 0; s < servers_.size(); ++s) {
      push(s);
      moved = servers_[s].deliver(transport_, traffic) || moved;
      moved = receive(s) || moved;
    }
    return moved;
  }

  /// Whether all parameters that this worker expects have come.
  bool served() const {
    return std::all_of(owed_.begin(), owed_.end(), [](int replies) { return replies == 0; });
  }
  bool delivered() {
    return std::all_of(servers_.begin(), servers_.end(),
                       [&](Mailbox& mail) { return mail.delivered(transport_); });
  }
  /// Whether no step has begun whose parameters are still to come.
  bool between_steps() const { return begun_.none() && served(); }
  /// Whether nothing is in flight.
  bool idle() {
    return delivered() && std::none_of(servers_.begin(), servers_.end(),
                                       [](const Mailbox& mail) { return mail.receiving(); });
  }
  /// The rank of a server that this worker waits for and for which `which(rank)` holds, or -1.
  template <class Which>
  int waits_for(Which&& which) {
    for (std::size_t s = 0; s < servers_.size(); ++s)
      if ((owed_[s] > 0 || !servers_[s].delivered(transport_)) && which(servers_[s].peer()))
        return servers_[s].peer();
    return -1;
  }
  void cancel() noexcept {
    for (Mailbox& mail : servers_) mail.cancel(transport_);
  }

 private:
  // How many parts of a server's shard, in this step, are final, pushed, and back as parameters.
  struct StepOf {
    int final = 0, pushed = 0, came = 0;
  };

  int count(std::size_t server) const { return static_cast<int>(parts_[server].size()); }
  const ServedPart& part(std::size_t server, int p) const {
    return parts_[server][static_cast<std::size_t>(p)];
  }
  void expect(std::size_t server, int p) {
    ++owed_[server];
    ++missing_[static_cast<std::size_t>(part(server, p).bucket)];
  }

  void push(std::size_t server) {
    for (StepOf& step = step_of_[server];
         step.pushed < step.final && (decides_ || step.pushed - step.came < window_); ++step.pushed)
      servers_[server].post({LetterKind::push, step.pushed, step_,
                             layout_.gradients.data() + part(server, step.pushed).range.begin, decides_});
  }
  // Takes the parameters that have come from a server.
  bool receive(std::size_t server) {
    Mailbox& mail = servers_[server];
    bool moved = false;
    while (owed_[server] > 0) {
      const LetterHead* const head = mail.open(transport_);
      if (head == nullptr) break;
      const ServedPart& its = part(server, mail.expected());
      if (!mail.fetch(transport_, layout_.parameters.data() + its.range.begin)) break;
      skipped_ = head->skipped != 0;
      mail.taken(transport_);
      moved = true;
      --owed_[server];
      ++step_of_[server].came;
      const auto b = static_cast<std::size_t>(its.bucket);
      if (--missing_[b] == 0 && begun_[b] && observer_.call != nullptr)
        observer_.call(observer_.context, {its.bucket, begin_[b], Clock::now()});
    }
    return moved;
  }

  transport::Any& transport_;
  Layout layout_;
  std::span<const ServedParts> parts_;
  std::vector<Mailbox> servers_;
  Observer observer_;
  BegunBuckets begun_;
  std::size_t first_ = 0;  // first bucket that has not been begun
  std::vector<Clock::time_point> begin_;
  std::vector<int> missing_;  // outstanding replies, by bucket
  std::vector<int> owed_;     // outstanding replies, by server
  std::vector<StepOf> step_of_;
  int window_ = 1;
  bool decides_ = false, skipped_ = false;
  std::int64_t step_ = 0;
};

}  // namespace convoy::comm::detail
