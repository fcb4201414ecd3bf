// Pipeline: buckets that go through several exchanges in a row, with local work in between. While one bucket
// is in its second exchange, the next may be in its first.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/core/clock.hpp>

namespace convoy::comm {

/// Tracks the stage of each bucket. A policy with a pipeline has
///
///   `enter(stage, bucket)`    begins the exchange of a stage; `enter(stages, bucket)` is the work after the
///                             last
///   `passed(stage, bucket)`   whether a stage is over
///
/// Buckets enter every stage in the order in which they were begun, which is the same on all ranks; each
/// stage needs lanes of its own.
template <int stages>
class Pipeline {
 public:
  /// Makes room for `count` buckets, none begun.
  void resize(int count) {
    begun_.resize(static_cast<std::size_t>(count));
    stage_.resize(static_cast<std::size_t>(count));
    began_.resize(static_cast<std::size_t>(count));
    order_.reserve(static_cast<std::size_t>(count));
    reset();
  }
  int size() const { return static_cast<int>(stage_.size()); }
  /// Tells the observer of each bucket once, when its last stage is over.
  void observe(Observer observer) { observer_ = observer; }

  bool begun(int bucket) const { return begun_[static_cast<std::size_t>(bucket)]; }
  /// The stage of a bucket that was begun; `stages` once the bucket is through.
  int stage_of(int bucket) const { return stage_[static_cast<std::size_t>(bucket)]; }
  bool through(int bucket) const { return begun(bucket) && stage_of(bucket) == stages; }

  /// Begins a bucket. Throws Error if there is no such bucket, or if it was already begun in this step.
  template <class Policy>
  void start(Policy& policy, int bucket) {
    const std::size_t b = begun_.begin(bucket);
    stage_[b] = 0;
    if (observer_.call != nullptr) began_[b] = Clock::now();
    order_.push_back(bucket);
    policy.enter(0, bucket);
    move(policy);
  }

  /// Moves buckets on as far as possible; true if any moved.
  template <class Policy>
  bool move(Policy& policy) {
    bool moved = false;
    for (int s = 0; s < stages; ++s)
      for (std::size_t& head = head_[static_cast<std::size_t>(s)]; head < order_.size(); ++head) {
        const int bucket = order_[head];
        if (stage_of(bucket) != s || !policy.passed(s, bucket)) break;
        if (s + 1 == stages && observer_.call != nullptr)
          observer_.call(observer_.context, {bucket, began_[static_cast<std::size_t>(bucket)], Clock::now()});
        policy.enter(s + 1, bucket);
        stage_[static_cast<std::size_t>(bucket)] = s + 1;
        moved = true;
      }
    return moved;
  }

  /// Starts the next step: all buckets may be begun again.
  void reset() {
    order_.clear();
    head_ = {};
    begun_.reset();
  }

 private:
  BegunBuckets begun_;
  std::vector<int> stage_, order_;
  std::vector<Clock::time_point> began_;
  Observer observer_;
  std::array<std::size_t, stages> head_{};
};

}  // namespace convoy::comm
