// Loader: prefetches one rank's batches of a data set on its own threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory_resource>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/core/stuck.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/permutation.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/memory/pages.hpp>

namespace convoy::data {

/// One step's samples of this rank. Each field is one contiguous column of `rows` samples, aligned.
struct Batch {
  /// The epoch, and the step within it; `Loader::start(epoch, step + 1)` continues after this batch.
  std::int64_t epoch = 0, step = 0;
  /// Samples of this rank. 0 is possible only with a batch of 1, a set smaller than the world size, or a
  /// small share.
  std::int64_t rows = 0;
  /// Samples of this step over all ranks, by which summed gradients are divided.
  std::int64_t global_rows = 0;
  /// The fields, and where the column of each begins.
  std::span<const Field> fields;
  std::span<std::byte* const> columns;
  /// Which sample of the data set each row is.
  std::span<const std::uint64_t> indices = {};

  /// The elements of field `i` of all rows. Throws DataError if the field does not exist or holds another
  /// type.
  template <class T>
  std::span<const T> as(std::size_t i) const {
    const auto first = Sample(fields, columns.data(), 0).as<T>(i);
    return {first.data(), first.size() * static_cast<std::size_t>(rows)};
  }
};

struct LoaderOptions {
  /// Rows of this rank in a full step; where the shard's shares are unequal, the mean over ranks. A loop that
  /// trains sets it to the trainer's `batch`, whose default is another.
  std::int64_t batch = 128;
  Shard shard = {};
  std::uint64_t seed = 0;
  /// Draw a new order for each epoch; otherwise keep the order of the set.
  bool shuffle = true;
  /// Batches read ahead of the one in use; 0 reads in `next` itself, without a thread.
  int prefetch = 2;
  /// Prefetch threads, each of which reads one batch at a time. Their number does not change the batches. The
  /// loader has buffers for at least as many batches.
  int readers = 1;
  /// How many of the last batches stay valid, because a device may still read them.
  int held = 1;
  /// How many batches ahead `peek` can look.
  int ahead = 0;
  /// Accept a set smaller than one global batch, as evaluation may.
  bool allow_short = false;
  /// How long `next` waits for a batch before it throws, and the destructor for pieces being read before it
  /// ends the process.
  Seconds deadline{300};
  /// Allocates the batches, for example in pinned memory; must outlive the loader.
  std::pmr::memory_resource* memory = memory::pages();
};

/// The order of an epoch, indexed by BatchPlan::places. Ranks that each read all of the data have different
/// orders.
constexpr Permutation order_of(const BatchPlan& plan, std::uint64_t seed, std::int64_t epoch) {
  const auto own = static_cast<std::uint64_t>(plan.shard().unsharded ? plan.shard().rank : 0);
  return Permutation(static_cast<std::uint64_t>(plan.samples()),
                     own == 0 ? seed : hash_of(own, hash_of(seed)), static_cast<std::uint64_t>(epoch));
}

/// Reads a data set epoch by epoch:
///
///     loader.start(epoch);
///     while (const Batch* batch = loader.next()) ...
///
/// The data set must outlive the loader. All memory is allocated at construction. Not thread-safe: one thread
/// uses a loader.
template <class D, bool valid = require_dataset<D>()>
class Loader {
 public:
  /// Throws ConfigError if the batch is larger than the set, or an option is invalid; Error if the system
  /// cannot start the threads.
  Loader(const D& set, const LoaderOptions& options);
  Loader(const D&&, const LoaderOptions&) = delete;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Stops reading ahead; waits for the pieces of batches being read. A piece that is not read within the
  /// deadline ends the process with `stuck_exit_code` and a sentence on stderr: its thread cannot be
  /// abandoned, because it uses a data set that may be destroyed next.
  ~Loader() { stop(); }

  /// Steps in an epoch, the same on every rank.
  std::int64_t steps_per_epoch() const { return plan_.steps(); }
  const BatchPlan& plan() const { return plan_; }

  /// Begins epoch `epoch` at step `step` and drops what is left of the epoch before. Earlier batches become
  /// invalid. The batches depend on (seed, epoch, step) alone. Throws ConfigError if there is no such step.
  void start(std::int64_t epoch, std::int64_t step = 0);

  /// The next batch; nullptr after the last of the epoch. Valid until `start`, or until `next` has been
  /// called `options.held` more times. Rethrows what the data set threw. Throws ConfigError before any
  /// `start`, and DataError if no batch comes within the deadline.
  const Batch* next();

  /// The batch that the `i`-th call of `next` from here will return, counting from 0; i < options.ahead.
  const Batch* peek(int i);

 private:
  struct Slot {
    Samples samples;
    std::vector<std::uint64_t> indices;
    Batch batch;
    bool filling = false;  // a thread writes into it, perhaps for an epoch that has been dropped
    bool filled = false;   // the thread has read the batch or thrown
    std::exception_ptr failure = {};
  };

