// Checkpoints: the state of a fit in a folder. A resumed fit continues with bitwise equal results.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/file.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/keeper.hpp>
#include <convoy/train/snapshot.hpp>
#include <convoy/train/state.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <charconv>
#include <chrono>
#include <random>
#include <system_error>
#if defined(__linux__)
#include <unistd.h>
#endif
#endif

namespace convoy::train {

struct CheckpointOptions {
  std::filesystem::path directory;  ///< must be visible to all ranks
  std::int64_t every = 0;           ///< steps between checkpoints; 0: one after each epoch's last step
  int keep = 2;                     ///< how many of the newest checkpoints to keep
  bool resume = false;              ///< resume from the newest checkpoint, if any
  Seconds deadline{300};            ///< how long rank 0 waits for the other ranks' files of a checkpoint
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
  ~CheckpointFolder();

  const CheckpointOptions& options() const { return options_; }
  int rank() const { return rank_; }
  int world() const { return world_; }

  /// The step of the newest checkpoint, or -1. Throws CheckpointError if the folder exists but cannot be
  /// read.
  std::int64_t newest() const;
  /// Removes the partial folders that an interrupted run has left. Only rank 0 may call it, before any rank
  /// writes, and only in the run to which the folder belongs.
  void remove_partial() const;
  /// Creates the folder and checks that this rank can write there, so that a folder that cannot be used is
  /// reported before the first step. Throws CheckpointError.
  void make() const;
  /// Locks the folder, once, so that no other run writes there. Throws CheckpointError if another run has
  /// locked it.
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
  std::thread thread_;
  std::exception_ptr failure_;
};

/// An option whose value differs from that of the run that wrote a checkpoint; values are texts.
struct ChangedOption {
  std::string name;  ///< in the configuration, such as `optimizer.lr`
  std::string was, is;
};

/// A state visitor that restores state from a checkpoint.
class Restore {
 public:
  /// For a trainer with `workers` workers. Throws CheckpointError if files of the checkpoint are missing or
  /// damaged.
  Restore(const CheckpointFolder& folder, std::int64_t step, int workers);
  /// Compares an option of the trainer with that of the run that wrote the checkpoint, and adds it to
  /// `changed` if they differ. Throws CheckpointError for another optimizer, and for an option by which the
  /// rows of an epoch would come in another order.
  void compare(std::string_view name, const std::string& text, std::vector<ChangedOption>& changed) const;
  void tensor(std::string_view name, const Shape& shape, std::span<float> values);
  void counter(std::string_view name, std::int64_t& number);

 private:
  // In a world of another size, ranks start from the averaged statistics. The exchange state of each rank has
  // no meaning there.
  template <class Read>
  void own(std::string_view name, Read&& read) const {
    if (own_)
      read(*own_);
    else if (name.find(".exchange.") != name.npos)
      fail<CheckpointError>(training_.path().string(), " was written by ", training_.read_number("world"),
                            " ranks, of which ", training_.read_number("workers"),
                            " are workers; the state of a rank's exchange (", name,
                            ") can only be restored with the same numbers of both");
  }

  io::Safetensors model_, training_;
  std::optional<io::Safetensors> own_;  // none if the number of ranks or workers differs
};

/// A state visitor that reads what `restore` would restore and changes nothing. An error ends no rank's
/// visit, in which the other ranks take part; `expect_whole` throws it.
class Rehearsal {
 public:
  explicit Rehearsal(Restore& restore) : restore_(restore) {}
  void tensor(std::string_view name, const Shape& shape, std::span<float> values);
  void counter(std::string_view name, std::int64_t& number);
  /// Throws the error of the first tensor or counter that could not be read.
  void expect_whole() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  Restore& restore_;
  std::vector<float> values_;  // of one tensor
  std::exception_ptr failure_;
};

/// Keeps the state of a trainer's fits in a folder, periodically and at the end of each fit:
///
///     train::Checkpoints checkpoints(trainer, {.directory = "runs/7", .every = 500, .resume = true});
///     trainer.fit(set, {.epochs = 10, .keeper = &checkpoints});
///
/// A resumed fit makes the steps that the interrupted one would have made, with the same bits, if its options
/// are the same. An epoch's end is kept before the epoch is evaluated, so that a fit that resumes from there
/// first evaluates that epoch, once more if the interrupted fit had. Other options take effect, and `changed`
/// lists them; another optimizer is refused, and so are another `seed`, `unsharded` or size of the training
/// set, by which an epoch's rows would come in another order. In a world of another size, or with other
/// servers, the fit continues with the step that contains the next row, so that it may train on rows of up to
/// one step again; it is refused if the exchange has state per rank (error feedback). All ranks, including
/// servers, construct a Checkpoints together. Steps of a user's loop outside of `fit` do not trigger
/// checkpoints.
///
/// If servers make the updates, they are dismissed for a checkpoint and serve again after it. Asynchronous
/// servers have then applied all gradients, and all workers have the same parameters: such a checkpoint makes
/// workers wait until the slowest has made as many steps. It cannot keep the order in which gradients would
/// have arrived, on which the bits of such a fit depend anyway.
template <class Trainer>
class Checkpoints final : public Keeper {
 public:
  /// Throws ConfigError for invalid options, or if ranks differ in `every` or `resume`.
  Checkpoints(Trainer& trainer, CheckpointOptions options)
      : trainer_(trainer),
        copy_(trainer.state_copy()),
        folder_(std::move(options), trainer.rank(), trainer.world()) {
    expect_same(trainer.comm(), comm::Fingerprint()
                                    .add("checkpoint.every", folder_.options().every)
                                    .add("checkpoint.resume", folder_.options().resume));
  }

