// An NCCL communicator for buckets, one for host numbers, and the thread that watches both.
//
// Communicators are non-blocking: no NCCL call waits for another rank, so that every wait has a deadline.
// The thread watches the enqueued work. If there is no progress for longer than the deadline, or NCCL reports
// an error, the thread aborts both communicators. This releases any thread that waits for the GPU, and the
// next call throws. Ranks that are threads of one process meet on the host around each call
// (bootstrap/gate.cuh).
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/gate.cuh>
#include <convoy/comm/bootstrap/place.cuh>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/memory/cuda.cuh>

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0),
              "convoy: comm::Nccl needs NCCL 2.19 or later, which splits communicators and registers memory");

namespace convoy::comm {

/// Options of Nccl.
struct NcclOptions {
  Seconds deadline{60};         ///< since the last progress; includes the backward that an exchange waits for
  Seconds abort_deadline{5};    ///< for the abort of a failed communicator, which waits for the node's ranks
  int least_blocks = 0;         ///< minimum of thread blocks of an exchange; 0: NCCL's own choice
  int most_blocks = 0;          ///< maximum, up to 32; fewer leave more of the GPU to backward; 0: likewise
  bool register_arenas = true;  ///< registers the arenas with NCCL, so that it can avoid copies
  bool connects_alone = false;  ///< makes NCCL's calls in a world of one rank too, to test or time them

  static constexpr void fields(auto& self, auto&& field) {
    field("deadline", self.deadline, convoy::fields::local);
    field("abort_deadline", self.abort_deadline, convoy::fields::local);
    field("least_blocks", self.least_blocks);
    field("most_blocks", self.most_blocks);
    field("register_arenas", self.register_arenas);
    field("connects_alone", self.connects_alone);
  }
};

namespace detail {

// NCCL's first version whose ranks register memory as one window. The header may be newer than the library
// that is loaded.
inline constexpr int nccl_version_of_windows = NCCL_VERSION(2, 27, 3);

/// The version of the NCCL that is loaded, in the form of NCCL_VERSION_CODE.
inline int nccl_version() {
  int version = 0;
  ncclGetVersion(&version);
  return version;
}

// Memory that is registered with NCCL.
struct NcclMapping {
  Access access = Access::plain;
  void* handle = nullptr;
};

// The description of a call, for error sentences.
struct NcclCall {
  std::string_view operation;
  int bucket = -1;
  std::size_t bytes = 0;

  std::string text() const {
    return bucket < 0 ? concat("nccl ", operation) : concat("nccl ", operation, " of bucket ", bucket);
  }
};

// Backoff: yields at first, then sleeps longer and longer.
class Naps {
 public:
  void nap() {
    if (++rounds_ < 64)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(
          std::chrono::microseconds(std::min(50 << std::min(rounds_ / 1024, 5), 1000)));
  }

