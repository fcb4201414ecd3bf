// Link: connects a rank to the other ranks of its node over peer memory. It has a pad that they write to, a
// stream, and calls that enqueue the kernels of peer/kernels.cuh.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include <convoy/comm/bootstrap/agree.hpp>
#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/gate.cuh>
#include <convoy/comm/bootstrap/place.cuh>
#include <convoy/comm/error.hpp>
#include <convoy/comm/fingerprint.hpp>
#include <convoy/comm/peer/kernels.cuh>
#include <convoy/comm/peer/window.cuh>
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::comm {

/// Options of CudaPeer.
struct PeerOptions {
  Seconds deadline{60};  ///< of a kernel's wait for another rank's kernel; includes that rank's backward
  /// Up to this many bytes every rank reads and sums all values (one shot); above, each rank sums its part
  /// and reads the others' sums (two shots). Others switch at 256 KiB (PyTorch's intra-node all-reduce;
  /// vLLM's with 8 GPUs) to 512 KiB (vLLM's with 4).
  std::int64_t at_once = std::int64_t{256} << 10;
  /// Maximum of thread blocks of an exchange, up to 128; fewer leave more of the GPU to backward. Ranks that
  /// share a GPU divide its multiprocessors, so that the blocks of all of them are resident at the same time.
  /// 0: 32, or, if ranks share a GPU, equal parts of three quarters of its multiprocessors. Up to 64 KiB of
  /// loads of a block are in flight, and a link of 450 GB/s with a latency of 2 us needs 1 MiB; a GPU's own
  /// memory needs several times more.
  int blocks = 0;

  static constexpr void fields(auto& self, auto&& field) {
    field("deadline", self.deadline, convoy::fields::local);
    field("at_once", self.at_once);
    field("blocks", self.blocks);
  }
};

namespace peer {

/// The kind of an exchange, for error sentences.
enum class Kind : unsigned char {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  rule,
};

constexpr std::string_view name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "all-reduce";
    case Kind::reduce_scatter:
      return "reduce-scatter";
    case Kind::all_gather:
      return "all-gather";
    case Kind::broadcast:
      return "broadcast";
    case Kind::rule:
      return "all-reduce of a rule's sums";
  }
  return "exchange";
}

/// An exchange, and its bucket if it has one.
struct Exchange {
  Kind kind = Kind::all_reduce;
  int bucket = -1;

  unsigned word() const { return static_cast<unsigned>(kind) | static_cast<unsigned>(bucket + 1) << 8; }
  static Exchange of(unsigned word) {
    return {static_cast<Kind>(word & 0xffu), static_cast<int>(word >> 8) - 1};
  }
  std::string text() const {
    return bucket < 0 ? concat("cuda-peer ", name_of(kind))
                      : concat("cuda-peer ", name_of(kind), " of bucket ", bucket);
  }
};

