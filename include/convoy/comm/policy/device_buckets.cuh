// DeviceBuckets: shared parts of exchanges of device memory. Buckets are exchanged on a separate stream
// during backward; the compute stream waits for each bucket in turn, and the host does not wait.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/defaults.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/engine/layout.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/space.hpp>
#include <convoy/memory/stream_clock.cuh>

namespace convoy::comm {

/// The kinds of device work that an exchange enqueues.
enum class DeviceWork : unsigned char {
  sums,        ///< sums of a bucket's gradients: on every rank, or of each rank's own part
  parameters,  ///< a bucket's parameters, which each rank gets from the ranks that have updated them
  rule,        ///< a rule's partial values, summed over ranks
};

/// CRTP base of an exchange C of arenas in a space of CUDA memory whose `stream()` is the compute stream. If
/// sharded, each rank updates its own part of each bucket. C has `rank()`, `size()`, `stream()` and
///
///     check()                          throws if anything has failed so far
///     enqueue_sums(b)                  enqueues the sums of bucket b, which is not empty, on the stream
///     enqueue_parameters(b)            likewise, if sharded, its parameters
///     enqueue_sums(partial)            likewise the sums over ranks of a rule's partial values
///     watch(work, b)                   watches the work that was enqueued last
///     await(b, mark)                   waits for the mark, of work on bucket b, with a deadline
template <class C, memory::Space S, bool sharded>
class DeviceBuckets : public Defaults<C> {
  static_assert(
      requires(S & space) {
        { space.stream() } -> std::convertible_to<cudaStream_t>;
      },
      "convoy: this exchange is of arenas of a space of CUDA memory, which has a stream(), such as "
      "memory::Device");

 public:
  using Space = S;

  std::pmr::memory_resource* memory() { return nullptr; }
  void observe(Observer observer) { observer_ = observer; }
  /// Whether there is an observer: a graph cannot tell when buckets have arrived.
  bool observed() const { return observer_.call != nullptr; }
  /// Counts each exchange as one message, with the bytes that a ring sends.
  Traffic traffic() const { return traffic_; }

  /// The parts of the buckets that this rank updates.
  std::vector<Range> updates(std::span<const Range> buckets) const {
    if constexpr (!sharded) {
      return {buckets.begin(), buckets.end()};
    } else {
      std::vector<Range> mine;
      const auto cuts = cut(buckets);
      for (std::size_t b = 0; b < buckets.size(); ++b)
        if (const Range r = own_of(buckets[b], cuts[b]); !r.empty()) mine.push_back(r);
      return mine;
    }
  }

  void begin(int bucket, Ready ready = {});
  void poll() { self().check(); }
  void finish(Update update) { step(update); }
  void repeat() {
    self().check();
    traffic_.messages += traffic_of_step_.messages;
    traffic_.bytes += traffic_of_step_.bytes;
  }

  /// These four are for an exchange that works between the two halves of a bucket and does not call
  /// `finish`. `summed` is a mark after the sums of this rank's part, which `begin` has enqueued.
  /// `all_gather` enqueues the second half after all work of the space, and returns a mark after it; the
  /// second half gives the ranks each other's parts of the layout's parameters. `tell_observer` sends the
  /// event of a bucket whose exchange is over. `end_step` ends the step.
  Ready summed(int bucket) const { return {reduced_[static_cast<std::size_t>(bucket)].get()}; }
  Ready all_gather(int bucket) {
    all_gather(static_cast<std::size_t>(bucket));
    return {gathered_[static_cast<std::size_t>(bucket)].get()};
  }
  void tell_observer(int bucket) {
    const auto b = static_cast<std::size_t>(bucket);
    const auto begin = clock_.time_of(std::move(begun_at_[b]));
    observer_.call(observer_.context, {bucket, begin, clock_.time_of(std::move(ended_at_[b]))});
  }
  void end_step() {
    begun_.reset();
    traffic_of_step_ = {traffic_.messages - traffic_before_step_.messages,
                        traffic_.bytes - traffic_before_step_.bytes};
  }

 protected:
  /// The fingerprint that the ranks compare: `fingerprint` and the fields of the exchange and the layout.
  /// Throws ConfigError if the layout does not fit this exchange.
  Fingerprint described(const Fingerprint& fingerprint, const Layout& layout) const;
  /// Makes `begin` and `finish` use this layout.
  void take(const Layout& layout);
  /// Makes the stream wait for all work that the space has enqueued, including steps in graphs. A no-op
  /// without a layout.
  void follow_space() {
    if (space_ != nullptr) follow(self().stream(), computed_.get(), space_->stream());
  }
  /// Drops the layout.
  void forget() {
    space_ = nullptr;
    layout_ = {};
    buckets_.clear();
    begun_.resize(0);
  }
  /// Implements `finish`. Returns false if a rule has decided on the host to skip the step.
  bool step(Update update);

