// Serving: simulates workers and parameter servers, step by step. The servers are comm's own state machines
// (comm/parameter_server/server_state.hpp), which hold neither messages nor memory. The client's window and
// the parts of shards are those of comm/parameter_server.
//
// A server takes one letter (a message from a worker) at a time, in order of arrival among those that its
// state accepts. A server that is also a worker serves concurrently with its computing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <convoy/comm/parameter_server/server_state.hpp>
#include <convoy/comm/parameter_server/service.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/range.hpp>
#include <convoy/graph/profile.hpp>
#include <convoy/sim/moment.hpp>
#include <convoy/sim/network.hpp>
#include <convoy/sim/outcome.hpp>
#include <convoy/sim/paces.hpp>
#include <convoy/sim/places.hpp>
#include <convoy/sim/setting.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <limits>

#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::sim {

/// Whether a policy has servers.
bool serves(const Exchange& exchange);

class Serving {
 public:
  /// Every worker makes at least `steps` steps. The first `shown` workers record spans.
  Serving(const Setting& setting, int steps, int shown);

  void run();

  const Places& places() const { return places_; }
  const Network& network() const { return network_; }
  int workers() const { return workers_count_; }
  const std::vector<Span>& spans() const { return spans_; }
  /// The end of the run.
  const Moment& last() const { return last_; }
  /// Mean seconds from the end of a worker's step to the end of its next; with a single step, its seconds.
  double step_seconds() const;
  /// Mean number of steps that a worker has made; without sync the fast ones make more than the others.
  double steps_made() const {
    double sum = 0;
    for (const Worker& mine : workers_) sum += mine.step;
    return sum / workers();
  }
  /// Compute seconds of a worker in a step.
  double alone(int worker, int step) const {
    return (setting_.work.forward + setting_.work.backward) * paces_.of(worker, step);
  }

 private:
  // Of one worker and one server: the number of parts that are final, sent, and replied to in this step.
  struct Trade {
    int final = 0, pushed = 0, came = 0;
  };
  struct Worker {
    int step = 0, next = 0, owed = 0;  // the next bucket to begin; parts without a reply
    Moment begin, backward, over, come, copies;
    bool past_backward = false;
    std::vector<Trade> trades;  // with each server
    std::vector<int> missing;   // parts of each bucket without a reply
    std::vector<double> ends;   // of steps
  };
  struct Server {
    int rank = 0;
    comm::detail::ServedParts parts;
    std::vector<comm::detail::ServerState> state;  // one element, made in the constructor
    std::vector<std::deque<int>> mail;             // letters that have arrived, of each worker
    std::vector<int> expected;                     // the part of each worker's next letter
    std::set<std::pair<double, int>> ready;        // arrival and worker of letters that can be taken
    Moment processor;
    std::vector<std::pair<int, int>> replies;  // worker and part, sent when the processor is free
    bool busy = false;
  };

  static constexpr std::uint32_t of_worker = 1u << 30, of_server = 1u << 29;
  static constexpr double head = 64;  // bytes of a letter's header
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  int buckets() const { return static_cast<int>(setting_.work.buckets.size()); }
  Worker& worker(int w) { return workers_[at(w)]; }
  Server& server(int s) { return servers_[at(s)]; }
  double bytes_of(const Server& server, int part) const {
    return 4.0 * static_cast<double>(server.parts[at(part)].range.size());
  }

  /// Seconds to update by `bytes` of a bucket's gradients on a server's rank. A worker's times may include
  /// its update; a server's update takes time even then.
  double update_seconds(const Bucket& bucket, double bytes, int rank) const {
    const double bandwidth = setting_.cluster.device.bandwidth;
    const double parameters = bytes / sizeof(float);
    if (bucket.update == 0) return bandwidth > 0 ? graph::moved_by_adam * parameters / bandwidth : 0;
    return bucket.update * bytes / static_cast<double>(bucket.bytes) * paces_.of_update(rank);
  }

  void begin_step(int w, const Moment& when);
  // When a bucket's exchange can begin.
  Moment ready(int w, int bucket) const;
  void next_bucket(int w);
  void push(int w, int s, const Moment& now);
  void deliver(int number);
  void admit(int s, int w);
  void serve(int s);
  void take(int s, int w);
  void reply(int s, const Moment& now);
  void come(int w, int s, int part, const Moment& now);
  void end_if_over(int w);

