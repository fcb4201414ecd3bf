// Policies made of a reduce-scatter and an all-gather. With Sharded, each rank updates its own part of every
// bucket between the two, so that the optimizer state is divided by the number of ranks (ZeRO stage 1,
// Rajbhandari et al. 2020); no part cuts a range that must stay whole. Reproducible combines in the order of
// ranks, so that the bits do not depend on the algorithm, the buckets, the segments or the transport.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/pipeline.hpp>
#include <convoy/comm/on_spans.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/schedule/all_to_all.hpp>
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/memory/buffer.hpp>

namespace convoy::comm {

/// An all-reduce as its two halves, a reduce-scatter and an all-gather, with work of this rank in between:
/// the base of Sharded and Reproducible, by any schedules over any transport. If `ordered`, it combines in
/// the order of ranks; if `sharded`, each rank updates its own part.
class AnyHalves : public AnyCollectives, public OnSpans<AnyHalves> {
  using Base = AnyCollectives;

 public:
  AnyHalves(const transport::Any& where, const Schedules& schedules, bool ordered, bool sharded,
            const Options& options)
      : Base(where, schedules, options),
        sorts_(ordered && !schedules.all_reduce.shared()),
        ordered_(ordered),
        sharded_(sharded) {}

  static constexpr std::string_view policy_of(bool ordered, bool sharded) {
    return !sharded ? "reproducible" : ordered ? "sharded reproducible" : "sharded";
  }
  std::string_view policy() const { return policy_of(ordered_, sharded_); }
  void observe(Observer observer) { pipeline_.observe(observer); }

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready = {}) {
    this->engine_->poll();
    pipeline_.start(*this, bucket);
  }
  void poll() {
    this->engine_->poll();
    pipeline_.move(*this);
  }
  void finish(Update update);

  std::vector<Range> updates(std::span<const Range> buckets) const {
    if (!sharded_) return {buckets.begin(), buckets.end()};
    std::vector<Range> mine;
    for (int b = 0; b < pipeline_.size(); ++b)
      if (const Range r = own_of(b); !r.empty()) mine.push_back(r);
    return mine;
  }