/// One rank of a node. Calls enqueue on `stream()` and return; all ranks make the same calls in the same
/// order, captured in graphs or not. Sums are taken in the order of ranks, in f32 (f64 for doubles), and
/// rounded once: every rank gets the same bits, by one shot and by two. Not movable.
class Link {
 public:
  /// All ranks of the bootstrap construct one together. The thread's GPU becomes this rank's.
  Link(AnyBootstrap& ranks, const PeerOptions& options)
      : ranks_(ranks), rank_(ranks.rank()), size_(ranks.size()), options_(options) {
    if (options.at_once < smallest_slot || options.at_once > largest_slot || options.at_once % 256 != 0)
      fail<ConfigError>("cuda-peer: at_once is a multiple of 256 from ", smallest_slot, " to ", largest_slot,
                        " bytes, not ", options.at_once);
    if (options.blocks < 0 || options.blocks > most_blocks)
      fail<ConfigError>("cuda-peer: an exchange uses 1 to ", most_blocks,
                        " blocks, or 0 for its own choice, not ", options.blocks);
    device::check(cudaGetDevice(&device_), "ask which GPU is this thread's");
    stream_ = device::make_urgent_stream();
    if (size_ == 1) return;
    aside_ = device::make_stream();
    agree(ranks_, Fingerprint().add("comm", std::string_view("cuda-peer")).add("comm", options));
    look_around();
    make_pad();
    pads_ = Window(ranks_, pad_.get(), pad_);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link() {
    close([] {});
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  cudaStream_t stream() const { return stream_.get(); }
  const PeerOptions& options() const { return options_; }
  /// Maximum of thread blocks of an exchange; the same on all ranks.
  int blocks() const { return blocks_; }
  /// Whether ranks meet on the host around each exchange.
  bool meets() const { return gate_ && gate_->joins(); }
  /// False after a failure and during stack unwinding, when the others need not wait for this rank.
  bool healthy() const { return !failure_ && std::uncaught_exceptions() == exceptions_; }

  /// Cuts `count` elements into equal parts of whole cache lines of floats; the last rank also has the
  /// remainder.
  Cuts equal_cuts(std::int64_t count) const {
    Cuts cuts;
    for (int r = 0; r < size_; ++r) cuts.at[r] = r * schedule::equal_part(count, size_);
    cuts.at[size_] = count;
    return cuts;
  }

  /// `data` is any memory of this GPU; other ranks need no access to it.
  template <class T>
  void all_reduce(T* data, std::int64_t count, Exchange what = {}) {
    const std::int64_t most = options_.at_once / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t done = 0; done < count && size_ > 1; done += most) {
      const std::int64_t piece = std::min(count - done, most);
      start(all_reduce_at_once<T>, std::min(blocks_, blocks_at_once), what, bytes_of<T>(piece), data + done,
            piece, options_.at_once, aligned(data + done));
    }
  }
  /// Of `count` elements from element `offset` of a window's pieces on.
  template <class T>
  void all_reduce(const Window& window, std::int64_t offset, std::int64_t count, Exchange what = {}) {
    if (size_ == 1 || count <= 0) return;
    if (count * static_cast<std::int64_t>(sizeof(T)) <= options_.at_once)
      return all_reduce(everywhere<T>(window, offset).on[rank_], count, what);
    exchange<T, true, true>(window, offset, equal_cuts(count), what);
  }
  /// Afterwards this rank's part holds the sums; the rest is unspecified. Cuts are at multiples of
  /// schedule::shard_grain.
  template <class T>
  void reduce_scatter(const Window& window, std::int64_t offset, const Cuts& cuts,
                      Exchange what = {.kind = Kind::reduce_scatter}) {
    exchange<T, true, false>(window, offset, cuts, what);
  }
  /// Every rank gets every other's part.
  template <class T>
  void all_gather(const Window& window, std::int64_t offset, const Cuts& cuts,
                  Exchange what = {.kind = Kind::all_gather}) {
    exchange<T, false, true>(window, offset, cuts, what);
  }
  void broadcast(const Window& window, std::int64_t offset, std::int64_t bytes, int root,
                 Exchange what = {.kind = Kind::broadcast}) {
    if (size_ == 1 || bytes <= 0) return;
    const auto data = everywhere<unsigned char>(window, offset);
    start(broadcast_from<unsigned char>, blocks_for_vectors(bytes / 16), what, bytes, data, bytes, root,
          aligned(data));
  }
  /// The link's own memory, through which host numbers go from rank to rank.
  static constexpr std::size_t relay_bytes = std::size_t{1} << 20;
  std::byte* relay() const { return pads_.of(rank_) + relay_begin(); }
  void broadcast_relay(std::int64_t bytes, int root) { broadcast(pads_, relay_begin(), bytes, root); }

  /// Throws CommError if a wait of a kernel has failed; the error's ranks are those of the whole world.
  void check() {
    if (failure_) throw CommError(*failure_);
    if (closed_) fail<Error>("rank ", ranks_.in_world(rank_), ": cuda-peer: the exchange is closed");
    if (size_ == 1) return;
    FailedWait& failed_wait = *failed_wait_;
    if (std::atomic_ref<unsigned>(failed_wait.code).load(std::memory_order_acquire) == 0) return;
    lose(Exchange::of(failed_wait.what), failed_wait.peer(), failed_wait.reason(), failed_wait.meeting,
         failed_wait.bytes);
  }
  /// Returns when all enqueued work is done; the wait is bounded by the deadlines of the kernels.
  void synchronize() {
    device::check(cudaStreamSynchronize(stream()), "finish the work of a stream");
    check();
  }
  /// Ends all exchanges. `unmap()` ends this rank's windows. When this returns, the other processes have
  /// ended theirs, unless one of them is late. During stack unwinding and after a failure this rank does not
  /// wait for others.
  template <class F>
  void close(F&& unmap) noexcept {
    if (size_ == 1 || closed_) return;
    Parting parting = healthy() ? Parting::well : Parting::broken;
    gate_->leave();
    if (parting == Parting::broken) part(rank_, 0, size_, parting);  // makes this rank's kernels return
    try {
      synchronize();
    } catch (...) {
      parting = Parting::broken;
    }
    closed_ = true;
    unmap();
    for (int r = 0; r < size_; ++r)
      if (r != rank_) part(r, rank_, 1, parting);
    // Within a process the ranks share ownership of their pads.
    if (pads_.crosses_processes()) {
      const bool together = parting == Parting::well && all_part_well() && ranks_.is_world();
      if (!together) keep(pad_);
      pads_ = Window();
      if (together) end_together();
    }
  }

 private:
  static constexpr std::int64_t smallest_slot = 1024, largest_slot = std::int64_t{64} << 20;
  // The same for every one-shot exchange (peer/kernels.cuh), and enough for the largest, with few vectors per
  // thread.
  static constexpr int blocks_at_once = 8;
  static constexpr int blocks_over_links = 32;  // PeerOptions::blocks

  struct FreeHost {
    void operator()(FailedWait* p) const { cudaFreeHost(p); }
  };

  template <class T>
  static std::int64_t bytes_of(std::int64_t count) {
    return count * static_cast<std::int64_t>(sizeof(T));
  }
  int blocks_for_vectors(std::int64_t vectors) const {
    return static_cast<int>(device::blocks_for(vectors, threads, blocks_));
  }
  static bool aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }
  template <class T>
  bool aligned(const Everywhere<T>& data) const {
    return std::all_of(data.on, data.on + size_, [](const T* p) { return aligned(p); });
  }
  template <class T>
  Everywhere<T> everywhere(const Window& window, std::int64_t offset) const {
    Everywhere<T> data;
    for (int r = 0; r < size_; ++r) data.on[r] = reinterpret_cast<T*>(window.of(r)) + offset;
    return data;
  }