 private:
  int rounds_ = 0;
};

/// A communicator for buckets, and the thread that watches it. Host numbers use a second communicator, split
/// off at first use, so that they do not wait for buckets in flight. Only one thread at a time is inside
/// NCCL. Any thread may use it, one at a time. Not movable.
class Communicator {
 public:
  /// All ranks of the bootstrap construct one together; `places` are those of all ranks.
  Communicator(const AnyBootstrap& ranks, std::span<const Place> places, const NcclOptions& options)
      : ranks_(ranks), gate_(ranks_, places), options_(options) {
    if (options.least_blocks > 0 && options.most_blocks > 0 && options.least_blocks > options.most_blocks)
      fail<ConfigError>("nccl: an exchange has at least least_blocks = ", options.least_blocks,
                        " thread blocks, which is more than most_blocks = ", options.most_blocks);
    device::check(cudaGetDevice(&device_), "ask which GPU is this thread's");
    stream_ = device::make_urgent_stream();  // exchanges begin between backward's kernels
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator() {
    gate_.leave();
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    wake_.notify_one();
    if (watcher_.joinable()) watcher_.join();
    if (comm_ == nullptr) return;
    if (!healthy() || !ends()) abort();
  }
  /// False after an abort, and during stack unwinding, when other ranks may be gone: ncclCommFinalize would
  /// wait for them.
  bool healthy() {
    const std::lock_guard lock(mutex_);
    return comm_ != nullptr && std::uncaught_exceptions() == exceptions_;
  }
  /// Aborts the communicators without waiting for other ranks.
  void give_up() {
    gate_.leave();
    const std::lock_guard lock(mutex_);
    abort();
  }

  int rank() const { return ranks_.rank(); }
  int size() const { return ranks_.size(); }
  /// Whether NCCL is called at all; a world of one rank needs no exchange.
  bool connects() const { return size() > 1 || options_.connects_alone; }
  cudaStream_t stream() const { return stream_.get(); }
  /// Makes the GPU of this rank the calling thread's current device, of which new streams and events are.
  void enter() const { device::enter(device_); }
  const NcclOptions& options() const { return options_; }

  ncclConfig_t config() const {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (options_.most_blocks > 0) config.maxCTAs = options_.most_blocks;
    if (options_.least_blocks > 0) {
      config.minCTAs = options_.least_blocks;
      // NCCL compares the two before it fills in its own maximum.
      if (options_.most_blocks == 0) config.maxCTAs = std::max(options_.least_blocks, most_blocks_of_nccl);
    }
    return config;
  }

  /// Creates the communicator by `make(comm)`; called by all ranks.
  template <class F>
  void start(const NcclCall& what, F&& make) {
    const std::lock_guard lock(mutex_);
    settle(what, comm_, make(comm_));
    watcher_ = std::thread([this] { watch(); });
  }

  /// Makes the NCCL call `f(comm)` and returns when NCCL has enqueued its work for all ranks of the process.
  /// A no-op unless this communicator `connects`.
  template <class F>
  void call(const NcclCall& what, F&& f) {
    call(what, comm_, std::forward<F>(f));
  }
  /// The communicator of the ranks that pass the same color, in the order of their keys, for one that
  /// `connects`. Waits for the work on the stream, because NCCL requires that none is under way when it
  /// splits a communicator. The creation may still be under way afterwards.
  ncclComm_t split(const NcclCall& what, int color, int key, ncclConfig_t config) {
    enter();
    const device::Event done = device::make_event();
    device::check(cudaEventRecord(done.get(), stream()), "mark a stream");
    await(done.get(), what);
    const auto made = std::make_shared<ncclComm_t>();
    call(what, [&](ncclComm_t parent) {
      written_late_ = made;
      return ncclCommSplit(parent, color, key, made.get(), &config);
    });
    const std::lock_guard lock(mutex_);
    written_late_.reset();
    return *made;
  }
  /// Like `call`, for host numbers: `f(comm, stream)` gets their own communicator and stream.
  template <class F>
  void call_for_numbers(const NcclCall& what, F&& f) {
    if (!connects()) return;
    if (!has_numbers()) split_off_numbers(what);
    call(what, numbers_, [&](ncclComm_t comm) { return f(comm, numbers_stream_.get()); });
  }
  /// Like `call`, for several NCCL calls in one group.
  template <class F>
  void group(const NcclCall& what, F&& f) {
    call(what, [&](ncclComm_t comm) {
      ncclResult_t first = ncclGroupStart();
      if (first != ncclSuccess) return first;
      first = f(comm);
      const ncclResult_t last = ncclGroupEnd();
      return first == ncclSuccess || first == ncclInProgress ? last : first;
    });
  }

  /// Watches the work on the stream so far until it is done. The events are this object's own, because an
  /// event that is recorded again in every step would never complete while the host is steps ahead of the
  /// GPU.
  void expect(const NcclCall& what) {
    if (!connects()) return;
    enter();
    const std::lock_guard lock(mutex_);
    if (spare_.empty()) spare_.push_back(device::make_event());
    device::check(cudaEventRecord(spare_.back().get(), stream()), "mark a stream");
    if (expected_.empty()) last_progress_ = Clock::now();
    expected_.push_back({std::move(spare_.back()), what});
    spare_.pop_back();
  }

  /// Returns when the work before the event is done. Throws CommError if an exchange failed or the deadline
  /// passed.
  void await(cudaEvent_t done, const NcclCall& what) {
    const Clock::time_point begin = Clock::now();
    for (Naps naps;; naps.nap()) {
      const std::lock_guard lock(mutex_);
      if (connects()) go_on();
      const cudaError_t state = cudaEventQuery(done);
      if (state != cudaErrorNotReady) device::check(state, what.text());
      if (connects()) look_for_errors(what);  // the event of a failed exchange completes as well
      if (state == cudaSuccess) return;
      if (connects() && late(begin)) lose(what, "was not over", begin);
    }
  }

  /// Throws a failure that the watching thread or NCCL has found.
  void check() {
    if (!connects()) return;
    const std::lock_guard lock(mutex_);
    go_on();
    look_for_errors({.operation = "exchange"});
  }

  /// Registers memory, which NCCL can then use without copies; plain if NCCL refuses.
  NcclMapping register_memory(std::span<std::byte> memory) {
    void* handle = nullptr;
    const std::lock_guard lock(mutex_);
    if (!connects() || memory.empty()) return {};
    go_on();
    const NcclCall what{.operation = "registration of memory", .bytes = memory.size()};
    const ncclResult_t result = ncclCommRegister(comm_, memory.data(), memory.size(), &handle);
    if (result != ncclSuccess && result != ncclInProgress) return {};
    settle(what, comm_, result);
    return {Access::registered, handle};
  }
  /// Registers memory from ncclMemAlloc of the same size on every rank as one window; plain if NCCL has no
  /// windows here. All ranks call it together.
  NcclMapping register_window([[maybe_unused]] std::span<std::byte> memory) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
    if (!connects() || memory.empty()) return {};
    const auto window = std::make_shared<ncclWindow_t>();
    call({.operation = "registration of a window", .bytes = memory.size()}, [&](ncclComm_t comm) {
      written_late_ = window;
      const ncclResult_t result =
          ncclCommWindowRegister(comm, memory.data(), memory.size(), window.get(), NCCL_WIN_COLL_SYMMETRIC);
      return result == ncclInProgress ? result : ncclSuccess;  // a refusal leaves the window null
    });
    const std::lock_guard lock(mutex_);
    written_late_.reset();
    if (*window != nullptr) return {Access::symmetric, *window};
#endif
    return {};
  }
  /// A no-op after an abort, which has ended the registration.
  void forget_memory(const NcclMapping& mapping) {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr || mapping.access == Access::plain) return;
    ncclResult_t result = ncclSuccess;
    if (mapping.access == Access::registered) result = ncclCommDeregister(comm_, mapping.handle);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
    if (mapping.access == Access::symmetric)
      result = ncclCommWindowDeregister(comm_, static_cast<ncclWindow_t>(mapping.handle));
#endif
    static_cast<void>(over(comm_, result, Deadline(options_.deadline)));
  }

