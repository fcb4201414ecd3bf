// Carrier: exchanges the buckets of a user's tensors by operations with handles, for every element type, or
// by the buckets of any Comm, for f32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/tensors/nonblocking.hpp>
#include <convoy/core/call.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>

#if CONVOY_DEFINITIONS
#include <mutex>
#endif

namespace convoy::comm::detail {

/// A bucket to exchange.
struct Load {
  void* data = nullptr;
  std::int64_t count = 0;
  Reduction reduction{};
};

/// Calls come from one thread. Buckets are begun in order.
class Carrier {
 public:
  Carrier() = default;
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;
  virtual ~Carrier() = default;

  virtual int rank() const = 0;
  virtual std::pmr::memory_resource* memory() = 0;
  /// Whether it exchanges f32 only, in contiguous buckets.
  virtual bool one_arena() const = 0;
  /// The factor applied to gradients before they are sent, for a mean. All ranks call it together, before
  /// `open`.
  virtual float before(Op op) = 0;
  /// Compares the fingerprint across ranks. There is at least one bucket.
  virtual void open(const Fingerprint& fingerprint, std::span<const Load> buckets) = 0;
  virtual void begin(int bucket) = 0;
  virtual void poll() = 0;
  /// Whether a begun bucket has its result and its memory is free; a carrier may not know before `finish`.
  virtual bool arrived(int bucket) = 0;
  /// Calls `there(bucket, scale)` for each bucket from `first` on, in order, as soon as its result is there,
  /// to be multiplied by `scale`. Returns when the memory of all buckets is free.
  virtual void finish(int first, Call<void(int, float)> there) = 0;
  /// The maximum over ranks of each value.
  virtual void largest(std::span<float> values) = 0;
  /// Ends what is in flight; the exchange fails, and the other ranks learn of it if that is possible.
  virtual void fail_with(const CommError& reason) noexcept = 0;
};

class NonblockingCarrier : public Carrier {
 public:
  explicit NonblockingCarrier(NonblockingExchange& exchange) : exchange_(exchange) {}
  ~NonblockingCarrier() override { exchange_.spare_ += reserved_; }

  int rank() const override { return exchange_.rank(); }
  std::pmr::memory_resource* memory() override { return exchange_.memory(); }
  bool one_arena() const override { return false; }
  float before(Op) override { return 1; }
  void open(const Fingerprint& fingerprint, std::span<const Load> buckets) override {
    if (const std::size_t flying = exchange_.in_flight(); flying > 0)
      fail<ConfigError>("GradientBuckets must be made before an operation of its exchange is in flight; ",
                        flying, flying == 1 ? " is" : " are", " in flight");
    exchange_.agree_on(fingerprint);
    const int wanted = static_cast<int>(buckets.size()) + 1;
    exchange_.reserve(wanted);
    reserved_ = wanted;
    buckets_.assign(buckets.begin(), buckets.end());
    handles_.resize(buckets.size());
  }
  void begin(int bucket) override {
    const auto b = static_cast<std::size_t>(bucket);
    handles_[b] = exchange_.launch(schedule::Goal::all_reduce, buckets_[b].data, buckets_[b].count,
                                   buckets_[b].reduction, 0, bucket);
  }
  void poll() override { exchange_.poll(); }
  bool arrived(int bucket) override { return handles_[static_cast<std::size_t>(bucket)].done(); }
  void finish(int first, Call<void(int, float)> there) override {
    for (auto b = static_cast<std::size_t>(first); b < handles_.size(); ++b) {
      handles_[b].wait();
      there(static_cast<int>(b), 1);
    }
  }
  void largest(std::span<float> values) override { exchange_.all_reduce_async(values, max).wait(); }
  void fail_with(const CommError& reason) noexcept override { exchange_.fail_with(reason); }

 private:
  NonblockingExchange& exchange_;
  int reserved_ = 0;  // operations
  std::vector<Load> buckets_;
  std::vector<Handle> handles_;
};

/// Reserves the buckets of a Comm, of which it has one set, for one GradientBuckets until its destruction.
class BucketsTaken {
 public:
  /// `exchange`: the address of the Comm. Throws ConfigError if the buckets of that Comm are reserved.
  explicit BucketsTaken(const void* exchange);
  ~BucketsTaken();
  BucketsTaken(const BucketsTaken&) = delete;
  BucketsTaken& operator=(const BucketsTaken&) = delete;