  template <class T, bool reduces, bool gathers>
  void exchange(const Window& window, std::int64_t offset, const Cuts& cuts, Exchange what) {
    const std::int64_t count = cuts.at[size_];
    if (size_ == 1 || count <= 0) return;
    const auto data = everywhere<T>(window, offset);
    std::int64_t largest = 0;
    for (int r = 0; r < size_; ++r) largest = std::max(largest, cuts.at[r + 1] - cuts.at[r]);
    start(exchange_parts<T, reduces, gathers>, blocks_for_vectors(largest / device::lanes<T>), what,
          bytes_of<T>(count), data, cuts, aligned(data));
  }

  template <class Kernel, class... A>
  void start(Kernel kernel, int blocks, Exchange what, std::int64_t bytes, const A&... arguments) {
    check();
    device::enter(device_);
    // During capture no kernel begins, so the ranks need not meet.
    const bool meets_here = meets() && !captures();
    if (meets_here) {
      device::load(kernel);
      meet(what, bytes);
    }
    Team team;
    team.rank = rank_;
    team.size = size_;
    team.what = what.word();
    team.bytes = static_cast<unsigned long long>(bytes);
    team.patience =
        static_cast<unsigned long long>(std::min(options_.deadline, Deadline::most).count() * 1e9);
    team.failed_wait = failed_wait_.get();
    for (int r = 0; r < size_; ++r) team.pads[r] = reinterpret_cast<Pad*>(pads_.of(r));
    device::launch({stream(), static_cast<unsigned>(blocks), threads, Meeting::shared_bytes}, kernel, team,
                   arguments...);
    if (meets_here) meet(what, bytes);
  }
  bool captures() const {
    cudaStreamCaptureStatus status{};
    device::check(cudaStreamIsCapturing(stream(), &status), "ask whether a stream captures");
    return status != cudaStreamCaptureStatusNone;
  }
  void meet(Exchange what, std::int64_t bytes) {
    if (const auto missing = gate_->meet(options_.deadline))
      lose(what, missing->rank, missing->left ? Reason::left : Reason::late, missing->meeting,
           static_cast<unsigned long long>(bytes));
  }

