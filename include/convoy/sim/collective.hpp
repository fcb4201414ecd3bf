// Collective: simulates workers that compute, exchange and update, step by step, by policies without servers.
//
// It models comm's engine (comm/engine/engine.hpp). Each bucket passes through the legs of the exchange in
// turn. Buckets enter a leg in the order in which they were begun. A leg has lanes; bucket b uses lane b mod
// lanes, and the buckets of a lane go one after the other. Within a bucket a rank executes its steps in order
// and blocks at a receive. The engine's receives may also wait until a send from the same memory has
// completed. That is not simulated: in these schedules what is received depends on what was sent.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/sim/legs.hpp>
#include <convoy/sim/network.hpp>
#include <convoy/sim/outcome.hpp>
#include <convoy/sim/paces.hpp>
#include <convoy/sim/places.hpp>
#include <convoy/sim/setting.hpp>

namespace convoy::sim {

class Collective {
 public:
  /// The workers of a cluster, or of its first unit if the legs are folded. The first `shown` ranks record
  /// spans.
  Collective(const Setting& setting, const Legs& legs, int steps, int shown);

  /// Simulates all steps.
  void run();

  const Places& places() const { return places_; }
  const Network& network() const { return network_; }
  /// When the last worker ended the last step.
  const Moment& last() const { return ends_.back(); }
  /// Mean seconds from the end of one step to the end of the next; with a single step, its seconds.
  double step_seconds() const {
    if (steps_ == 1) return ends_.back().at;
    return (ends_.back().at - ends_.front().at) / (steps_ - 1);
  }
  int workers() const { return places_.ranks(); }
  double steps_made() const { return steps_; }
  /// Compute seconds of a worker in a step.
  double alone(int rank, int step) const {
    const Work& work = setting_.work;
    const double update = legs_.updates ? work.update() : legs_.update_of(rank);
    return (work.forward + work.backward) * paces_.of(rank, step) + update * paces_.of_update(rank);
  }
  const std::vector<Span>& spans() const { return spans_; }

 private:
  // A lane of a leg on one rank, which takes the buckets of the lane through the leg.
  struct Process {
    Moment now;
    const Crossing* crossing = nullptr;  // of the current bucket; null: the lane is idle
    const Instruction* at = nullptr;
    const Instruction* end = nullptr;
    std::int64_t inbox = 0;     // where the messages of this rank and crossing arrive
    std::int64_t waiting = -1;  // the slot of the message that it waits for; -1: none
    int bucket = 0;             // the current bucket, or the next one
    bool ends = false;          // its steps are done
    double began = 0;
    Moment accessed;  // when its loads and stores end
  };
  struct Worker {
    int step = 0, next = 0, missing = 0;  // the next bucket to begin; buckets that have not arrived
    Moment begin, backward, over;         // of the step; beginning and end of backward
    Moment processor, copies;             // when they are free
    bool past_backward = false;
  };
  // The barrier of the ranks of a node, for one lane.
  struct Meeting {
    int here = 0;
    Moment last;
    std::vector<int> who;
  };

  // The kind of an event: the upper bits of its `what`. The other bits are a number.
  enum class EventKind : std::uint32_t { process = 0, worker = 1u << 30, message = Network::mark };
  static constexpr std::uint32_t kind_bits = 3u << 30;

  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  int buckets() const { return static_cast<int>(setting_.work.buckets.size()); }
  int legs() const { return static_cast<int>(legs_.legs.size()); }
  int rank_of(int process) const { return process / lanes_; }
  int leg_of(int process) const { return leg_of_lane_[at(process % lanes_)]; }
  const Leg& leg(int l) const { return legs_.legs[at(l)]; }
  // Simultaneous events are ordered by the place within a unit and by the distance between units, so that a
  // folded cluster and the whole one have the same order.
  std::uint32_t tie_of(int process, int apart) const {
    return (static_cast<std::uint32_t>(apart) << tie_bits_) |
           static_cast<std::uint32_t>(process % std::max(1, unit_ * lanes_));
  }
  int apart_of(int from, int to) const {
    const int units = places_.ranks() / unit_;
    return (to / unit_ - from / unit_ + units) % units;
  }