 private:
  template <class F>
  void call(const NcclCall& what, const ncclComm_t& by, F&& f) {
    if (!connects()) return;
    meet(what);
    {
      const std::lock_guard lock(mutex_);
      go_on();
      settle(what, by, f(by));
    }
    meet(what);
  }

  bool has_numbers() {
    const std::lock_guard lock(mutex_);  // an abort by the watching thread ends the communicator
    return numbers_ != nullptr;
  }
  void split_off_numbers(const NcclCall& what) {
    ncclConfig_t few = config();
    few.minCTAs = few.maxCTAs = 1;
    ncclComm_t made = split(what, 0, rank(), few);
    const std::lock_guard lock(mutex_);
    numbers_stream_ = device::make_urgent_stream();
    numbers_ = made;
    settle(what, numbers_, ncclInProgress);
  }

  struct Expected {
    device::Event done;
    NcclCall what;
  };

  static constexpr int most_blocks_of_nccl = 32;

  int in_world(int rank) const { return ranks_.in_world(rank); }
  bool late(Clock::time_point since) const { return Clock::now() - since > options_.deadline; }

  void go_on() const {
    if (failure_) throw CommError(*failure_);
    if (comm_ == nullptr) fail<Error>("rank ", in_world(rank()), ": nccl: the communicator has ended");
  }

  // The watching thread goes on during the meeting, which is outside the lock.
  void meet(const NcclCall& what) {
    const Clock::time_point begin = Clock::now();
    const std::optional<Gate::Missing> missing = gate_.meet(options_.deadline);
    if (!missing) return;
    const std::lock_guard lock(mutex_);
    go_on();
    lose(what, concat("rank ", in_world(missing->rank), missing->left ? " has left" : " did not come"), begin,
         &*missing);
  }

  // Waits until NCCL has completed a call, before which no other call is allowed. The result of the call does
  // not tell: ncclCommSplit goes on after it has returned ncclSuccess.
  void settle(const NcclCall& what, const ncclComm_t& by, ncclResult_t result) {
    const Clock::time_point begin = Clock::now();
    for (Naps naps; result == ncclSuccess || result == ncclInProgress; naps.nap()) {
      if (by != nullptr) {  // NCCL may set it late
        const ncclResult_t asked = ncclCommGetAsyncError(by, &result);
        if (asked != ncclSuccess) result = asked;
        if (result == ncclSuccess) return;
      }
      if ((result == ncclSuccess || result == ncclInProgress) && late(begin))
        lose(what, "did not begin", begin);
    }
    lose(what, reason(by, result), begin);
  }