 private:
  struct All;
  static All& all();

  const void* exchange_;
};

#if CONVOY_DEFINITIONS
struct BucketsTaken::All {
  std::mutex mutex;
  std::vector<const void*> exchanges;
};

CONVOY_FUNCTION BucketsTaken::All& BucketsTaken::all() {
  static All one;
  return one;
}

CONVOY_FUNCTION BucketsTaken::BucketsTaken(const void* exchange) : exchange_(exchange) {
  All& taken = all();
  const std::lock_guard lock(taken.mutex);
  if (std::find(taken.exchanges.begin(), taken.exchanges.end(), exchange) != taken.exchanges.end())
    fail<ConfigError>(
        "this exchange already carries the buckets of another GradientBuckets; make a second exchange");
  taken.exchanges.push_back(exchange);
}

CONVOY_FUNCTION BucketsTaken::~BucketsTaken() {
  All& taken = all();
  const std::lock_guard lock(taken.mutex);
  taken.exchanges.erase(std::find(taken.exchanges.begin(), taken.exchanges.end(), exchange_));
}
#endif

template <Comm C>
class CommCarrier : public Carrier {
 public:
  explicit CommCarrier(C& comm) : comm_(comm), taken_(&comm) {}

  int rank() const override { return comm_.rank(); }
  std::pmr::memory_resource* memory() override { return comm_.memory(); }
  bool one_arena() const override { return true; }
  float before(Op op) override {
    if (comm_.has_servers()) refuse();  // first, because a rank that only serves has no share
    if (op != Op::mean) return 1;
    const std::vector<double> shares = comm_.shares([](double, double&) {
      fail<ConfigError>(
          "weighted: without Trainer no speed is measured, so a mean of gradients needs weights");
    });
    return shares.empty() ? 1.0f / static_cast<float>(comm_.size())
                          : static_cast<float>(shares[static_cast<std::size_t>(rank())]);
  }
  void open(const Fingerprint& fingerprint, std::span<const Load> buckets) override {
    std::int64_t end = 0;
    for (const Load& b : buckets) {
      ranges_.push_back({end, end + b.count});
      end += b.count;
    }
    const auto filled =
        std::find_if(buckets.begin(), buckets.end(), [](const Load& b) { return b.count > 0; });
    auto* const first = filled == buckets.end() ? nullptr : static_cast<float*>(filled->data);
    const std::span<float> arena(first, static_cast<std::size_t>(end));
    // There are no parameters. An exchange that writes parameters is refused before it does.
    comm_.open(fingerprint, {arena, arena, ranges_});
    // If there are few gradients, one rank's part may be all of them, so the ranks compare.
    float parts[] = {comm_.updates(ranges_) == ranges_ ? 0.0f : 1.0f};
    largest(parts);
    if (parts[0] > 0) refuse();
  }
  void begin(int bucket) override { comm_.begin(bucket); }
  void poll() override { comm_.poll(); }
  bool arrived(int) override {
    comm_.poll();
    return false;
  }
  void finish(int, Call<void(int, float)> there) override {
    // An update may cover several buckets, of which the Comm has merged the adjacent ones.
    std::size_t next = 0;
    comm_.finish([&](Range arrived, float scale) {
      for (; next < ranges_.size() && ranges_[next].end <= arrived.end; ++next)
        there(static_cast<int>(next), scale);
    });
  }
  void largest(std::span<float> values) override { comm_.all_reduce(values, max); }
  void fail_with(const CommError&) noexcept override { comm_.close(); }

 private:
  [[noreturn]] static void refuse() {
    fail<ConfigError>(
        "this exchange does not end with every sum on every rank, which exchanges without Trainer need; use "
        "an all-reduce, such as comm::Ring or comm::Hierarchical");
  }

  C& comm_;
  BucketsTaken taken_;
  std::vector<Range> ranges_;
};

}  // namespace convoy::comm::detail
