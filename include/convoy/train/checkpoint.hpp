// Checkpoints: the state of a fit in a folder. A resumed fit continues with bitwise equal results.
#pragma once

#include <bit>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/core/call.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/finite.hpp>
#include <convoy/io/safetensors.hpp>
#include <convoy/train/checkpoint_folder.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/keeper.hpp>
#include <convoy/train/snapshot.hpp>
#include <convoy/train/state.hpp>

namespace convoy::train {

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
  /// Throws CheckpointError for a number that no training has, with which a fit would read outside of its
  /// arrays or report nonsense, as `real` does for NaN.
  void counter(std::string_view name, std::int64_t& number);
  void real(std::string_view name, double& number);

 private:
  static bool is_of_exchange(std::string_view name) {
    return name.starts_with("exchange.") ||
           (name.starts_with("ranks.") && name.find(".exchange.") != name.npos);
  }
  // The file that state other than weights is in. Null in a world of another size for the state of one rank:
  // ranks start from the averaged statistics there. Throws CheckpointError for state of the exchange that the
  // file lacks or that has no meaning in this world.
  const io::Safetensors* file_of(std::string_view name) const;

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
  void real(std::string_view name, double& number);
  /// Throws the error of the first tensor or number that could not be read.
  void expect_whole() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // Keeps the first error.
  void attempt(Call<void()> read);

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
  /// ConfigError that repeats its reason. The same if another run, or another Checkpoints of this one, writes
  /// to the folder, which rank 0 locks from here to `finish` or, if an exception ends the fit, to the end of
  /// this object.
  FitPosition resume(std::int64_t samples = 0) override {
    open([&](std::int64_t newest) {
      if (newest >= 0 && !folder_.options().resume) exists(newest);
    });
    try {
      return restore(samples).value_or(FitPosition{});
    } catch (...) {
      close();
      throw;
    }
  }

  /// Restores the trainer to the newest checkpoint, if any, and returns its position. Only reads: the folder
  /// may be that of a run that goes on. If a rank cannot restore all of its state, every rank throws, and no
  /// rank has changed any: that rank throws CheckpointError, the others a ConfigError that repeats its
  /// reason. The same with a ConfigError if the fit had a training set of another size than `samples`, unless
  /// that is 0.
  std::optional<FitPosition> restore(std::int64_t samples = 0) {
    const std::int64_t newest = find_newest();
    if (newest < 0) return std::nullopt;
    FitPosition position;
    std::optional<Restore> restore;
    all_or_none(trainer_.comm(), "checkpoint", [&] {
      restore.emplace(folder_, newest, trainer_.workers());
      changed_.clear();
      trainer_.visit_options(
          [&](std::string_view name, const std::string& text) { restore->compare(name, text, changed_); });
    });
    Rehearsal rehearsal(*restore);
    trainer_.visit_state(rehearsal, Visit::read);
    all_or_none(trainer_.comm(), "checkpoint", [&] {
      rehearsal.expect_whole();
      visit(*restore, position);
      position.expect_samples(samples);
    });
    trainer_.visit_state(*restore, Visit::write);
    kept_ = newest;
    followed_ = true;
    return position;
  }

  /// The trainer's options that differ from those of the run that wrote the checkpoint from which the fit
  /// has resumed.
  const std::vector<ChangedOption>& changed() const { return changed_; }

  /// The folder of the newest checkpoint, for example to load its weights alone; empty if there is none. All
  /// ranks call it together. Throws CheckpointError if the folder cannot be read.
  std::filesystem::path newest() {
    const std::int64_t newest = find_newest();
    return newest >= 0 ? folder_.of(newest) : std::filesystem::path();
  }

  bool due(std::int64_t steps_done, bool epoch_ends) const override {
    const std::int64_t every = folder_.options().every;
    return every == 0 ? epoch_ends : steps_done % every == 0;
  }

  /// A step that is kept already, or from which the trainer was restored, is not kept again, also at another
  /// position. Begins with what `resume` does before it restores, unless that has been done since the last
  /// `finish`. Throws ConfigError if the folder has checkpoints and this object has neither kept nor restored
  /// one: the steps of a loop that did not resume would stand beside those of another training.
  void keep(const FitPosition& position) override {
    if (trainer_.steps_done() == kept_) return;
    if (open_)
      await_written();
    else
      open([&](std::int64_t newest) {
        if (newest >= 0 && !followed_) exists(newest);
      });
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
    followed_ = true;
  }

  void finish() override {
    await_written();
    close();
  }