  const Setting& setting_;
  Places places_;
  Network network_;
  comm::Service service_;
  int workers_count_;
  Paces paces_;
  int steps_, shown_, window_, behind_;
  std::vector<Worker> workers_;
  std::vector<Server> servers_;
  std::vector<Span> spans_;
  Moment last_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION bool serves(const Exchange& exchange) {
  return exchange.comm == "ps" || exchange.comm == "ps-async" || exchange.comm == "ps-stale";
}

namespace detail {

CONVOY_FUNCTION comm::Service service_of(const Exchange& exchange, int ranks) {
  comm::Consistency consistency;
  if (exchange.comm != "ps")
    consistency = {false, exchange.comm == "ps-async" ? comm::Consistency::unbounded : exchange.staleness};
  const comm::Service service{consistency, exchange.servers,
                              exchange.servers_beside ? comm::Placement::beside : comm::Placement::among};
  service.check(ranks);
  if (exchange.background)
    fail<ConfigError>(
        "background: a parameter server computes updates when it polls, so no background thread may poll for "
        "it");
  if (exchange.codec != "none")
    fail<ConfigError>("comm \"", exchange.comm, "\" does not use a codec; only ring does");
  return service;
}

}  // namespace detail

CONVOY_FUNCTION Serving::Serving(const Setting& setting, int steps, int shown)
    : setting_(setting),
      places_(setting.cluster, false),
      network_(places_),
      service_(detail::service_of(setting.exchange, setting.cluster.ranks())),
      workers_count_(service_.workers(setting.cluster.ranks())),
      paces_(setting, workers_count_),
      steps_(steps),
      shown_(shown),
      behind_(workers_count_) {
  const bool apart = places_.nodes() > 1;
  const Exchange& exchange = setting.exchange;
  const transport::Pacing pacing = apart ? transport::network_pacing : transport::Pacing{};
  window_ = exchange.window > 0 ? exchange.window : pacing.window;
  auto segment =
      static_cast<std::int64_t>(exchange.segment_bytes > 0 ? exchange.segment_bytes : pacing.segment_bytes);
  if (!apart) segment *= comm::detail::segments_in_place;  // parts are read in place there
  const Arena arena = setting.work.arena();
  servers_.resize(at(service_.servers));
  for (int s = 0; s < service_.servers; ++s) {
    Server& mine = server(s);
    mine.rank = service_.rank_of(s, places_.ranks());
    mine.parts = comm::detail::parts_of(service_.shard(s, arena.size(), arena.whole), arena.buckets,
                                        segment / 4, arena.whole);
    mine.state.emplace_back(workers(), static_cast<int>(mine.parts.size()), service_.consistency);
    mine.mail.resize(at(workers()));
    mine.expected.assign(at(workers()), 0);
  }
  workers_.resize(at(workers()));
  for (Worker& mine : workers_) mine.trades.resize(servers_.size());
}

CONVOY_FUNCTION void Serving::run() {
  for (int w = 0; w < workers(); ++w) begin_step(w, {});
  while (behind_ > 0 && !network_.queue.empty()) {
    const Event event = network_.queue.pop();
    const auto number = static_cast<int>(event.what & ~(Network::mark | of_worker | of_server));
    if ((event.what & Network::mark) != 0) {
      network_.advance(number);
      if (network_.through(number))
        network_.queue.push({network_.message(number).tail.at, network_.message(number).tie,
                             static_cast<std::uint32_t>(number)});
    } else if ((event.what & of_worker) != 0) {
      next_bucket(number);
    } else if ((event.what & of_server) != 0) {
      serve(number);
    } else {
      deliver(number);
    }
  }
  if (behind_ > 0) fail("sim: the simulation ended before all workers had finished their steps");
}

CONVOY_FUNCTION double Serving::step_seconds() const {
  if (steps_ == 1) return last_.at;
  // Without sync each worker goes at its own pace.
  double steps_a_second = 0;
  for (const Worker& mine : workers_)
    steps_a_second += static_cast<double>(mine.ends.size() - 1) / (mine.ends.back() - mine.ends.front());
  return workers() / steps_a_second;
}

CONVOY_FUNCTION void Serving::begin_step(int w, const Moment& when) {
  Worker& mine = worker(w);
  mine.begin = mine.come = when;
  mine.next = mine.owed = 0;
  mine.past_backward = false;
  const double pace = paces_.of(w, mine.step);
  mine.backward = when.after(Cause::compute, setting_.work.forward * pace);
  mine.over = mine.backward.after(Cause::compute, setting_.work.backward * pace);
  mine.trades.assign(servers_.size(), {});
  mine.missing.assign(at(buckets()), 0);
  for (const Server& its : servers_)
    for (const comm::detail::ServedPart& part : its.parts) ++mine.missing[at(part.bucket)];
  const Moment first = buckets() > 0 ? ready(w, 0) : mine.over;
  network_.queue.push({first.at, static_cast<std::uint32_t>(w), of_worker | static_cast<std::uint32_t>(w)});
}

CONVOY_FUNCTION Moment Serving::ready(int w, int bucket) const {
  const Worker& mine = workers_[at(w)];
  if (!setting_.exchange.overlap) return mine.over;
  return mine.backward.after(Cause::compute,
                             setting_.work.ready(bucket, setting_.cluster.hide) * paces_.of(w, mine.step));
}

CONVOY_FUNCTION void Serving::next_bucket(int w) {
  Worker& mine = worker(w);
  if (mine.next == buckets()) {
    mine.past_backward = true;
    return end_if_over(w);
  }
  Moment now = ready(w, mine.next);
  const Bucket& bucket = setting_.work.buckets[at(mine.next++)];
  const Moment& then = mine.next < buckets() ? ready(w, mine.next) : mine.over;
  network_.queue.push({then.at, static_cast<std::uint32_t>(w), of_worker | static_cast<std::uint32_t>(w)});
  if (setting_.exchange.staged) {
    mine.copies.wait_for(now);
    mine.copies.add(Cause::staging, setting_.cluster.staging.alpha +
                                        setting_.cluster.staging.beta * static_cast<double>(bucket.bytes));
    now = mine.copies;
  }
  now.add(Cause::launch, setting_.cluster.launch);
  for (int s = 0; s < service_.servers; ++s) {
    const comm::detail::ServedParts& parts = server(s).parts;
    for (int& p = mine.trades[at(s)].final;
         p < static_cast<int>(parts.size()) && parts[at(p)].bucket < mine.next; ++p)
      ++mine.owed;
    push(w, s, now);
  }
}

// Sends final parts, at most a window ahead of the replies.
CONVOY_FUNCTION void Serving::push(int w, int s, const Moment& now) {
  Trade& trade = worker(w).trades[at(s)];
  const Server& its = server(s);
  for (; trade.pushed < trade.final && trade.pushed - trade.came < window_; ++trade.pushed) {
    const Way way = its.rank == w ? Way{} : places_.way(w, its.rank, 0);
    const int number = network_.send(now, way, its.rank == w ? 0 : head + bytes_of(its, trade.pushed),
                                     static_cast<std::uint32_t>(w), s, w);
    if (network_.through(number))
      network_.queue.push({network_.message(number).tail.at, static_cast<std::uint32_t>(w),
                           static_cast<std::uint32_t>(number)});
  }
}

CONVOY_FUNCTION void Serving::deliver(int number) {
  const Message& message = network_.message(number);
  if (message.receiver < 0) {  // a reply
    const int w = -1 - message.receiver;
    const auto s = static_cast<int>(message.to >> 32), part = static_cast<int>(message.to & 0xffffffff);
    const Moment now = message.tail;
    network_.forget(number);
    return come(w, s, part, now);
  }
  const int s = message.receiver;
  const auto w = static_cast<int>(message.to);
  Server& mine = server(s);
  mine.mail[at(w)].push_back(number);
  if (mine.mail[at(w)].size() == 1) admit(s, w);
  if (!mine.busy) serve(s);
}

// Adds a worker to `ready` if its next letter can be taken.
CONVOY_FUNCTION void Serving::admit(int s, int w) {
  Server& mine = server(s);
  if (w >= workers() || mine.mail[at(w)].empty() || !mine.state.front().accepts(w, mine.expected[at(w)]))
    return;
  mine.ready.insert({network_.message(mine.mail[at(w)].front()).tail.at, w});
}

CONVOY_FUNCTION void Serving::serve(int s) {
  Server& mine = server(s);
  mine.busy = false;
  reply(s, mine.processor);
  if (mine.ready.empty()) return;
  const int w = mine.ready.begin()->second;
  mine.ready.erase(mine.ready.begin());
  take(s, w);
  mine.busy = true;
  network_.queue.push(
      {mine.processor.at, static_cast<std::uint32_t>(mine.rank), of_server | static_cast<std::uint32_t>(s)});
}

CONVOY_FUNCTION void Serving::take(int s, int w) {
  Server& mine = server(s);
  const int number = mine.mail[at(w)].front(), part = mine.expected[at(w)];
  mine.mail[at(w)].pop_front();
  mine.expected[at(w)] = (part + 1) % static_cast<int>(mine.parts.size());
  mine.processor.wait_for(network_.message(number).tail);
  network_.forget(number);
  const double bytes = bytes_of(mine, part);
  const Bucket& bucket = setting_.work.buckets[at(mine.parts[at(part)].bucket)];
  mine.state.front().push(w, part, [&](const comm::detail::ServerState::Action& action) {
    using Action = comm::detail::ServerState::Action;
    if (action.kind == Action::add)
      mine.processor.add(Cause::combining, setting_.cluster.gamma * bytes);
    else if (action.kind == Action::apply)
      mine.processor.add(Cause::compute, update_seconds(bucket, bytes, mine.rank));
    else if (action.kind == Action::reply)
      mine.replies.emplace_back(action.worker, action.part);
  });
  // This letter may have blocked the worker's next one and the next worker's.
  admit(s, w);
  const auto queued = [&](int other) {
    return std::any_of(mine.ready.begin(), mine.ready.end(),
                       [&](const auto& one) { return one.second == other; });
  };
  if (service_.consistency.sync && w + 1 < workers() && !queued(w + 1)) admit(s, w + 1);
}

CONVOY_FUNCTION void Serving::reply(int s, const Moment& now) {
  Server& mine = server(s);
  for (const auto& [w, part] : mine.replies) {
    const bool here = mine.rank == w;
    const int number = network_.send(now, here ? Way{} : places_.way(mine.rank, w, 0),
                                     here ? 0 : head + bytes_of(mine, part), static_cast<std::uint32_t>(w),
                                     -1 - w, std::int64_t{s} << 32 | static_cast<std::uint32_t>(part));
    if (network_.through(number))
      network_.queue.push({network_.message(number).tail.at, static_cast<std::uint32_t>(w),
                           static_cast<std::uint32_t>(number)});
  }
  mine.replies.clear();
}

CONVOY_FUNCTION void Serving::come(int w, int s, int part, const Moment& now) {
  Worker& mine = worker(w);
  ++mine.trades[at(s)].came;
  --mine.owed;
  mine.come.wait_for(now);
  const int bucket = server(s).parts[at(part)].bucket;
  if (--mine.missing[at(bucket)] == 0) {
    if (setting_.exchange.staged) {
      const Link& staging = setting_.cluster.staging;
      mine.copies.wait_for(now);
      mine.copies.add(
          Cause::staging,
          staging.alpha + staging.beta * static_cast<double>(setting_.work.buckets[at(bucket)].bytes));
      mine.come.wait_for(mine.copies);
    }
    if (w < shown_ && mine.step + 1 == steps_)
      spans_.push_back({w, 1, concat("bucket ", bucket), ready(w, bucket).at, mine.come.at});
  }
  push(w, s, now);
  end_if_over(w);
}

CONVOY_FUNCTION void Serving::end_if_over(int w) {
  Worker& mine = worker(w);
  if (!mine.past_backward || mine.owed > 0) return;
  Moment now = mine.over;
  now.wait_for(mine.come);
  if (w < shown_ && mine.step + 1 == steps_) {
    spans_.push_back({w, 0, "forward", mine.begin.at, mine.backward.at});
    spans_.push_back({w, 0, "backward", mine.backward.at, mine.over.at});
  }
  mine.ends.push_back(now.at);
  if (++mine.step == steps_) {
    last_.wait_for(now);
    --behind_;
  }
  if (service_.consistency.bound == comm::Consistency::unbounded && behind_ > 0 && now.at == mine.begin.at)
    fail<ConfigError>("comm \"", setting_.exchange.comm, "\": a step of worker ", w,
                      " takes no time, so that it makes infinitely many while the others make one; give the "
                      "work a time or place the servers beside");
  // Without sync the others continue until the slowest is done; with sync all make the same number.
  if (mine.step < steps_ || !service_.consistency.sync) begin_step(w, now);
}
#endif

}  // namespace convoy::sim
