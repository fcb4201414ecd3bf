// work_of: a worker's step from the plan of its model and the seconds of the plan's operations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <convoy/core/compiled.hpp>
#include <convoy/core/range.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/graph/profile.hpp>
#include <convoy/sim/work.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstddef>
#endif

namespace convoy::sim {

/// Whether weights that only ever meet padding are exchanged, as they are without convoy.
enum class DeadTaps : unsigned char { left_out, exchanged };

/// A bucket for each tensor, in the order in which backward finishes them.
std::vector<Range> bucket_per_tensor(const Plan& plan);

/// A step with a batch of the profile's rows. The profile must be of this plan; `buckets` are ranges of the
/// plan's gradient arena. A bucket is ready when backward has passed the first stage that uses any of its
/// tensors. Updates are divided in proportion to bytes. Matrices for codecs are listed without their dead
/// taps. `whole` lists what the optimizer updates as one (comm::Layout): optim::Arena::matrices(). Throws
/// ConfigError for a profile of another plan.
Work work_of(const Plan& plan, const graph::Profile& profile, std::span<const Range> buckets,
             DeadTaps dead = DeadTaps::left_out, std::span<const Range> whole = {});

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::vector<Range> bucket_per_tensor(const Plan& plan) {
  std::vector<Range> buckets;
  for (const int p : plan.exchange_order) buckets.push_back(plan.slot(p).live);
  return buckets;
}

namespace detail {

// Seconds from the beginning of backward to the end of each stage.
inline std::vector<double> stage_ends(const Plan& plan, const graph::Profile& profile) {
  std::vector<double> seconds(plan.nodes.size());
  const std::vector<int> computed = graph::computed_nodes(plan);
  for (std::size_t i = 0; i < computed.size(); ++i)
    seconds[static_cast<std::size_t>(computed[i])] = profile.operations[i].backward;
  std::vector<double> ends(plan.stages.size());
  double now = 0;
  for (auto s = static_cast<int>(plan.stages.size()) - 1; s >= 0; --s) {
    for (int k = 0; k < plan.stage(s).count; ++k) now += seconds[static_cast<std::size_t>(plan.member(s, k))];
    ends[static_cast<std::size_t>(s)] = std::min(now, profile.backward());
  }
  return ends;
}

// The bucket of a range of the gradient arena. `ready` is when the bucket before is ready, and `ends` is of
// stage_ends.
inline Bucket bucket_of(const Plan& plan, const Range& range, DeadTaps dead, std::span<const Range> whole,
                        double ready, const std::vector<double>& ends) {
  Bucket bucket{.ready = ready};
  // Exchanged dead taps shift the elements after them.
  std::int64_t moved = 0, elements = range.size();
  for (const int p : plan.exchange_order) {
    const graph::Slot& slot = plan.slot(p);
    if (slot.live.begin < range.begin || slot.live.begin >= range.end) continue;
    const Shape& shape = plan.parameter(p).shape;
    if (shape.rank > 1 && slot.live.end <= range.end)
      bucket.matrices.push_back({shape[0], slot.live.size() / shape[0]});
    const bool all = dead == DeadTaps::exchanged;
    const std::int64_t more = all ? graph::align_slot(shape.size()) - graph::align_slot(slot.live.size()) : 0;
    if (all) elements = range.size() + moved + slot.dead.size();
    const auto kept =
        std::find_if(whole.begin(), whole.end(), [&](const Range& w) { return w.begin == slot.live.begin; });
    if (kept != whole.end())
      bucket.whole.push_back({kept->begin - range.begin + moved, kept->end - range.begin + moved + more});
    moved += more;
    bucket.ready = std::max(bucket.ready, ends[static_cast<std::size_t>(slot.first)]);
  }
  bucket.bytes = elements * static_cast<std::int64_t>(sizeof(float));
  // A bucket may end before the padding after its last tensor.
  if (!bucket.whole.empty()) bucket.whole.back().end = std::min(bucket.whole.back().end, elements);
  return bucket;
}

}  // namespace detail

CONVOY_FUNCTION Work work_of(const Plan& plan, const graph::Profile& profile, std::span<const Range> buckets,
                             DeadTaps dead, std::span<const Range> whole) {
  graph::expect_profile(plan, profile);
  Work work;
  work.samples = profile.rows;
  work.forward = profile.forward();
  work.backward = profile.backward();
  const std::vector<double> ends = detail::stage_ends(plan, profile);
  double ready = 0;
  for (const Range& range : buckets) {
    work.buckets.push_back(detail::bucket_of(plan, range, dead, whole, ready, ends));
    ready = work.buckets.back().ready;
  }
  const auto all = static_cast<double>(std::max<std::int64_t>(1, work.bytes()));
  for (Bucket& bucket : work.buckets)
    bucket.update = profile.update * static_cast<double>(bucket.bytes) / all;
  return work;
}
#endif

}  // namespace convoy::sim