  /// Reads one batch of an epoch in its order; gives up between pieces of it when `abandoned()`.
  template <class Abandoned>
  void fill(const Permutation& order, Slot& slot, std::int64_t epoch, std::int64_t step,
            Abandoned abandoned) const;
  Slot& slot(std::int64_t batch) { return slots_[static_cast<std::size_t>(batch) % slots_.size()]; }

  /// Rows that are read between two calls of `abandoned()`.
  static constexpr std::size_t piece = 16;

  /// Waits for the `i`-th batch after those handed out and returns it.
  const Batch* wait_for(std::unique_lock<std::mutex>& lock, int i);

  /// Ends the threads.
  void stop();
  /// A reading thread: claims and reads batches of the latest `start`, one at a time, while there are free
  /// slots.
  void run();
  /// Moves `ready_` past the batches that have been read in the meantime.
  void advance();

  const D& set_;
  LoaderOptions options_;
  BatchPlan plan_;
  Permutation order_{0, 0, 0};  // used by a loader without threads
  std::vector<Slot> slots_;

  std::mutex mutex_;
  std::condition_variable wake_reader_, wake_caller_;
  std::atomic<std::uint64_t> order_number_ = 0;  // written under the mutex, read between pieces without it
  std::int64_t epoch_ = 0, first_ = -1, next_ = 0;
  std::int64_t taken_ = 0, ready_ = 0;  // batches of this epoch: given back, read
  std::int64_t claimed_ = 0;            // batches that threads have begun to read
  int in_use_ = 0;                      // batches handed out
  bool quit_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

template <class D, bool valid>
Loader<D, valid>::Loader(const D& set, const LoaderOptions& options)
    : set_(set), options_(options), plan_(set.size(), options.batch, options.shard, options.allow_short) {
  if (options.prefetch < 0)
    fail<ConfigError>("data: the number of batches read ahead is negative: ", options.prefetch);
  if (options.held < 1 || options.ahead < 0)
    fail<ConfigError>("data: a loader needs held of at least 1 and ahead of at least 0, not ", options.held,
                      " and ", options.ahead);
  if (options.readers < 1)
    fail<ConfigError>("data: a loader needs at least 1 reader thread, not ", options.readers);
  if (!(options.deadline.count() > 0))
    fail<ConfigError>("data: the deadline is ", options.deadline.count(), " s; it must be positive");
  const int readers = options.prefetch > 0 ? options.readers : 0;
  // The caller holds some slots while the others are filled.
  const std::int64_t slots =
      std::int64_t{std::max({options.prefetch, options.ahead, readers})} + options.held;
  constexpr std::int64_t most = 1 << 16;
  if (slots > most)
    fail<ConfigError>("data: a loader keeps at most ", most, " batches, read ahead and held, not ", slots);
  slots_.resize(static_cast<std::size_t>(slots));
  for (Slot& slot : slots_) {
    slot.samples = Samples(set.fields(), static_cast<std::size_t>(plan_.most_rows()), options.memory);
    slot.indices.resize(static_cast<std::size_t>(plan_.most_rows()));
    slot.batch.fields = slot.samples.fields();
    slot.batch.columns = slot.samples.columns();
  }
  try {
    for (int r = 0; r < readers; ++r) threads_.emplace_back([this] { run(); });
  } catch (const std::exception& error) {
    const std::size_t started = threads_.size();
    stop();
    fail("data: a loader could start only ", started, " of ", readers, " reader threads: ", error.what());
  }
}

template <class D, bool valid>
void Loader<D, valid>::stop() {
  {
    std::unique_lock lock(mutex_);
    quit_ = true;
    ++order_number_;
    wake_reader_.notify_all();
    // A thread that has stopped reading a dropped batch notifies.
    const auto at_rest = [&] {
      return std::none_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.filling; });
    };
    if (!wake_reader_.wait_until(lock, Deadline(options_.deadline).end(), at_rest)) {
      std::fprintf(
          stderr,
          "data: the data set is still being read %g s after its loader was to end; the process ends\n",
          options_.deadline.count());
      end_stuck_process();
    }
  }
  for (std::thread& thread : threads_) thread.join();
}

template <class D, bool valid>
void Loader<D, valid>::start(std::int64_t epoch, std::int64_t step) {
  if (epoch < 0 || step < 0 || step > plan_.steps())
    fail<ConfigError>("data: epoch ", epoch, " cannot start at step ", step, ", expected 0 to ",
                      plan_.steps());
  {
    std::lock_guard lock(mutex_);
    ++order_number_;  // readers drop the batches that they are reading
    epoch_ = epoch;
    first_ = next_ = step;
    taken_ = ready_ = claimed_ = 0;
    in_use_ = 0;
    failure_ = nullptr;
  }
  wake_reader_.notify_all();
  if (threads_.empty()) order_ = order_of(plan_, options_.seed, epoch);
}

template <class D, bool valid>
const Batch* Loader<D, valid>::next() {
  std::unique_lock lock(mutex_);
  if (in_use_ == options_.held) {
    --in_use_;
    ++taken_;
    wake_reader_.notify_all();
  }
  const Batch* batch = wait_for(lock, 0);
  if (batch == nullptr) return nullptr;
  ++in_use_;
  ++next_;
  return batch;
}

