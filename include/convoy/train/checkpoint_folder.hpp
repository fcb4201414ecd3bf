// Checkpoint folder: writes the checkpoints of a fit, each as a folder that is complete or absent, by a
// thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string_view>
#include <thread>
#include <vector>

#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/file.hpp>
#include <convoy/core/name.hpp>
#include <convoy/train/snapshot.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#if defined(__linux__)
#include <unistd.h>
#endif

#include <convoy/core/error.hpp>
#include <convoy/io/error.hpp>
#endif

namespace convoy::train {

struct CheckpointOptions {
  std::filesystem::path directory;  ///< must be visible to all ranks
  std::int64_t every = 0;           ///< steps between checkpoints; 0: one after each epoch's last step
  int keep = 2;                     ///< how many of the newest checkpoints to keep
  bool resume = false;              ///< resume from the newest checkpoint, if any
  Seconds deadline{300};            ///< how long rank 0 waits for the other ranks' files of a checkpoint; a
                                    ///< tenth of this when an exception ends the fit, perhaps on all ranks
};

/// The folder of checkpoints. Each is a folder `step-<n>`, which is complete if it exists:
///
///     model.safetensors     parameters and running statistics by their PyTorch names
///     training.safetensors  the optimizer's state, counters, and the position of the fit; as metadata, the
///                           options of the trainer by their names, `optimizer.lr` and so on
///     rank-<r>.safetensors  rank r's part of the exchange's state, and its own running statistics
///
/// A background thread writes. Every rank writes its own file into `step-<n>.partial`; rank 0 renames the
/// folder when all files are there. If the optimizer's state is divided among ranks, each also writes its
/// part, `rank-<r>.shard.safetensors`, from which rank 0 makes its file and which it then removes. A rank
/// that cannot write its files leaves an empty `rank-<r>.failed` there, if it can, for which rank 0 gives up.
class CheckpointFolder {
 public:
  /// Throws ConfigError for invalid options.
  CheckpointFolder(CheckpointOptions options, int rank, int world);
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;
  /// Waits until everything is written. While an exception unwinds, other ranks may be dead, so rank 0 then
  /// waits for their files for at most a tenth of the deadline.
  ~CheckpointFolder();

  const CheckpointOptions& options() const { return options_; }
  int rank() const { return rank_; }
  int world() const { return world_; }

  /// The step of the newest checkpoint, or -1. Throws CheckpointError if the folder exists but cannot be
  /// read.
  std::int64_t newest() const;
  /// Removes the partial folders that an interrupted run has left, or a checkpoint that could not be written.
  /// Only rank 0 may call it, while no rank writes, and only in the run to which the folder belongs.
  void remove_partial() const;
  /// Creates the folder and checks that this rank can write there, so that a folder that cannot be used is
  /// reported before the first step. Throws CheckpointError.
  void make() const;
  /// Locks the folder, once, so that no other run writes there. Throws CheckpointError if another run, or
  /// another object of this one, has locked it.
  void lock();
  void unlock() { lock_.release(); }
  /// Leaves a mark in the folder, by which the other ranks tell whether they see the folder of rank 0.
  /// Returns the mark's number, at least 0.
  std::int64_t leave_mark() const;
  /// Whether this rank sees the mark, also a few seconds late, as on network filesystems.
  bool sees_mark(std::int64_t number) const;
  void remove_mark(std::int64_t number) const;
  std::filesystem::path of(std::int64_t step) const { return options_.directory / concat("step-", step); }

  /// An empty snapshot of a step, in the memory of the previous one, for whose writing it waits. Throws the
  /// error that prevented that.
  Snapshot& snapshot(std::int64_t step);
  /// Hands the snapshot to the thread. Throws CheckpointError if the system cannot start the thread.
  void write();
  /// Waits until everything is written. Throws the error that prevented it.
  void wait();
  /// Whether everything is written, or could not be, within the limit.
  bool ends_within(Seconds limit) const;