  // How a rank has left, in Pad::left.
  enum class Parting : unsigned { none, well, broken };

  // Tells rank `to` and its kernels how `count` ranks from `first` on have left.
  void part(int to, int first, int count, Parting how) noexcept {
    unsigned words[most_ranks];
    std::fill_n(words, count, static_cast<unsigned>(how));
    cudaMemcpyAsync(reinterpret_cast<Pad*>(pads_.of(to))->left + first, words,
                    static_cast<std::size_t>(count) * sizeof(unsigned), cudaMemcpyHostToDevice, aside_.get());
    cudaStreamSynchronize(aside_.get());
  }
  // Waits until all others have left. False if one has not left well, or not before the deadline.
  bool all_part_well() noexcept {
    const Deadline deadline(options_.deadline);
    for (;;) {
      unsigned left[most_ranks] = {};
      cudaMemcpyAsync(left, reinterpret_cast<Pad*>(pads_.of(rank_))->left, sizeof left,
                      cudaMemcpyDeviceToHost, aside_.get());
      if (cudaStreamSynchronize(aside_.get()) != cudaSuccess) return false;
      left[rank_] = static_cast<unsigned>(Parting::well);
      const auto count = [&](Parting how) {
        return std::count_if(left, left + size_,
                             [&](unsigned word) { return static_cast<Parting>(word) == how; });
      };
      if (count(Parting::none) == 0) return count(Parting::well) == size_;
      if (deadline.expired()) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Waits until no rank has this rank's pad mapped any more, or keeps the pad.
  void end_together() noexcept {
    try {
      ranks_.barrier();
    } catch (...) {  // a rank has ended meanwhile
      keep(pad_);
    }
  }

  // Throws CommError, which every later check() throws again.
  [[noreturn]] void lose(Exchange what, int waited_for, Reason reason, std::uint64_t meeting,
                         unsigned long long bytes) {
    const bool late = reason == Reason::late;
    const int peer = ranks_.in_world(waited_for);
    failure_.emplace(CommError::Fields{.rank = ranks_.in_world(rank_),
                                       .peer = peer,
                                       .operation = what.text(),
                                       .sequence = meeting,
                                       .bytes = static_cast<std::size_t>(bytes),
                                       .elapsed = late ? options_.deadline.count() : 0.0},
                     late ? concat("rank ", peer, " did not come within ", options_.deadline.count(), " s")
                          : concat("rank ", peer, " has left"));
    gate_->leave();
    throw CommError(*failure_);
  }

  // The streams of a training rank: of compute, of copies, `stream_` and `aside_`.
  static constexpr int streams_of_a_rank = 4;
  static int hardware_queues() {
    const char* given = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    return given != nullptr ? std::atoi(given) : 8;
  }

  void look_around() {
    const comm::detail::Place mine = comm::detail::Place::here();
    std::vector<comm::detail::Place> places(static_cast<std::size_t>(size_));
    ranks_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(places)));
    const auto sharing = static_cast<int>(std::count_if(
        places.begin(), places.end(), [&](const auto& place) { return place.shares_gpu(mine); }));
    const auto threads_here =
        static_cast<int>(std::count_if(places.begin(), places.end(), [&](const auto& place) {
          return place.shares_gpu(mine) && place.shares_process(mine);
        }));
    if (threads_here > 1 && threads_here * streams_of_a_rank > hardware_queues())
      fail<ConfigError>("cuda-peer: ", threads_here, " ranks of this process share a GPU, whose ",
                        hardware_queues(),
                        " hardware queues are too few for their streams, so that one stream would wait for "
                        "another; set CUDA_DEVICE_MAX_CONNECTIONS to ",
                        threads_here * streams_of_a_rank, " (at most 32) before the first CUDA call");
    int processors = 0;
    device::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device_),
                  "count the processors of a GPU");
    // Each multiprocessor has room for one block of any kernel. All blocks must be resident, because block b
    // waits for block b of every rank.
    const bool leaves_room = options_.blocks == 0 && sharing > 1;
    const int wanted = options_.blocks > 0 ? options_.blocks : leaves_room ? most_blocks : blocks_over_links;
    // Blocks of the ranks that wait stay on their multiprocessors until the last rank comes, which first has
    // to finish its backward. If they held nearly all multiprocessors, that backward would be slow or even
    // miss the deadline. Libraries may launch its kernels as clusters, whose blocks need room within one
    // group of multiprocessors. So a quarter of the GPU stays free, unless the option asks for more blocks.
    const int usable = leaves_room ? processors - processors / 4 : processors;
    const int fit = std::min(wanted, std::max(1, usable / sharing));
    std::vector<int> all(static_cast<std::size_t>(size_));
    ranks_.all_gather(std::as_bytes(std::span(&fit, 1)), std::as_writable_bytes(std::span(all)));
    blocks_ = *std::min_element(all.begin(), all.end());
    gate_.emplace(ranks_, places);
  }

  std::int64_t relay_begin() const { return static_cast<std::int64_t>(sizeof(Pad)) + 2 * options_.at_once; }
  void make_pad() {
    void* p = nullptr;
    const std::size_t bytes = static_cast<std::size_t>(relay_begin()) + relay_bytes;
    device::check(cudaMalloc(&p, device::whole_blocks(bytes)), "allocate memory for exchanges");
    pad_ = std::shared_ptr<void>(p, [](void* it) { cudaFree(it); });
    device::check(cudaMemsetAsync(p, 0, sizeof(Pad), stream()), "clear memory");
    device::check(cudaStreamSynchronize(stream()), "clear memory");  // before others map it
    device::check(cudaHostAlloc(&p, sizeof(FailedWait), cudaHostAllocPortable | cudaHostAllocMapped),
                  "allocate memory of the host");
    failed_wait_.reset(new (p) FailedWait);
  }

  // Keeps a pad that others may still have mapped until this process ends.
  static void keep(const std::shared_ptr<void>& pad) {
    static std::mutex mutex;
    static auto* const kept = new std::vector<std::shared_ptr<void>>;  // not freed after CUDA has shut down
    const std::lock_guard lock(mutex);
    kept->push_back(pad);
  }

  AnyBootstrap ranks_;
  int rank_, size_;
  int exceptions_ = std::uncaught_exceptions();
  PeerOptions options_;
  int device_ = 0;
  int blocks_ = 1;
  std::optional<comm::detail::Gate> gate_;  // none in a world of one rank
  device::Stream stream_, aside_;           // aside_: for copies while kernels wait
  std::shared_ptr<void> pad_;
  std::unique_ptr<FailedWait, FreeHost> failed_wait_;
  Window pads_;
  std::optional<CommError> failure_;
  bool closed_ = false;
};

}  // namespace peer

}  // namespace convoy::comm