  using OnSpans<AnyHalves>::all_reduce;
  using Base::broadcast;
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    if (sorts_) {
      gather_in_order(values, count, reduction);
      this->engine_->run(this->cut(schedules_.all_gather, this->size(), count, reduction.type), values, count,
                         moved(reduction.type));
    } else {
      Base::all_reduce(values, count, reduction);
    }
  }
  template <Contiguous R, OperationTag O>
  Range reduce_scatter(R&& range, O op) {
    const auto values = span_of(range);
    return reduce_scatter(values.data(), static_cast<std::int64_t>(values.size()),
                          reduction<element_of<R>>(op));
  }
  Range reduce_scatter(void* values, std::int64_t count, const Reduction& reduction) {
    if (!sorts_) return Base::reduce_scatter(values, count, reduction);
    gather_in_order(values, count, reduction);
    return this->own(count, reduction.type);
  }

 private:
  template <int>
  friend class Pipeline;

  // This rank's own block of a bucket.
  Range own_of(int bucket) const {
    const auto b = static_cast<std::size_t>(bucket);
    const Range r = blocks_of(bucket)[this->rank()];
    return {buckets_[b].begin + r.begin, buckets_[b].begin + r.end};
  }
  schedule::Blocks blocks_of(int bucket) const {
    const auto b = static_cast<std::size_t>(bucket);
    return {buckets_[b].size(), this->size(), schedule::shard_grain, cuts_[b]};
  }
  // Slots of the engine: the first halves of all buckets, then the second halves.
  int second(int bucket) const { return pipeline_.size() + bucket; }

  void enter(int leg, int bucket) {
    if (leg == 0) return this->engine_->begin(bucket);
    if (leg != 1) return;
    if (!decided_) fold(bucket);
    if (sharded_)
      if (const Range mine = own_of(bucket); !mine.empty()) (*update_)(mine, 1.0f);
    this->engine_->begin(second(bucket));
  }
  bool passed(int leg, int bucket) {
    if (leg == 1) return this->engine_->complete(second(bucket));
    // Sharded, the second half needs this rank's update. Otherwise it receives into memory that the first
    // half sends from.
    return sharded_ ? update_ != nullptr && this->engine_->complete(bucket) : this->engine_->over(bucket);
  }

  // Afterwards this rank's own block of the bucket holds the sums.
  void fold(int bucket) {
    if (sorts_)
      fold(layout_.gradients.data(), own_of(bucket), reduction<f32>(sum),
           inboxes_[static_cast<std::size_t>(bucket)].data());
  }
  // Each rank sees only the sums of its own blocks, so the ranks add up their partial values before they
  // decide.
  void decide(Update update) {
    const auto arrived = [&](int b) {
      if (const Range mine = own_of(b); !mine.empty()) update.arrived(mine, 1.0f);
    };
    for (int b = 0; b < pipeline_.size(); ++b) {
      this->engine_->await([&] { return this->engine_->complete(b); });
      fold(b);
      arrived(b);
    }
    all_reduce(update.partial(), sum);
    while (update.decide() == Decision::again) {
      for (int b = 0; b < pipeline_.size(); ++b) arrived(b);
      all_reduce(update.partial(), sum);
    }
  }

  // Combines this rank's own block with the blocks that the others sent.
  void fold(void* values, const Range& mine, const Reduction& reduction, const void* inbox) {
    const std::size_t element = size_of(reduction.type);
    void* into = static_cast<std::byte*>(values) + static_cast<std::size_t>(mine.begin) * element;
    for (int r = 0; r < this->size(); ++r)
      sources_[static_cast<std::size_t>(r)] =
          r == this->rank()
              ? into
              : static_cast<const std::byte*>(inbox) +
                    static_cast<std::size_t>(r) * static_cast<std::size_t>(mine.size()) * element;
    reduction.fold(&into, 1, sources_.data(), this->size(), mine.size(),
                   reduction.op == Op::mean ? 1.0 / this->size() : 1, false);
  }
  void gather_in_order(void* values, std::int64_t count, const Reduction& reduction) {
    const Range mine = this->own(count, reduction.type);
    const auto slots = static_cast<std::size_t>(mine.size()) * static_cast<std::size_t>(this->size());
    if (inbox_.size() < slots * size_of(reduction.type))
      inbox_ = this->engine_->grown(inbox_, slots * size_of(reduction.type));
    sources_.resize(static_cast<std::size_t>(this->size()));
    // The all-to-all combines nothing; it gets `reduction` so that a rank with another one is detected.
    this->engine_->run(this->half<schedule::AllToAll>(count, reduction.type), values, count, reduction,
                       inbox_.data());
    fold(values, mine, reduction, inbox_.data());
  }

  bool sorts_;  // a schedule over shared memory combines in the order of ranks by itself
  bool ordered_, sharded_;
  Layout layout_;
  std::vector<Range> buckets_;
  std::vector<std::vector<std::int64_t>> cuts_;  // of each bucket, into the ranks' blocks
  std::vector<Buffer<float>> inboxes_;
  Buffer<std::byte> inbox_;
  std::vector<const void*> sources_;
  Pipeline<2> pipeline_;
  const Update* update_ = nullptr;
  bool decided_ = false;  // the sums of this step have been folded
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void AnyHalves::open(const Fingerprint& fingerprint, const Layout& layout) {
  if (sharded_ && layout.parameters.size() < layout.gradients.size())
    fail<ConfigError>("sharded needs a parameter for each of the ", layout.gradients.size(),
                      " gradients, not ", layout.parameters.size());
  Fingerprint all = fingerprint;
  all.add("comm algorithm", schedules_.all_reduce.name());
  Base::agree_on(all, layout, policy());
  layout_ = layout;
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  const auto n = static_cast<std::size_t>(this->size());
  sources_.resize(n);
  inboxes_.clear();
  cuts_.clear();
  schedule::Shards shards(this->size(), sharded_ ? layout.whole : std::span<const Range>{});
  for (const Range& b : buckets_) cuts_.push_back(shards.cut(b));
  pipeline_.resize(static_cast<int>(buckets_.size()));
  this->engine_->resize(2 * pipeline_.size());
  const int lanes = (this->engine_->transport().lanes() - 1) / 2;
  for (int bucket = 0; bucket < pipeline_.size(); ++bucket) {
    const Range b = buckets_[static_cast<std::size_t>(bucket)];
    float* gradients = layout.gradients.data() + b.begin;
    Engine::Slot first{.data = gradients,
                       .count = b.size(),
                       .lane = 1 + bucket % lanes,
                       .bucket = bucket,
                       .cuts = cuts_[static_cast<std::size_t>(bucket)]};
    auto then = first;
    // The longest block determines the segments of all, so that the other ranks keep sending while the
    // longest block goes round.
    std::int64_t longest = 0;
    for (int r = 0; r < this->size(); ++r) longest = std::max(longest, blocks_of(bucket)[r].size());
    longest *= this->size();
    if (sorts_) {
      inboxes_.emplace_back(n * static_cast<std::size_t>(own_of(bucket).size()), this->engine_->inboxes());
      first.program = &this->half<schedule::AllToAll>(longest, DType::f32);
      first.inbox = inboxes_.back().data();
    } else {
      first.program = &this->cut(schedules_.reduce_scatter, this->size(), longest, DType::f32);
    }
    first.reduction = reduction<f32>(sum);
    then.program = &this->cut(schedules_.all_gather, this->size(), longest, DType::f32);
    then.reduction = moved(DType::f32);
    then.lane += lanes;
    if (sharded_) then.data = layout.parameters.data() + b.begin;
    this->engine_->assign(bucket, first);
    this->engine_->assign(second(bucket), then);
  }
}