  // Schedules an event at which a process or a worker continues.
  void wake_process(int process, double when) { push(EventKind::process, process, when, process); }
  void wake_worker(int rank, double when) { push(EventKind::worker, rank, when, rank * lanes_); }
  void push(EventKind kind, int number, double when, int process_of_tie) {
    network_.queue.push({when, tie_of(process_of_tie, 0),
                         static_cast<std::uint32_t>(kind) | static_cast<std::uint32_t>(number)});
  }

  void begin_step(int rank, const Moment& when);
  void next_bucket(int rank);
  // When a bucket's exchange can begin.
  Moment ready(int rank, int bucket) const;
  void move_on(int rank, int l, const Moment& when);
  void start(int process, const Moment& when);
  void stage(Worker& worker, Process& lane);
  void go_on(int process);
  bool advance_clock_to(int process);
  void send(int process, const Instruction& step, double bytes);
  bool in_memory() const { return setting_.cluster.inside.wiring == Wiring::memory; }
  bool receive(int process, const Instruction& step, double bytes);
  void meet(int process);
  void land(int number);
  void finish(int process);
  void complete(int process);
  void end_step(int rank);
  void span(int rank, int track, const char* what, int bucket, double begin, double end);

  /// The cost of a load or store of shared memory, relative to a message.
  static constexpr double of_a_message = 0.5;