 private:
  std::filesystem::path file_of(const std::filesystem::path& folder, int rank) const {
    return folder / concat("rank-", rank, ".safetensors");
  }
  std::filesystem::path shard_of(const std::filesystem::path& folder, int rank) const {
    return folder / concat("rank-", rank, ".shard.safetensors");
  }
  std::filesystem::path failure_of(const std::filesystem::path& folder, int rank) const {
    return folder / concat("rank-", rank, ".failed");
  }
  std::filesystem::path mark(std::int64_t number) const {
    return options_.directory / concat("rank-0-is-here-", number);
  }
  void store();
  /// Writes this rank's files.
  void store_own(const std::filesystem::path& partial) const;
  /// On rank 0: returns when the files of all ranks are there. Throws CheckpointError after the deadline, or
  /// if a rank could not write its files.
  void await_others(const std::filesystem::path& partial) const;
  /// On rank 0: writes the state that all ranks see, of which other ranks may hold parts.
  void store_training(const std::filesystem::path& partial);
  /// Removes checkpoints older than those to keep.
  void remove_old() const;
  static constexpr std::string_view partial_suffix = ".partial";
  /// The numbers of the folders that are named `step-<number><suffix>`, in order.
  std::vector<std::int64_t> steps(std::string_view suffix = {}) const;