CONVOY_FUNCTION void AnyHalves::finish(Update update) {
  // Even if an update throws, no update is made outside this call.
  struct Lent {
    const Update*& to;
    ~Lent() { to = nullptr; }
  };
  for (int b = 0; b < pipeline_.size(); ++b)
    if (!pipeline_.begun(b)) pipeline_.start(*this, b);
  decided_ = sharded_ && update.decides();
  if (decided_) decide(update);
  update_ = &update;
  const Lent lent{update_};
  const Arrivals arrivals(update);
  const auto move = [&] { return pipeline_.move(*this); };
  for (int b = 0; b < pipeline_.size(); ++b) {
    this->engine_->await([&] { return pipeline_.through(b); }, move);
    if (!sharded_) arrivals.arrived(buckets_[static_cast<std::size_t>(b)]);
  }
  if (!sharded_) arrivals.all(buckets_);
  this->engine_->drain();
  pipeline_.reset();
}
#endif

/// AnyHalves by the schedules of `S` over transport `T`. If `S` has no halves that leave rank r with block r,
/// the ring's are used.
template <class S, class T, bool ordered, bool sharded>
class Halves : public AnyHalves {
 public:
  static constexpr std::string_view policy() { return AnyHalves::policy_of(ordered, sharded); }

  explicit Halves(const T& where = T{}, const Options& options = {})
      : AnyHalves(where, Schedules::of<S>(), ordered, sharded, options) {}
};

namespace detail {

template <class A>
struct HalvesFrom;
template <class S, class T>
struct HalvesFrom<AllReduce<Algorithm<S, T>, true>> {
  using Sharded = Halves<S, T, false, true>;
  using Reproducible = Halves<S, T, true, false>;
};
template <class S, class T>
struct HalvesFrom<Halves<S, T, true, false>> {
  using Sharded = Halves<S, T, true, true>;
};

}  // namespace detail

/// Each rank updates its own part of every bucket: `Sharded<Ring<transport::Mpi>>`,
/// `Sharded<Direct<transport::Shm>>`, `Sharded<Reproducible<Ring<transport::Mpi>>>`.
template <class A>
using Sharded = typename detail::HalvesFrom<A>::Sharded;

/// Sums in the order of ranks, ((x_0 + x_1) + x_2) + ..., rounded as f32 additions in that order: the same
/// bits for all algorithms, bucket sizes, segments and transports.
template <class A>
using Reproducible = typename detail::HalvesFrom<A>::Reproducible;

}  // namespace convoy::comm
