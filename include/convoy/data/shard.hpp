// How an epoch's order is divided into the batches of steps and ranks. Every rank computes the same division.
// The samples of a step depend on the global batch alone, not on the number of ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <convoy/core/error.hpp>
#include <convoy/core/range.hpp>

namespace convoy::data {

/// This rank's part of the data: rank `rank` of `world`.
struct Shard {
  int rank = 0, world = 1;
  /// The ranks' shares of every batch, summing to 1; empty if all are equal. Must outlive the shard.
  std::span<const double> shares = {};
  /// Every rank reads all of the data, each in an order of its own, as some published runs did: an epoch then
  /// takes as many steps as on one rank, and sees every sample `world` times.
  bool unsharded = false;

  /// Rank `r`'s part of `rows` rows. The ranks' parts are consecutive and cover all rows; each is its share
  /// of the rows, rounded up or down.
  constexpr Range part(std::int64_t rows, int r) const {
    if (shares.empty()) return {rows * r / world, rows * (r + 1) / world};
    return {cut(rows, before(r)), cut(rows, before(r + 1))};
  }

  /// The most rows that this rank gets of `rows` rows or fewer.
  constexpr std::int64_t most(std::int64_t rows) const {
    if (shares.empty()) return (rows + world - 1) / world;
    return (rows * (before(rank + 1) - before(rank)) + one - 1) / one;
  }

 private:
  // Shares are fixed-point numbers in units of 2^-30, so that processors that round products differently cut
  // at the same row, and a product with 2^32 rows fits in 64 bits.
  static constexpr std::int64_t one = std::int64_t{1} << 30;

  // The shares of all ranks before `r`.
  constexpr std::int64_t before(int r) const {
    if (r == world) return one;
    double sum = 0;
    for (int i = 0; i < r; ++i) sum += shares[static_cast<std::size_t>(i)];
    return std::min(static_cast<std::int64_t>(sum * static_cast<double>(one) + 0.5), one);
  }
  static constexpr std::int64_t cut(std::int64_t rows, std::int64_t share) {
    return (rows * share + one / 2) / one;
  }
};

/// How an epoch of `samples` samples is cut into steps of `batch` rows on each of `shard.world` ranks.
///
/// Every rank takes the same number of steps and every sample occurs exactly once. All steps are full but the
/// last, which takes what is left; when that is less than half a global batch, the last two steps share their
/// samples evenly, so that no rank is left without a row (unless `batch` is 1). Within a step the ranks' rows
/// differ by at most one; with unequal shares each rank has its share of the step's samples, rounded up or
/// down, and a small share may get no row. A step's samples are a function of (samples, batch * world): world
/// 2 with batch B sees in each step what world 1 with batch 2B sees.
class BatchPlan {
 public:
  /// Throws ConfigError if the batch is not positive, the shard is invalid, or one global batch is larger
  /// than the set (which `allow_short` permits, for evaluation: then there is a single, short step).
  constexpr BatchPlan(std::size_t samples, std::int64_t batch, Shard shard, bool allow_short = false)
      : samples_(static_cast<std::int64_t>(samples)), shard_(shard), batch_(batch) {
    if (batch < 1) fail<ConfigError>("data: the batch must be at least 1, not ", batch);
    if (shard.world < 1 || shard.rank < 0 || shard.rank >= shard.world)
      fail<ConfigError>("data: there is no rank ", shard.rank, " of ", counted(shard.world, "rank"));
    check_shares();
    if (samples == 0) fail<ConfigError>("data: the data set holds no samples");
    if (samples > std::size_t{1} << 62)
      fail<ConfigError>("data: the data set holds ", samples, " samples, expected at most 2^62");
    if (batch > (std::int64_t{1} << 32))
      fail<ConfigError>("data: the batch must be at most 2^32 samples, not ", batch);
    if (shard.unsharded && !shard.shares.empty())
      fail<ConfigError>("data: ranks that read all of the data cannot have unequal shares of it");
    copies_ = shard.unsharded ? shard.world : 1;
    global_ = shard.unsharded ? batch : batch * shard.world;
    if (global_ > samples_ && !allow_short)
      fail<ConfigError>("data: a batch of ", global_, " samples (", batch, " on each of ",
                        counted(shard.world, "rank"), ") is larger than the data set of ",
                        counted(samples, "sample"));
    steps_ = (samples_ + global_ - 1) / global_;
    const std::int64_t rest = samples_ - (steps_ - 1) * global_;
    last_ = samples_ - rest;
    if (steps_ > 1 && rest < (global_ + 1) / 2) last_ -= (global_ - rest) / 2;
  }

  constexpr std::int64_t steps() const { return steps_; }
  constexpr std::int64_t samples() const { return samples_; }
  /// The number of the epoch's first sample that step `step` takes, in the order that all ranks share or each
  /// reads as a whole.
  constexpr std::int64_t first_sample(std::int64_t step) const { return boundary(step); }
  /// Rows of a rank in a full step; with unequal shares, the mean over ranks.
  constexpr std::int64_t batch() const { return batch_; }
  /// The largest number of this rank's rows in any step.
  constexpr std::int64_t most_rows() const {
    const std::int64_t most = std::min(global_, samples_);
    return shard_.unsharded ? most : shard_.most(most);
  }
  constexpr Shard shard() const { return shard_; }

  /// The samples of a step over all ranks, as positions in the epoch's order. If every rank reads all of the
  /// data, positions count the samples of all `world` orders.
  constexpr Range global(std::int64_t step) const {
    return {boundary(step) * copies_, boundary(step + 1) * copies_};
  }

  /// The positions of rank `rank`.
  constexpr Range rows(std::int64_t step, int rank) const {
    const Range all = global(step);
    if (shard_.unsharded) {
      const std::int64_t each = all.size() / copies_;
      return {all.begin + rank * each, all.begin + (rank + 1) * each};
    }
    const Range part = shard_.part(all.size(), rank);
    return {all.begin + part.begin, all.begin + part.end};
  }
  constexpr Range rows(std::int64_t step) const { return rows(step, shard_.rank); }

  /// This rank's samples of a step as places in the order that it reads.
  constexpr Range places(std::int64_t step) const {
    return shard_.unsharded ? Range{boundary(step), boundary(step + 1)} : rows(step);
  }

 private:
  constexpr void check_shares() const {
    const auto shares = shard_.shares;
    if (shares.empty()) return;
    if (shares.size() != static_cast<std::size_t>(shard_.world))
      fail<ConfigError>("data: ", counted(shares.size(), "share"), " for ", counted(shard_.world, "rank"),
                        "; give one to each");
    double sum = 0;
    for (std::size_t r = 0; r < shares.size(); ++r) {
      if (!(shares[r] >= 0))
        fail<ConfigError>("data: the share of rank ", r, " is ", shares[r], "; it must not be negative");
      sum += shares[r];
    }
    if (!(sum > 1 - 1e-9 && sum < 1 + 1e-9)) fail<ConfigError>("data: the shares sum to ", sum, ", not to 1");
  }

  constexpr std::int64_t boundary(std::int64_t step) const {
    if (step >= steps_) return samples_;
    return step == steps_ - 1 ? last_ : step * global_;
  }

  std::int64_t samples_ = 0;
  Shard shard_;
  std::int64_t batch_ = 0, global_ = 0, steps_ = 0, last_ = 0;  // `global_`: samples of a step in one order
  std::int64_t copies_ = 1;                                     // the number of orders
};

}  // namespace convoy::data