  CheckpointOptions options_;
  int rank_, world_;
  FileLock lock_;
  Snapshot snapshot_;  // which the thread writes
  std::atomic<bool> writes_ = false, unwinds_ = false;
  std::thread thread_;
  std::exception_ptr failure_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION CheckpointFolder::CheckpointFolder(CheckpointOptions options, int rank, int world)
    : options_(std::move(options)), rank_(rank), world_(world) {
  if (options_.directory.empty()) fail<ConfigError>("checkpoint: no directory is given");
  if (options_.every < 0)
    fail<ConfigError>("checkpoint: every (steps between checkpoints) must be at least 0, not ",
                      options_.every);
  if (options_.keep < 1) fail<ConfigError>("checkpoint: keep must be at least 1, not ", options_.keep);
  if (!(options_.deadline.count() > 0))
    fail<ConfigError>("checkpoint: the deadline is ", options_.deadline.count(), " s; it must be positive");
}

CONVOY_FUNCTION CheckpointFolder::~CheckpointFolder() {
  unwinds_ = std::uncaught_exceptions() > 0;
  if (thread_.joinable()) thread_.join();
}

CONVOY_FUNCTION std::vector<std::int64_t> CheckpointFolder::steps(std::string_view suffix) const {
  std::vector<std::int64_t> all;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(options_.directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::int64_t step = 0;
    if (!name.starts_with("step-") || name.starts_with("step--")) continue;
    const char* const end_of_name = name.data() + name.size();
    const auto [rest, bad] = std::from_chars(name.data() + 5, end_of_name, step);
    if (bad == std::errc() && std::string_view(rest, end_of_name) == suffix) all.push_back(step);
  }
  if (error && error != std::errc::no_such_file_or_directory)
    fail<CheckpointError>(options_.directory.string(), " cannot be read: ", error.message());
  std::sort(all.begin(), all.end());
  return all;
}

CONVOY_FUNCTION std::int64_t CheckpointFolder::newest() const {
  const auto all = steps();
  return all.empty() ? -1 : all.back();
}

CONVOY_FUNCTION void CheckpointFolder::remove_partial() const {
  std::error_code error;
  for (const std::int64_t step : steps(partial_suffix))
    std::filesystem::remove_all(of(step).string().append(partial_suffix), error);
}

CONVOY_FUNCTION void CheckpointFolder::make() const {
  std::error_code error;
  std::filesystem::create_directories(options_.directory, error);
  if (error) fail<CheckpointError>(options_.directory.string(), " cannot be made: ", error.message());
  as_checkpoint_error([&] { expect_writable(file_of(options_.directory, rank_)); });
}

CONVOY_FUNCTION void CheckpointFolder::lock() {
  const std::filesystem::path file = options_.directory / ".lock";
  bool locked = false;
  as_checkpoint_error([&] { locked = lock_.acquire(file); });
  if (!locked)
    fail<CheckpointError>("checkpoint: another run, or another Checkpoints of this one, has locked ",
                          file.string(), " and writes to this folder; end it, or choose another folder");
}

CONVOY_FUNCTION std::int64_t CheckpointFolder::leave_mark() const {
  // At random, because a filesystem may remember that a file of a former name was not there.
  const auto number = static_cast<std::int64_t>(std::random_device{}() & 0x7fffffffu);
  as_checkpoint_error([&] { write_file(mark(number), ""); });
  return number;
}

CONVOY_FUNCTION bool CheckpointFolder::sees_mark(std::int64_t number) const {
  const Deadline deadline(std::min(options_.deadline, Seconds(5)));
  std::error_code error;
  while (!std::filesystem::exists(mark(number), error)) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

CONVOY_FUNCTION void CheckpointFolder::remove_mark(std::int64_t number) const {
  std::error_code error;
  std::filesystem::remove(mark(number), error);
}

CONVOY_FUNCTION void CheckpointFolder::wait() {
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

CONVOY_FUNCTION bool CheckpointFolder::ends_within(Seconds limit) const {
  const Deadline deadline(limit);
  while (writes_ && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return !writes_;
}

CONVOY_FUNCTION Snapshot& CheckpointFolder::snapshot(std::int64_t step) {
  wait();
  snapshot_.clear();
  snapshot_.step = step;
  snapshot_.all = rank_ == 0;
  return snapshot_;
}

CONVOY_FUNCTION void CheckpointFolder::write() try {
  writes_ = true;
  thread_ = std::thread([this] {
#if defined(__linux__)
    // Linux lowers the priority of this thread alone. Where all processors compute, the writing is then
    // spread over several steps.
    static_cast<void>(::nice(10));
#endif
    try {
      store();
    } catch (...) {
      failure_ = std::current_exception();
    }
    writes_ = false;
  });
} catch (const std::system_error& error) {
  writes_ = false;
  fail<CheckpointError>(of(snapshot_.step).string(),
                        " cannot be written: the system cannot start a thread: ", error.what());
}

CONVOY_FUNCTION void CheckpointFolder::store() {
  const std::filesystem::path complete = of(snapshot_.step),
                              partial = complete.string().append(partial_suffix);
  std::error_code error;
  std::filesystem::create_directories(partial, error);
  if (error) fail<CheckpointError>(partial.string(), " cannot be made: ", error.message());
  store_own(partial);
  if (rank_ != 0) return;
  snapshot_.model.write(partial / "model.safetensors");
  await_others(partial);
  store_training(partial);
  sync_folder(partial);
  as_checkpoint_error([&] { rename_folder(partial, complete); });
  remove_old();
}

CONVOY_FUNCTION void CheckpointFolder::store_own(const std::filesystem::path& partial) const try {
  if (rank_ != 0 && snapshot_.divided) snapshot_.own_shard.write(shard_of(partial, rank_));
  snapshot_.own.write(file_of(partial, rank_));
} catch (const CheckpointError&) {
  try {
    write_file(failure_of(partial, rank_), "");
  } catch (const Error&) {
    // Rank 0 then waits until its deadline.
  }
  throw;
}

CONVOY_FUNCTION void CheckpointFolder::await_others(const std::filesystem::path& partial) const {
  const Deadline deadline(options_.deadline);
  std::optional<Deadline> last;
  std::error_code error;
  const auto await = [&](int r, const std::filesystem::path& file) {
    while (!std::filesystem::exists(file, error)) {
      if (std::filesystem::exists(failure_of(partial, r), error))
        fail<CheckpointError>("checkpoint: rank ", r, " could not write ", file.string());
      if (unwinds_ && !last) last.emplace(options_.deadline / 10);
      if (deadline.expired() || (last && last->expired()))
        fail<CheckpointError>("checkpoint: ", file.string(), " has not been written by rank ", r, " within ",
                              options_.deadline.count(),
                              " seconds; the folder must be one that all ranks see");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  for (int r = 1; r < world_; ++r) {
    if (snapshot_.divided) await(r, shard_of(partial, r));
    await(r, file_of(partial, r));
  }
}

CONVOY_FUNCTION void CheckpointFolder::store_training(const std::filesystem::path& partial) {
  if (snapshot_.divided)
    for (int r = 1; r < world_; ++r) snapshot_.shards.add(shard_of(partial, r));
  snapshot_.training.write(partial / "training.safetensors");
  snapshot_.shards.clear();
  if (!snapshot_.divided) return;
  std::error_code error;
  for (int r = 1; r < world_; ++r) std::filesystem::remove(shard_of(partial, r), error);
}

CONVOY_FUNCTION void CheckpointFolder::remove_old() const {
  const auto all = steps();
  std::error_code error;
  for (std::size_t i = 0; i + static_cast<std::size_t>(options_.keep) < all.size(); ++i) {
    const std::filesystem::path old = of(all[i]), partly = old.string().append(partial_suffix);
    std::filesystem::rename(old, partly,
                            error);  // a run that ends here leaves no checkpoint that lacks files
    std::filesystem::remove_all(partly, error);
  }
}
#endif

}  // namespace convoy::train