  const Layout& layout() const { return layout_; }
  std::size_t buckets() const { return buckets_.size(); }
  /// If sharded: rank r's part of bucket b is [cuts(b)[r], cuts(b)[r + 1]), counted from the bucket's first
  /// element. It may be empty.
  const std::vector<std::int64_t>& cuts(std::size_t b) const { return cuts_[b]; }
  /// Whether the parts are equal, as by schedule::equal_part.
  bool even() const { return self().size() == 1 || layout_.whole.empty(); }
  const Range& bucket(std::size_t b) const { return buckets_[b]; }
  std::size_t bytes_of(std::size_t b) const {
    return static_cast<std::size_t>(bucket(b).size()) * sizeof(float);
  }
  void count(std::size_t bytes, int passes) {
    const int size = self().size();
    if (size == 1) return;
    ++traffic_.messages;
    traffic_.bytes += static_cast<std::int64_t>(bytes) * passes * (size - 1) / size;
  }
  /// Counts a bucket's sums. A C that sends other bytes than those of the gradients replaces this.
  void count_sums(std::size_t b) { count(bytes_of(b), sharded ? 1 : 2); }

 private:
  C& self() { return static_cast<C&>(*this); }
  const C& self() const { return static_cast<const C&>(*this); }

  // Equal parts, or parts that do not split the ranges that must stay whole.
  std::vector<std::vector<std::int64_t>> cut(std::span<const Range> buckets) const {
    std::vector<std::vector<std::int64_t>> all;
    schedule::Shards shards(self().size(), layout_.whole);
    for (const Range& b : buckets) {
      if (!even()) {
        all.push_back(shards.cut(b));
        continue;
      }
      auto& at = all.emplace_back();
      const std::int64_t part = schedule::equal_part(b.size(), self().size());
      for (int r = 0; r < self().size(); ++r) at.push_back(r * part);
      at.push_back(b.size());
    }
    return all;
  }
  Range own_of(const Range& bucket, const std::vector<std::int64_t>& cuts) const {
    const auto r = static_cast<std::size_t>(self().rank());
    return {bucket.begin + cuts[r], bucket.begin + cuts[r + 1]};
  }
  Range own_of(std::size_t b) const { return own_of(buckets_[b], cuts_[b]); }

  // Makes `next` wait for the work enqueued on `stream` so far.
  static void follow(cudaStream_t next, cudaEvent_t mark, cudaStream_t stream) {
    device::check(cudaEventRecord(mark, stream), "mark a stream");
    device::check(cudaStreamWaitEvent(next, mark, 0), "wait for a stream");
  }

  void reduce(std::size_t b);
  void all_gather(std::size_t b);
  void arrive(std::size_t b);
  bool decide(Update update);