  /// Throws on all ranks if one cannot use the folder: that rank throws CheckpointError, the others a
  /// ConfigError that repeats its reason. The same if another run writes to the folder, which rank 0 locks
  /// from here to `finish`.
  FitPosition resume() override try {
    // For what a fit that an exception ended left to write.
    all_or_none(trainer_.comm(), "checkpoint", [&] { folder_.wait(); });
    if (find_newest() && !folder_.options().resume)
      fail<ConfigError>("checkpoint: ", folder_.of(kept_).string(),
                        " already exists: resume from it, or choose another folder");
    all_or_none(trainer_.comm(), "checkpoint", [&] {
      folder_.make();
      if (trainer_.rank() != 0) return;
      folder_.lock();
      folder_.remove_partial();
    });
    all_or_none(trainer_.comm(), "checkpoint", [&] { copy_.prepare(); });
    expect_shared();
    return restore().value_or(FitPosition{});
  } catch (...) {
    folder_.unlock();
    throw;
  }

  /// Restores the trainer to the newest checkpoint, if any, and returns its position. Only reads: the folder
  /// may be that of a run that goes on. If a rank cannot restore all of its state, every rank throws, and no
  /// rank has changed any: that rank throws CheckpointError, the others a ConfigError that repeats its
  /// reason.
  std::optional<FitPosition> restore() {
    if (!find_newest()) return std::nullopt;
    FitPosition position;
    std::optional<Restore> restore;
    all_or_none(trainer_.comm(), "checkpoint", [&] {
      restore.emplace(folder_, kept_, trainer_.workers());
      changed_.clear();
      trainer_.visit_options(
          [&](std::string_view name, const std::string& text) { restore->compare(name, text, changed_); });
    });
    Rehearsal rehearsal(*restore);
    trainer_.visit_state(rehearsal, Visit::read);
    visit(rehearsal, position);
    all_or_none(trainer_.comm(), "checkpoint", [&] { rehearsal.expect_whole(); });
    trainer_.visit_state(*restore, Visit::write);
    visit(*restore, position);
    return position;
  }

  /// The trainer's options that differ from those of the run that wrote the checkpoint from which the fit
  /// has resumed.
  const std::vector<ChangedOption>& changed() const { return changed_; }

  /// The folder of the newest checkpoint, for example to load its weights alone; empty if there is none. All
  /// ranks call it together. Throws CheckpointError if the folder cannot be read.
  std::filesystem::path newest() { return find_newest() ? folder_.of(kept_) : std::filesystem::path(); }

  bool due(std::int64_t steps_done, bool epoch_ends) const override {
    const std::int64_t every = folder_.options().every;
    return every == 0 ? epoch_ends : steps_done % every == 0;
  }

  void keep(const FitPosition& position) override {
    if (trainer_.steps_done() == kept_) return;
    FitPosition at = position;
    Snapshot& snapshot = folder_.snapshot(trainer_.steps_done());
    snapshot.divided = copy_.divided();
    copy_.take(snapshot);
    visit(snapshot, at);
    std::int64_t world = trainer_.world(), workers = trainer_.workers();
    snapshot.counter("world", world);
    snapshot.counter("workers", workers);
    snapshot.model.describe("format", "pt");
    trainer_.visit_options([&](std::string_view name, const std::string& text) {
      snapshot.training.describe(std::string(name), text);
    });
    folder_.write();
    kept_ = trainer_.steps_done();
  }

  void finish() override {
    folder_.wait();
    folder_.unlock();
  }