 private:
  [[noreturn]] void exists(std::int64_t newest) const {
    const std::string name = folder_.of(newest).string();
    if (!folder_.options().resume)
      fail<ConfigError>("checkpoint: ", name, " already exists: resume from it, or choose another folder");
    fail<ConfigError>("checkpoint: ", name,
                      " already exists: call resume before the first step, or choose another folder");
  }
  // Makes the folder this run's own, until `close`; not if it throws, or if `check` does, which is called
  // with the newest checkpoint there, or -1.
  template <class Check>
  void open(Check&& check) try {
    await_written();  // for what a fit that an exception ended left to write
    check(find_newest());
    all_or_none(trainer_.comm(), "checkpoint", [&] {
      folder_.make();
      if (trainer_.rank() != 0) return;
      folder_.lock();
      folder_.remove_partial();
    });
    all_or_none(trainer_.comm(), "checkpoint", [&] { copy_.prepare(); });
    expect_shared();
    open_ = true;
  } catch (...) {
    close();
    throw;
  }
  // Waits until all ranks have written their parts of the last checkpoint. Meanwhile the ranks exchange a
  // number again and again, because a slow disk must not make a rank miss the deadline of an exchange. Throws
  // on all ranks if one could not write.
  void await_written() {
    while (common_number(trainer_.comm(), folder_.ends_within(Seconds(0.05)) ? 0 : 1) > 0) continue;
    try {
      all_or_none(trainer_.comm(), "checkpoint", [&] { folder_.wait(); });
    } catch (...) {  // the step is not kept, and may be kept again, in a folder without remains of this one
      kept_ = -1;
      if (trainer_.rank() == 0) folder_.remove_partial();
      throw;
    }
  }
  void close() {
    folder_.unlock();
    open_ = false;
  }

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
  // The step of the newest checkpoint, or -1.
  std::int64_t find_newest() {
    std::int64_t newest = -1;
    all_or_none(trainer_.comm(), "checkpoint", [&] {
      if (trainer_.rank() == 0) newest = folder_.newest();
    });
    return common_number(trainer_.comm(), newest);
  }

  template <StateVisitor V>
  static void visit(V& visitor, FitPosition& position) {
    FitPosition::fields(position, [&](std::string_view name, auto& member) {
      if constexpr (std::is_same_v<decltype(member), double&>)
        visitor.real(concat("fit.", name), member);
      else
        visitor.counter(concat("fit.", name), member);
    });
  }

  Trainer& trainer_;
  typename Trainer::StateCopy copy_;  // which the folder's thread reads
  CheckpointFolder folder_;
  bool open_ = false;       // whether the folder is this run's own
  bool followed_ = false;   // whether the trainer's steps follow the folder's newest checkpoint
  std::int64_t kept_ = -1;  // the step that was kept or restored last
  std::vector<ChangedOption> changed_;
};

#if CONVOY_DEFINITIONS
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
  if (const std::string_view weights = name_of_weights(name); !weights.empty())
    model_.read(weights, shape, values);
  else if (const io::Safetensors* const file = file_of(name))
    file->read(name, shape, values);
}

CONVOY_FUNCTION void Restore::counter(std::string_view name, std::int64_t& number) {
  const io::Safetensors* const file = file_of(name);
  if (file == nullptr) return;
  const std::int64_t read = file->read_number(name);
  // Only the lead may be negative. Which numbers a rank's own state may have, the exchange and the Exec know.
  constexpr std::int64_t most = std::int64_t{1} << 48;
  const std::int64_t least = name == "schedule_lead" ? -most : 0;
  if (file == &training_ && (read < least || read > most))
    fail<CheckpointError>(file->path().string(), ": ", name, " is ", read, ", expected ", least, " to ",
                          most);
  number = read;
}

CONVOY_FUNCTION void Restore::real(std::string_view name, double& number) {
  const io::Safetensors* const file = file_of(name);
  if (file == nullptr) return;
  const auto read = std::bit_cast<double>(file->read_number(name));
  if (is_nan(read)) fail<CheckpointError>(file->path().string(), ": ", name, " is not a number");
  number = read;
}

CONVOY_FUNCTION const io::Safetensors* Restore::file_of(std::string_view name) const {
  const bool of_rank = name.starts_with("ranks.");
  if (of_rank && !own_) {
    if (!is_of_exchange(name)) return nullptr;
    fail<CheckpointError>(
        training_.path().string(), " was written by ", counted(training_.read_number("world"), "rank"),
        " with ", counted(training_.read_number("workers"), "worker"), "; the state of a rank's exchange (",
        name, ") can only be restored with the same numbers of both");
  }
  const io::Safetensors& file = of_rank ? *own_ : training_;
  if (is_of_exchange(name) && file.find(name) == nullptr)
    fail<CheckpointError>(file.path().string(), " has no ", name,
                          ", which this trainer's exchange needs; resume with the exchange that the "
                          "checkpoint was written with");
  return &file;
}

CONVOY_FUNCTION void Rehearsal::tensor(std::string_view name, const Shape& shape, std::span<float> values) {
  attempt([&] {
    values_.resize(values.size());
    restore_.tensor(name, shape, values_);
  });
}

CONVOY_FUNCTION void Rehearsal::counter(std::string_view name, std::int64_t& number) {
  attempt([&, read = number]() mutable { restore_.counter(name, read); });
}

CONVOY_FUNCTION void Rehearsal::real(std::string_view name, double& number) {
  attempt([&, read = number]() mutable { restore_.real(name, read); });
}

CONVOY_FUNCTION void Rehearsal::attempt(Call<void()> read) {
  if (failure_) return;
  try {
    read();
  } catch (...) {
    failure_ = std::current_exception();
  }
}
#endif

}  // namespace convoy::train