  device::Event computed_, decided_;
  std::vector<device::Event> reduced_, gathered_;  // by bucket
  S* space_ = nullptr;
  Layout layout_;
  std::vector<Range> buckets_;
  std::vector<std::vector<std::int64_t>> cuts_;  // of each bucket, if sharded
  BegunBuckets begun_;
  Observer observer_;
  // With an observer: when the stream of exchanges began a bucket, and when it was done with it.
  std::vector<device::Event> begun_at_, ended_at_;
  device::StreamClock clock_;
  Traffic traffic_, traffic_before_step_, traffic_of_step_;
};

template <class C, memory::Space S, bool sharded>
Fingerprint DeviceBuckets<C, S, sharded>::described(const Fingerprint& fingerprint,
                                                    const Layout& layout) const {
  if (layout.space == nullptr)
    fail<ConfigError>(C::policy(), ": the layout does not say which object of the space ", S::name,
                      " holds the arenas");
  if (sharded && layout.parameters.size() < layout.gradients.size())
    fail<ConfigError>("sharded needs a parameter for each of the ", layout.gradients.size(),
                      " gradients, not ", layout.parameters.size());
  return detail::fingerprint_of(fingerprint, layout, C::policy()).add("comm", self().options());
}

template <class C, memory::Space S, bool sharded>
void DeviceBuckets<C, S, sharded>::take(const Layout& layout) {
  space_ = static_cast<S*>(layout.space);
  space_->stream();  // enters the GPU of the space, of which new events and memory are
  layout_ = layout;
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  if constexpr (sharded) cuts_ = cut(buckets_);
  begun_.resize(buckets_.size());
  begun_at_.resize(buckets_.size());
  ended_at_.resize(buckets_.size());
  computed_ = device::make_event();
  decided_ = device::make_event();
  while (reduced_.size() < buckets_.size()) reduced_.push_back(device::make_event());
  while (sharded && gathered_.size() < buckets_.size()) gathered_.push_back(device::make_event());
}

template <class C, memory::Space S, bool sharded>
void DeviceBuckets<C, S, sharded>::begin(int bucket, Ready ready) {
  const bool first = begun_.none();
  const std::size_t b = begun_.begin(bucket);
  if (first) traffic_before_step_ = traffic_;
  if (ready.event != nullptr)
    device::check(cudaStreamWaitEvent(self().stream(), static_cast<cudaEvent_t>(ready.event), 0),
                  "wait for a bucket's gradients");
  if (observed()) begun_at_[b] = clock_.timestamp(self().stream());
  reduce(b);
}

template <class C, memory::Space S, bool sharded>
void DeviceBuckets<C, S, sharded>::reduce(std::size_t b) {
  if (!buckets_[b].empty()) {
    self().enqueue_sums(b);
    self().count_sums(b);
  }
  device::check(cudaEventRecord(reduced_[b].get(), self().stream()), "mark a stream");
  if (observed()) ended_at_[b] = clock_.timestamp(self().stream());
  self().watch(DeviceWork::sums, b);
}

template <class C, memory::Space S, bool sharded>
void DeviceBuckets<C, S, sharded>::all_gather(std::size_t b) {
  follow_space();
  if (!buckets_[b].empty()) {
    self().enqueue_parameters(b);
    count(bytes_of(b), 1);
  }
  device::check(cudaEventRecord(gathered_[b].get(), self().stream()), "mark a stream");
  if (observed()) ended_at_[b] = clock_.timestamp(self().stream());
  self().watch(DeviceWork::parameters, b);
}

// Makes the compute stream wait for the sums of a bucket.
template <class C, memory::Space S, bool sharded>
void DeviceBuckets<C, S, sharded>::arrive(std::size_t b) {
  device::check(cudaStreamWaitEvent(space_->stream(), reduced_[b].get(), 0), "wait for a bucket's sums");
}

// Each rank sees only the sums of its own parts, so the ranks add up their partial values before they decide.
// This happens on the device; the host does not see the values. Returns false if the step is skipped.
template <class C, memory::Space S, bool sharded>
bool DeviceBuckets<C, S, sharded>::decide(Update update) {
  const auto arrived = [&](std::size_t b) {
    if (const Range mine = own_of(b); !mine.empty()) update.arrived(mine, 1.0f);
  };
  const auto add_up = [&] {
    const std::span<double> partial = update.partial();
    follow_space();
    self().enqueue_sums(partial);
    follow(space_->stream(), decided_.get(), self().stream());
    self().watch(DeviceWork::rule, 0);
    count(partial.size_bytes(), 2);
  };
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    arrive(b);
    arrived(b);
  }
  add_up();
  Decision decision = update.decide();
  for (; decision == Decision::again; decision = update.decide()) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) arrived(b);
    add_up();
  }
  return decision == Decision::apply;
}

template <class C, memory::Space S, bool sharded>
bool DeviceBuckets<C, S, sharded>::step(Update update) {
  self().check();
  bool applied = true;
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (!begun_[b]) begin(static_cast<int>(b), space_->mark());
  if constexpr (sharded) {
    const bool decides = update.decides();
    if (decides) applied = decide(update);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!decides) arrive(b);
      if (const Range mine = own_of(b); !mine.empty()) update(mine, 1.0f);
      all_gather(b);
    }
    if (!buckets_.empty())
      device::check(cudaStreamWaitEvent(space_->stream(), gathered_[buckets_.size() - 1].get(), 0),
                    "wait for the parameters of others");
  } else {
    const Arrivals arrivals(update);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      arrive(b);
      arrivals.arrived(buckets_[b]);
    }
    applied = arrivals.all(buckets_);
  }
  for (std::size_t b = 0; observed() && b < buckets_.size(); ++b) {
    self().await(b, (sharded ? gathered_ : reduced_)[b].get());
    tell_observer(static_cast<int>(b));
  }
  end_step();
  return applied;
}

}  // namespace convoy::comm