 private:
  // Before the first step: a rank that writes to a folder of its own, as on the disk of its node, would be
  // found out only when rank 0 no longer waits for that rank's file of the first checkpoint.
  void expect_shared() {
    if (trainer_.world() == 1) return;
    const int rank = trainer_.rank();
    std::int64_t number = -1;
    all_or_none(trainer_.comm(), "checkpoint", [&] {
      if (rank == 0) number = folder_.leave_mark();
    });
    number = common_number(trainer_.comm(), number);
    double blind = folder_.sees_mark(number) ? -1 : rank;
    trainer_.comm().all_reduce_with_servers(&blind, 1, comm::reduction<double>(comm::max));
    if (rank == 0) folder_.remove_mark(number);
    if (blind >= 0)
      fail<CheckpointError>("checkpoint: rank ", blind, " does not see the folder ",
                            folder_.options().directory.string(),
                            " of rank 0; the folder must be one that all ranks see");
  }
  bool find_newest() {
    std::int64_t newest = -1;
    all_or_none(trainer_.comm(), "checkpoint", [&] {
      if (trainer_.rank() == 0) newest = folder_.newest();
    });
    kept_ = common_number(trainer_.comm(), newest);
    return kept_ >= 0;
  }

  // A floating-point member is stored as the bits of an f64.
  template <StateVisitor V>
  static void visit(V& visitor, FitPosition& position) {
    FitPosition::fields(position, [&](std::string_view name, auto& member) {
      auto number = std::bit_cast<std::int64_t>(member);
      visitor.counter(concat("fit.", name), number);
      member = std::bit_cast<std::remove_reference_t<decltype(member)>>(number);
    });
  }

  Trainer& trainer_;
  typename Trainer::StateCopy copy_;  // which the folder's thread reads
  CheckpointFolder folder_;
  std::int64_t kept_ = -1;
  std::vector<ChangedOption> changed_;
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
    fail<CheckpointError>("checkpoint: another run, which has locked ", file.string(),
                          ", writes to this folder; end that run, or choose another folder");
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

CONVOY_FUNCTION Snapshot& CheckpointFolder::snapshot(std::int64_t step) {
  wait();
  snapshot_.clear();
  snapshot_.step = step;
  snapshot_.all = rank_ == 0;
  return snapshot_;
}

CONVOY_FUNCTION void CheckpointFolder::write() try {
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
  });
} catch (const std::system_error& error) {
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
  std::error_code error;
  const auto await = [&](int r, const std::filesystem::path& file) {
    while (!std::filesystem::exists(file, error)) {
      if (std::filesystem::exists(failure_of(partial, r), error))
        fail<CheckpointError>("checkpoint: rank ", r, " could not write ", file.string());
      if (deadline.expired())
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
    for (int r = 1; r < world_; ++r) snapshot_.shards.open(shard_of(partial, r));
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

CONVOY_FUNCTION Restore::Restore(const CheckpointFolder& folder, std::int64_t step, int workers)
    : model_(folder.of(step) / "model.safetensors"), training_(folder.of(step) / "training.safetensors") {
  if (training_.read_number("world") == folder.world() && training_.read_number("workers") == workers)
    own_.emplace(folder.of(step) / concat("rank-", folder.rank(), ".safetensors"));
}

CONVOY_FUNCTION void Restore::compare(std::string_view name, const std::string& text,
                                      std::vector<ChangedOption>& changed) const {
  const auto& metadata = training_.metadata();
  const auto written = metadata.find(name);
  if (written == metadata.end() || written->second == text) return;
  const std::string& was = written->second;
  if (name == "optimizer")
    fail<CheckpointError>(training_.path().parent_path().string(), " was written with the optimizer ", was,
                          ", but this trainer has ", text);
  if (name == "seed" || name == "unsharded")
    fail<CheckpointError>(training_.path().parent_path().string(), " was written with ", name, ' ', was,
                          ", but this trainer has ", text,
                          ", by which the rows of an epoch come in another order; resume with ", name, ' ',
                          was);
  changed.push_back({std::string(name), was, text});
}

CONVOY_FUNCTION void Restore::tensor(std::string_view name, const Shape& shape, std::span<float> values) {
  if (name.starts_with("ranks."))
    own(name, [&](const io::Safetensors& file) { file.read(name, shape, values); });
  else if (const std::string_view weights = name_of_weights(name); !weights.empty())
    model_.read(weights, shape, values);
  else
    training_.read(name, shape, values);
}

CONVOY_FUNCTION void Restore::counter(std::string_view name, std::int64_t& number) {
  if (name.starts_with("ranks."))
    own(name, [&](const io::Safetensors& file) { number = file.read_number(name); });
  else if (name.starts_with("exchange.") && training_.find(name) == nullptr)
    fail<CheckpointError>(training_.path().string(), " has no ", name,
                          ", which this trainer's exchange needs; resume with the exchange that the "
                          "checkpoint was written with");
  else
    number = training_.read_number(name);
}

CONVOY_FUNCTION void Rehearsal::tensor(std::string_view name, const Shape& shape, std::span<float> values) {
  if (failure_) return;
  try {
    values_.resize(values.size());
    restore_.tensor(name, shape, values_);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

CONVOY_FUNCTION void Rehearsal::counter(std::string_view name, std::int64_t& number) {
  if (failure_) return;
  try {
    std::int64_t read = number;
    restore_.counter(name, read);
  } catch (...) {
    failure_ = std::current_exception();
  }
}
#endif

}  // namespace convoy::train