  static std::string reason(ncclComm_t comm, ncclResult_t result) {
    const char* more = ncclGetLastError(comm);
    std::string text = ncclGetErrorString(result);
    if (more != nullptr && *more != '\0') text += concat(" (", more, ")");
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  void look_for_errors(const NcclCall& what) {
    for (const ncclComm_t comm : {comm_, numbers_}) {
      if (comm == nullptr) continue;
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
      if (asked != ncclSuccess) state = asked;
      if (state != ncclSuccess && state != ncclInProgress) lose(what, reason(comm, state), Clock::now());
    }
  }

  [[noreturn]] void lose(const NcclCall& what, std::string_view why, Clock::time_point since,
                         const Gate::Missing* missing = nullptr) {
    const double elapsed = Seconds(Clock::now() - since).count();
    std::string text(why);
    if (elapsed >= options_.deadline.count()) text += concat(" within ", options_.deadline.count(), " s");
    if (what.bytes > 0 && missing == nullptr) text += concat(", ", what.bytes, " bytes");
    gate_.leave();
    if (!abort())
      text += concat("; NCCL did not end within ", options_.abort_deadline.count(),
                     " s, perhaps because other ranks of the node have not ended either, so end the process");
    failure_.emplace(CommError::Fields{.rank = in_world(rank()),
                                       .peer = missing != nullptr ? in_world(missing->rank) : -1,
                                       .operation = what.text(),
                                       .sequence = missing != nullptr ? missing->meeting : 0,
                                       .bytes = what.bytes,
                                       .elapsed = elapsed},
                     text);
    throw CommError(*failure_);
  }

  // False if the aborts are not over within their deadline.
  bool abort() { return hand_over(ncclCommAbort, Deadline(options_.abort_deadline)); }

  // Finalizes and destroys the communicators. False if that fails or exceeds the deadline; abort() then ends
  // those that are left.
  bool ends() {
    const Deadline deadline(options_.deadline);
    return finalized(numbers_, deadline) && finalized(comm_, deadline) &&
           hand_over(ncclCommDestroy, deadline);
  }
  static bool finalized(ncclComm_t comm, const Deadline& deadline) {
    return comm == nullptr || over(comm, ncclCommFinalize(comm), deadline);
  }
  // Waits until the call with this result is over. False if it fails or exceeds the deadline.
  static bool over(ncclComm_t comm, ncclResult_t state, const Deadline& deadline) {
    for (Naps naps; state == ncclInProgress; naps.nap()) {
      if (deadline.expired()) return false;
      if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return false;
    }
    return state == ncclSuccess;
  }

  // Ends the communicators by `end`, each in a thread of its own, and returns whether that is over before the
  // deadline. Both ncclCommAbort and ncclCommDestroy wait for a thread of NCCL that serves the ranks of the
  // node, and that thread goes on until the others have ended their communicators as well.
  bool hand_over(ncclResult_t (*end)(ncclComm_t), const Deadline& deadline) {
    struct Shared {
      std::mutex mutex;
      std::condition_variable over;
      int left = 0;
    };
    const auto shared = std::make_shared<Shared>();
    std::unique_lock lock(shared->mutex);
    for (ncclComm_t* const it : {&comm_, &numbers_})
      if (const ncclComm_t comm = std::exchange(*it, nullptr); comm != nullptr) {
        ++shared->left;
        std::thread([shared, end, comm, device = device_, late = written_late_] {
          cudaSetDevice(device);
          end(comm);
          const std::lock_guard held(shared->mutex);
          --shared->left;
          shared->over.notify_one();
        }).detach();
      }
    return shared->over.wait_until(lock, deadline.end(), [&] { return shared->left == 0; });
  }

  void watch() {
    // Other threads may be capturing a graph; in the default mode an event query would invalidate the
    // capture.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaSetDevice(device_);
    cudaThreadExchangeStreamCaptureMode(&mode);
    const auto every = std::chrono::duration<double>(std::min(0.1, options_.deadline.count() / 8));
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, every, [&] { return quit_; })) {
      if (comm_ == nullptr) return;
      try {
        look();
      } catch (const CommError&) {
        return;  // the rank's own thread throws it again
      }
    }
  }
  void look() {
    if (expected_.empty()) return;
    NcclCall what = expected_.front().what;
    while (!expected_.empty()) {
      Expected& first = expected_.front();
      what = first.what;
      const cudaError_t state = cudaEventQuery(first.done.get());
      if (state == cudaErrorNotReady) break;
      if (state != cudaSuccess) lose(what, cudaGetErrorString(state), Clock::now());
      last_progress_ = Clock::now();
      spare_.push_back(std::move(first.done));
      expected_.pop_front();
    }
    look_for_errors(what);
    if (!expected_.empty() && late(last_progress_)) lose(what, "was not over", last_progress_);
  }

  AnyBootstrap ranks_;
  Gate gate_;
  int device_ = 0;
  int exceptions_ = std::uncaught_exceptions();
  NcclOptions options_;
  device::Stream stream_, numbers_stream_;
  ncclComm_t comm_ = nullptr, numbers_ = nullptr;
  // Where NCCL stores a communicator that it splits off, or a window. NCCL may write until the abort, perhaps
  // after this rank has given up, so the aborting threads share it.
  std::shared_ptr<void> written_late_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Expected> expected_;     // in the order of the stream
  std::vector<device::Event> spare_;  // events for reuse
  Clock::time_point last_progress_;
  std::optional<CommError> failure_;
  bool quit_ = false;
  std::thread watcher_;  // last, because the thread uses the other members
};

}  // namespace detail

}  // namespace convoy::comm