  const Setting& setting_;
  const Legs& legs_;
  Places places_;
  Network network_;
  Paces paces_;
  int steps_, shown_;
  int unit_ = 1;  // ranks that ties distinguish
  int tie_bits_ = 0;
  int lanes_ = 0;  // of all legs
  double hide_;
  double now_ = 0;
  std::vector<int> leg_of_lane_, first_lane_;  // of each lane; of each leg
  std::vector<Process> processes_;
  std::vector<Worker> workers_;
  std::vector<int> entered_;         // number of buckets, of each rank and leg
  std::vector<unsigned char> done_;  // of each rank, leg and bucket
  std::vector<Moment> come_;         // arrival of each rank and bucket
  std::vector<int> inbox_;           // first message of each receive, for each Steps and lane
  std::map<const Steps*, std::int64_t> inbox_of_;
  std::vector<Meeting> meetings_;
  std::vector<Moment> ends_;
  std::vector<Span> spans_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION Collective::Collective(const Setting& setting, const Legs& legs, int steps, int shown)
    : setting_(setting),
      legs_(legs),
      places_(setting.cluster, legs.folded),
      network_(places_),
      paces_(setting, setting.cluster.ranks()),
      steps_(steps),
      shown_(shown),
      hide_(setting.exchange.background ? setting.cluster.hide_background : setting.cluster.hide) {
  for (int l = 0; l < this->legs(); ++l) {
    first_lane_.push_back(lanes_);
    lanes_ += leg(l).lanes;
    leg_of_lane_.insert(leg_of_lane_.end(), at(leg(l).lanes), l);
  }
  unit_ = Places::foldable(setting.cluster) ? Places(setting.cluster, true).ranks() : places_.ranks();
  while (std::max(1, unit_ * lanes_) >> tie_bits_ > 0) ++tie_bits_;
  processes_.resize(at(std::int64_t{places_.ranks()} * lanes_));
  for (int process = 0; process < places_.ranks() * lanes_; ++process)
    processes_[at(process)].bucket = process % lanes_ - first_lane_[at(leg_of(process))];
  workers_.resize(at(places_.ranks()));
  entered_.resize(at(std::int64_t{places_.ranks()} * this->legs()));
  done_.resize(entered_.size() * at(buckets()));
  come_.resize(at(std::int64_t{places_.ranks()} * buckets()));
  meetings_.resize(at(std::int64_t{places_.nodes()} * lanes_));
  std::int64_t inboxes = 0;
  for (const Leg& l : legs.legs)
    for (const Crossing& crossing : l.crossings)
      if (inbox_of_.find(crossing.steps.get()) == inbox_of_.end()) {
        inbox_of_[crossing.steps.get()] = inboxes;
        inboxes += crossing.steps->slots() * lanes_;
      }
  inbox_.assign(at(inboxes), -1);
  ends_.resize(at(steps));
}

CONVOY_FUNCTION void Collective::run() {
  for (int rank = 0; rank < places_.ranks(); ++rank) begin_step(rank, {});
  while (!network_.queue.empty()) {
    const Event event = network_.queue.pop();
    now_ = event.at;
    const auto number = static_cast<int>(event.what & ~kind_bits);
    switch (static_cast<EventKind>(event.what & kind_bits)) {
      case EventKind::message:
        network_.advance(number);
        if (network_.through(number)) land(number);
        break;
      case EventKind::worker:
        next_bucket(number);
        break;
      case EventKind::process:
        go_on(number);
        break;
    }
  }
  for (const Worker& worker : workers_)
    if (worker.step != steps_) fail("sim: the simulation ended before all workers had finished their steps");
}

CONVOY_FUNCTION void Collective::begin_step(int rank, const Moment& when) {
  Worker& worker = workers_[at(rank)];
  worker.begin = when;
  worker.next = 0;
  worker.missing = legs() > 0 ? buckets() : 0;
  worker.past_backward = false;
  const double pace = paces_.of(rank, worker.step);
  worker.backward = when.after(Cause::compute, setting_.work.forward * pace);
  worker.over = worker.backward.after(Cause::compute, setting_.work.backward * pace);
  std::fill_n(entered_.begin() + rank * legs(), legs(), 0);
  std::fill_n(done_.begin() + std::int64_t{rank} * legs() * buckets(), std::int64_t{legs()} * buckets(),
              static_cast<unsigned char>(0));
  const Moment first = worker.missing > 0 ? ready(rank, 0) : worker.over;
  wake_worker(rank, first.at);
}

CONVOY_FUNCTION Moment Collective::ready(int rank, int bucket) const {
  const Worker& worker = workers_[at(rank)];
  if (!setting_.exchange.overlap) return worker.over;
  return worker.backward.after(Cause::compute,
                               setting_.work.ready(bucket, hide_) * paces_.of(rank, worker.step));
}

CONVOY_FUNCTION void Collective::next_bucket(int rank) {
  Worker& worker = workers_[at(rank)];
  if (worker.next < buckets() && legs() > 0) {
    const int bucket = worker.next++;
    const Moment& when = worker.next < buckets() ? ready(rank, worker.next) : worker.over;
    wake_worker(rank, when.at);
    if (leg(0).after_backward) return;
    entered_[at(rank * legs())] = bucket + 1;
    const int process = rank * lanes_ + bucket % leg(0).lanes;
    if (Process& lane = processes_[at(process)]; lane.crossing == nullptr && lane.bucket == bucket)
      start(process, ready(rank, bucket));
    return;
  }
  worker.past_backward = true;
  if (worker.missing == 0) return end_step(rank);
  for (int l = 0; l < legs(); ++l)
    if (leg(l).after_backward) move_on(rank, l, worker.over);
}

// Buckets enter a leg in order, once they have passed the leg before.
CONVOY_FUNCTION void Collective::move_on(int rank, int l, const Moment& when) {
  if (leg(l).after_backward && !workers_[at(rank)].past_backward) return;
  int& entered = entered_[at(rank * legs() + l)];
  const unsigned char* before =
      l > 0 ? done_.data() + (std::int64_t{rank} * legs() + l - 1) * buckets() : nullptr;
  while (entered < buckets() && (before == nullptr || before[entered] != 0)) {
    const int bucket = entered++;
    const int process = rank * lanes_ + first_lane_[at(l)] + bucket % leg(l).lanes;
    if (Process& lane = processes_[at(process)]; lane.crossing == nullptr && lane.bucket == bucket)
      start(process, when);
  }
}

CONVOY_FUNCTION void Collective::start(int process, const Moment& when) {
  Process& lane = processes_[at(process)];
  const int rank = rank_of(process), l = leg_of(process);
  Worker& worker = workers_[at(rank)];
  const Crossing& crossing = leg(l).crossings[at(lane.bucket)];
  lane.crossing = &crossing;
  lane.now = lane.accessed = when;
  lane.began = when.at;
  lane.ends = false;
  lane.at = crossing.steps->begin(rank);
  lane.end = lane.at + crossing.steps->count(rank);
  lane.inbox = inbox_of_.find(crossing.steps.get())->second + crossing.steps->slots() * (process % lanes_) +
               crossing.steps->slots_before(rank);
  if (l == 0) {
    if (setting_.exchange.staged) stage(worker, lane);
    lane.now.add(Cause::launch, setting_.cluster.launch);
  }
  const double update = crossing.update_of(rank);
  if (update > 0 || crossing.before > 0) {
    worker.processor.wait_for(lane.now);
    worker.processor.add(Cause::compute, update * paces_.of_update(rank));
    worker.processor.add(Cause::combining, crossing.before);
    lane.now = worker.processor;
  }
  wake_process(process, lane.now.at);
}

// Copies a lane's bucket between device and host; the copies of a worker are serialized.
CONVOY_FUNCTION void Collective::stage(Worker& worker, Process& lane) {
  const Link& staging = setting_.cluster.staging;
  worker.copies.wait_for(lane.now);
  worker.copies.add(
      Cause::staging,
      staging.alpha + staging.beta * static_cast<double>(setting_.work.buckets[at(lane.bucket)].bytes));
  lane.now = worker.copies;
}

// Advances the clock to the lane's time. If another event comes first, schedules an event to resume the lane
// and returns false.
CONVOY_FUNCTION bool Collective::advance_clock_to(int process) {
  const Moment& now = processes_[at(process)].now;
  if (now.at <= now_) return true;
  if (now.at < network_.queue.next()) {
    now_ = now.at;
    return true;
  }
  wake_process(process, now.at);
  return false;
}

CONVOY_FUNCTION void Collective::go_on(int process) {
  Process& lane = processes_[at(process)];
  if (lane.ends) return complete(process);
  for (; lane.at != lane.end; ++lane.at) {
    const Instruction& step = *lane.at;
    if (step.act == Act::barrier) {
      if (!advance_clock_to(process)) return;
      ++lane.at;
      return meet(process);
    }
    const double bytes = lane.crossing->bytes(step);
    if (bytes == 0) continue;
    switch (step.act) {
      case Act::send:
        if (!advance_clock_to(process)) return;
        send(process, step, bytes);
        break;
      case Act::load:
      case Act::store: {
        const int rank = rank_of(process);
        const Way way =
            step.act == Act::load ? places_.way(step.peer, rank, 0) : places_.way(rank, step.peer, 0);
        lane.accessed.wait_for(network_.access(lane.now, way, bytes, in_memory() ? of_a_message : 1));
        break;
      }
      default:
        if (!receive(process, step, bytes)) return;
    }
  }
  finish(process);
}

CONVOY_FUNCTION void Collective::send(int process, const Instruction& step, double bytes) {
  const int rank = rank_of(process), lane = process % lanes_;
  const Crossing& crossing = *processes_[at(process)].crossing;
  const int apart = places_.units() > 1 ? step.apart : apart_of(rank, step.peer);
  const std::int64_t to = processes_[at(process)].inbox - crossing.steps->slots_before(rank) +
                          crossing.steps->slots_before(step.peer) + step.slot;
  const int number = network_.send(processes_[at(process)].now, places_.way(rank, step.peer, step.apart),
                                   bytes, tie_of(process, 1 + apart), step.peer * lanes_ + lane, to);
  if (network_.through(number)) land(number);
}

// Called when a message's arrival time is known: wakes the lane that waits for the message at that time.
CONVOY_FUNCTION void Collective::land(int number) {
  const Message& message = network_.message(number);
  int* at_end = &inbox_[at(message.to)];
  const bool first = *at_end < 0;
  while (*at_end >= 0) at_end = &network_.message(*at_end).next;
  *at_end = number;
  Process& lane = processes_[at(message.receiver)];
  if (!first || lane.waiting != message.to) return;
  lane.waiting = -1;
  const double when = lane.now.at < message.tail.at ? message.tail.at : lane.now.at;
  wake_process(message.receiver, when);
}

CONVOY_FUNCTION bool Collective::receive(int process, const Instruction& step, double bytes) {
  Process& lane = processes_[at(process)];
  const std::int64_t slot = lane.inbox + step.slot;
  const int number = inbox_[at(slot)];
  if (number < 0) {
    lane.waiting = slot;
    return false;
  }
  lane.now.wait_for(network_.message(number).tail);
  const bool reduces = step.act == Act::receive_reduce && (setting_.cluster.gamma > 0 || in_memory());
  if (reduces && !advance_clock_to(process)) return false;
  inbox_[at(slot)] = network_.message(number).next;
  network_.forget(number);
  if (reduces) {
    const int rank = rank_of(process);
    // The operand that a message is combined with is loaded, too.
    if (in_memory())
      lane.now.wait_for(network_.access(lane.now, places_.way(rank, rank, 0), bytes, of_a_message));
    Moment& processor = workers_[at(rank)].processor;
    processor.wait_for(lane.now);
    processor.add(Cause::combining, setting_.cluster.gamma * bytes);
    lane.now = processor;
  }
  return true;
}

// The ranks of a node leave the barrier one message latency after the last of them has arrived.
CONVOY_FUNCTION void Collective::meet(int process) {
  const int node = places_.node_of(rank_of(process));
  Meeting& meeting = meetings_[at(node * lanes_ + process % lanes_)];
  Process& mine = processes_[at(process)];
  mine.now.wait_for(mine.accessed);
  meeting.last.wait_for(mine.now);
  meeting.who.push_back(process);
  if (++meeting.here < places_.first_of(node + 1) - places_.first_of(node)) return;
  const Moment over = meeting.last.after(Cause::latency, setting_.cluster.inside.alpha);
  for (const int who : meeting.who) {
    Process& lane = processes_[at(who)];
    lane.now = lane.accessed = over;
    wake_process(who, over.at);
  }
  meeting.here = 0;
  meeting.last = {};
  meeting.who.clear();
}

CONVOY_FUNCTION void Collective::finish(int process) {
  Process& lane = processes_[at(process)];
  if (!advance_clock_to(process)) return;
  Worker& worker = workers_[at(rank_of(process))];
  lane.ends = true;
  if (lane.crossing->after > 0) {
    worker.processor.wait_for(lane.now);
    worker.processor.add(Cause::combining, lane.crossing->after);
    lane.now = worker.processor;
  }
  if (setting_.exchange.staged && leg_of(process) + 1 == legs()) stage(worker, lane);
  if (advance_clock_to(process)) complete(process);
}

CONVOY_FUNCTION void Collective::complete(int process) {
  Process& lane = processes_[at(process)];
  const int rank = rank_of(process), l = leg_of(process), bucket = lane.bucket;
  const Moment now = lane.now;
  span(rank, 1 + process % lanes_, "bucket", bucket, lane.began, now.at);
  lane.crossing = nullptr;
  lane.bucket += leg(l).lanes;
  done_[at((std::int64_t{rank} * legs() + l) * buckets() + bucket)] = 1;
  if (lane.bucket >= buckets())
    lane.bucket = process % lanes_ - first_lane_[at(l)];  // of the next step
  else if (lane.bucket < entered_[at(rank * legs() + l)])
    start(process, now);
  if (l + 1 < legs()) return move_on(rank, l + 1, now);
  come_[at(std::int64_t{rank} * buckets() + bucket)] = now;
  Worker& worker = workers_[at(rank)];
  if (--worker.missing == 0 && worker.past_backward) end_step(rank);
}

// After backward, buckets are updated in order, each once it has arrived.
CONVOY_FUNCTION void Collective::end_step(int rank) {
  Worker& worker = workers_[at(rank)];
  const double pace = paces_.of_update(rank);
  Moment now = worker.over;
  span(rank, 0, "forward", -1, worker.begin.at, worker.backward.at);
  span(rank, 0, "backward", -1, worker.backward.at, worker.over.at);
  for (int b = 0; b < buckets(); ++b) {
    if (legs() > 0) now.wait_for(come_[at(std::int64_t{rank} * buckets() + b)]);
    if (legs_.updates) {
      const double begin = now.at;
      now.add(Cause::compute, setting_.work.buckets[at(b)].update * pace);
      span(rank, 0, "update", b, begin, now.at);
    }
  }
  ends_[at(worker.step)].wait_for(now);
  if (++worker.step < steps_) begin_step(rank, now);
}

CONVOY_FUNCTION void Collective::span(int rank, int track, const char* what, int bucket, double begin,
                                      double end) {
  if (rank >= shown_ || workers_[at(rank)].step + 1 != steps_) return;
  spans_.push_back({rank, track, bucket < 0 ? std::string(what) : concat(what, ' ', bucket), begin, end});
}
#endif

}  // namespace convoy::sim