template <class D, bool valid>
const Batch* Loader<D, valid>::peek(int i) {
  if (i < 0 || i >= options_.ahead)
    fail<ConfigError>("data: batch ", i, " ahead was asked for, but the loader looks ahead at ",
                      options_.ahead, " batches");
  std::unique_lock lock(mutex_);
  return wait_for(lock, i);
}

template <class D, bool valid>
const Batch* Loader<D, valid>::wait_for(std::unique_lock<std::mutex>& lock, int i) {
  const std::int64_t step = next_ + i, at = taken_ + in_use_ + i;
  if (first_ < 0) fail<ConfigError>("data: a loader needs start(epoch) before its first batch");
  if (step >= plan_.steps()) return nullptr;
  if (threads_.empty()) {
    for (; ready_ <= at; ++ready_) fill(order_, slot(ready_), epoch_, first_ + ready_, [] { return false; });
  } else {
    const auto arrived = [&] { return ready_ > at || failure_ != nullptr; };
    if (!wake_caller_.wait_until(lock, Deadline(options_.deadline).end(), arrived))
      fail<DataError>("data: the data set has not delivered step ", step, " of epoch ", epoch_, " within ",
                      options_.deadline.count(), " seconds");
    if (ready_ <= at) std::rethrow_exception(failure_);
  }
  return &slot(at).batch;
}

template <class D, bool valid>
template <class Abandoned>
void Loader<D, valid>::fill(const Permutation& order, Slot& slot, std::int64_t epoch, std::int64_t step,
                            Abandoned abandoned) const {
  const Range rows = plan_.rows(step);
  const auto all = std::span(slot.indices).first(static_cast<std::size_t>(rows.size()));
  const auto first = static_cast<std::uint64_t>(plan_.places(step).begin);
  if (options_.shuffle)
    order.read(first, all);
  else
    std::iota(all.begin(), all.end(), first);
  for (std::size_t i = 0; i < all.size(); i += piece) {
    if (abandoned()) return;
    data::fill(set_, Rows(slot.samples.fields(), slot.samples.columns().data(), i,
                          all.subspan(i, std::min(piece, all.size() - i)),
                          rows.begin + static_cast<std::int64_t>(i), {options_.seed, epoch}));
  }
  slot.batch.epoch = epoch;
  slot.batch.step = step;
  slot.batch.rows = rows.size();
  slot.batch.global_rows = plan_.global(step).size();
  slot.batch.indices = all;
}

template <class D, bool valid>
void Loader<D, valid>::run() {
  std::uint64_t at_work_on = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_reader_.wait(lock, [&] { return quit_ || order_number_ != at_work_on; });
    if (quit_) return;
    at_work_on = order_number_;
    const std::int64_t epoch = epoch_, first = first_;
    const auto abandoned = [&] { return order_number_.load(std::memory_order_relaxed) != at_work_on; };
    const auto over = [&] { return abandoned() || first + claimed_ >= plan_.steps() || failure_ != nullptr; };
    const auto free = [&] {
      return claimed_ - taken_ < static_cast<std::int64_t>(slots_.size()) && !slot(claimed_).filling;
    };

    lock.unlock();
    const Permutation order = order_of(plan_, options_.seed, epoch);
    lock.lock();
    while (true) {
      wake_reader_.wait(lock, [&] { return over() || free(); });
      if (over()) break;
      const std::int64_t step = first + claimed_;
      Slot& mine = slot(claimed_++);
      mine.filling = true;
      mine.filled = false;
      mine.failure = nullptr;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        fill(order, mine, epoch, step, abandoned);
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      mine.filling = false;
      if (abandoned()) {
        wake_reader_.notify_all();  // for a thread that waits for this slot
        break;
      }
      mine.filled = true;
      mine.failure = thrown;
      advance();
    }
  }
}

template <class D, bool valid>
void Loader<D, valid>::advance() {
  while (ready_ < claimed_ && slot(ready_).filled && failure_ == nullptr) {
    if (slot(ready_).failure)
      failure_ = slot(ready_).failure;
    else
      ++ready_;
  }
  wake_caller_.notify_one();
  if (failure_ != nullptr) wake_reader_.notify_all();
}

template <class D>
Loader(const D&, LoaderOptions) -> Loader<D>;

/// The Loader of a type that is not a Dataset: accepts everything, so that the error of `require_dataset` is
/// the only one.
template <class D>
class Loader<D, false> {
 public:
  Loader(const D&, const LoaderOptions&) {}
  std::int64_t steps_per_epoch() const { return 0; }
  void start(std::int64_t, std::int64_t = 0) {}
  const Batch* next() { return nullptr; }
  const Batch* peek(int) { return nullptr; }
};

CONVOY_INSTANTIATE(class Loader<DatasetRef>);

}  // namespace convoy::data
