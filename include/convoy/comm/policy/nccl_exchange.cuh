// NcclExchange: shared parts of exchanges by NCCL: a world of ranks with a GPU each, whose start, waits and
// end have deadlines; collectives on host numbers; and memory that is registered with NCCL.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include <convoy/comm/bootstrap/agree.hpp>
#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/numbers.hpp>
#include <convoy/comm/bootstrap/place.cuh>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/policy/device_buckets.cuh>
#include <convoy/comm/policy/nccl_communicator.cuh>
#include <convoy/comm/policy/nccl_memory.cuh>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/space.hpp>

namespace convoy::comm {

/// CRTP base of an exchange C by NCCL. It implements `rank()`, `size()`, `stream()`, `check()`, `watch` and
/// `await` for DeviceBuckets; C has the other members that DeviceBuckets requires, and
///
///     call_of(work, b)                 the description of the work, for error sentences
///
/// `finish` returns when all work is enqueued; with an observer it then waits for the exchange of each
/// bucket, whose times are read on the GPU. `all_reduce` is for a few host numbers, which do not wait for
/// buckets, and `broadcast` for the initial parameters. Not thread-safe. Ranks that are threads of one
/// process meet on the host around each exchange (bootstrap/gate.cuh), so that their calls in between may
/// wait for the GPU. A CUDA graph cannot capture a step: NCCL launches the work of a non-blocking
/// communicator from a thread of its own, and no thread would watch a replayed graph.
template <class C, memory::Space S, bool sharded>
class NcclExchange : public DeviceBuckets<C, S, sharded> {
  using Base = DeviceBuckets<C, S, sharded>;
  friend Base;

 public:
  using Options = NcclOptions;

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  const Options& options() const { return comm_->options(); }

  using Base::all_reduce;
  using Base::broadcast;
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction);
  void broadcast(void* data, std::size_t bytes, int root);
  /// Memory that NCCL can register as windows.
  std::pmr::memory_resource* memory() {
    return connects() && options().register_arenas ? &detail::NcclMemory::of_process() : nullptr;
  }
  Traffic traffic() const {
    Traffic traffic = Base::traffic();
    traffic.arenas = access_;
    return traffic;
  }
  void barrier() {
    constexpr std::array<std::byte, 1> mine{};
    if (connects()) gather_on_host(mine, "barrier");
  }
  void close() noexcept {
    if (!comm_) return;
    try {
      if (comm_->healthy()) await_all();
    } catch (...) {  // the communicator has been aborted
    }
    if (!comm_->healthy()) comm_->give_up();
    unregister();
    Base::forget();
  }

 protected:
  /// All ranks of the bootstrap construct one together. The thread's current GPU (device::use) becomes this
  /// rank's.
  NcclExchange(AnyBootstrap bootstrap, const Options& options) : bootstrap_(std::move(bootstrap)) {
    places_.resize(static_cast<std::size_t>(bootstrap_.size()));
    const detail::Place mine = detail::Place::here();
    bootstrap_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(places_)));
    comm_ = std::make_unique<detail::Communicator>(bootstrap_, places_, options);
    if (connects()) connect();
    make_ready();
  }
  /// The group of those ranks of `whole` that pass the same color.
  NcclExchange(const NcclExchange& whole, int color);
  NcclExchange(NcclExchange&&) noexcept = default;
  NcclExchange& operator=(NcclExchange&&) = delete;
  ~NcclExchange() { close(); }

  cudaStream_t stream() const { return comm_->stream(); }
  bool connects() const { return comm_->connects(); }
  detail::Communicator& communicator() { return *comm_; }

  /// Throws ConfigError on every rank unless all ranks have the same fingerprint and version of NCCL.
  void agree_on(Fingerprint fingerprint) {
    fingerprint.add("nccl", detail::nccl_version());
    agree(bootstrap_, fingerprint);
  }

  /// Enqueues the sums over ranks, in place.
  void sum(void* values, std::int64_t count, ncclDataType_t type, const detail::NcclCall& what) {
    comm_->call(what, [&](ncclComm_t comm) {
      return ncclAllReduce(values, values, static_cast<std::size_t>(count), type, ncclSum, comm, stream());
    });
  }

  /// GPU memory that lives until `start_anew` or the destructor, zeroed on the stream.
  std::byte* allocate(std::size_t bytes) {
    void* p = nullptr;
    device::check(cudaMalloc(&p, bytes), "allocate memory for exchanges");
    memory_.emplace_back(static_cast<std::byte*>(p));
    device::check(cudaMemsetAsync(p, 0, bytes, stream()), "clear memory");
    return memory_.back().get();
  }
  /// Waits for all enqueued work, deregisters registered memory and frees allocated memory.
  void start_anew() {
    if (!mappings_.empty() || !memory_.empty()) await_all();
    unregister();
    memory_.clear();
  }
  /// Registers memory with NCCL if the options ask for it: as windows if it is from NcclMemory and NCCL has
  /// windows, else as buffers of each rank. Either all ranks register all pieces, each piece alike, or none
  /// registers any, because NCCL must not get registered memory on one rank and unregistered memory on
  /// another. Memory that NCCL refuses to register is exchanged as it is. The ranks of all groups call it
  /// together.
  void register_memory(std::initializer_list<std::span<std::byte>> pieces);

  /// Copies bytes from the GPU after all work enqueued on the stream `behind`. The copy itself cannot be
  /// polled, so it begins when that work is done.
  void take_out(void* to, const void* from, std::size_t bytes, const detail::NcclCall& what,
                cudaStream_t behind) {
    device::check(cudaEventRecord(staging_done_.get(), behind), "mark a stream");
    comm_->await(staging_done_.get(), what);
    device::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, behind),
                  "copy numbers from a GPU");
    device::check(cudaStreamSynchronize(behind), "copy numbers from a GPU");
  }
  /// Copies bytes to the GPU while no work is under way. On return the caller may reuse `from`.
  void bring_in(void* to, const void* from, std::size_t bytes) {
    device::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream()),
                  "copy numbers to a GPU");
    device::check(cudaStreamSynchronize(stream()), "copy numbers to a GPU");
  }

  // Required by DeviceBuckets.
  void check() { comm_->check(); }
  void watch(DeviceWork work, std::size_t b) { comm_->expect(self().call_of(work, b)); }
  void await(std::size_t b, cudaEvent_t mark) {
    comm_->await(mark, {"exchange", static_cast<int>(b), Base::bytes_of(b)});
  }

 private:
  static constexpr std::size_t staging_bytes = std::size_t{1} << 20;

  const C& self() const { return static_cast<const C&>(*this); }

  void connect();
  void make_ready() {
    staging_done_ = device::make_event();
    void* p = nullptr;
    if (connects()) device::check(cudaMalloc(&p, staging_bytes), "allocate memory for exchanges");
    staging_ = OnDevice(static_cast<std::byte*>(p));
  }
  // Waits for all enqueued work.
  void await_all() {
    if (!connects()) return;
    device::check(cudaEventRecord(staging_done_.get(), stream()), "mark a stream");
    comm_->await(staging_done_.get(), {.operation = "end of the exchanges"});
  }
  void unregister() {
    for (; !mappings_.empty(); mappings_.pop_back()) comm_->forget_memory(mappings_.back());
    access_ = Access::plain;
  }
  // The numbers of all ranks, rank by rank.
  std::vector<std::uint8_t> of_all(std::span<const std::uint8_t> mine) {
    std::vector<std::uint8_t> all(mine.size() * static_cast<std::size_t>(size()));
    bootstrap_.all_gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
    return all;
  }
  void gather_on_host(std::span<const std::byte> mine, std::string_view operation);

  struct FreeOnDevice {
    void operator()(std::byte* p) const { cudaFree(p); }
  };
  using OnDevice = std::unique_ptr<std::byte, FreeOnDevice>;

  AnyBootstrap bootstrap_;
  std::vector<detail::Place> places_;  // of all ranks
  OnDevice staging_;
  std::vector<OnDevice> memory_;
  device::Event staging_done_;
  std::unique_ptr<detail::Communicator> comm_;
  std::vector<detail::NcclMapping> mappings_;
  Access access_ = Access::plain;   // of all registered memory
  std::vector<std::byte> on_host_;  // the gathered bytes
};

template <class C, memory::Space S, bool sharded>
NcclExchange<C, S, sharded>::NcclExchange(const NcclExchange& whole, int color)
    : bootstrap_(whole.bootstrap_) {
  if (color < 0) fail<ConfigError>("nccl: a group's color must be at least 0, not ", color);
  std::vector<int> colors(static_cast<std::size_t>(whole.size())), members;
  bootstrap_.all_gather(std::as_bytes(std::span(&color, 1)), std::as_writable_bytes(std::span(colors)));
  for (std::size_t r = 0; r < colors.size(); ++r)
    if (colors[r] == color) {
      members.push_back(static_cast<int>(r));
      places_.push_back(whole.places_[r]);
    }
  bootstrap_ = whole.bootstrap_.group(members);
  whole.comm_->enter();
  comm_ = std::make_unique<detail::Communicator>(bootstrap_, places_, whole.options());
  if (whole.connects()) {
    const ncclComm_t made = whole.comm_->split({.operation = "split"}, color, whole.rank(), comm_->config());
    comm_->start({.operation = "split"}, [&](ncclComm_t& comm) {
      comm = made;
      return ncclInProgress;
    });
  }
  make_ready();
}

template <class C, memory::Space S, bool sharded>
void NcclExchange<C, S, sharded>::connect() {
  ncclUniqueId id{};
  if (rank() == 0)
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
      fail<ConfigError>("nccl: could not make the id of a world: ", ncclGetErrorString(result));
  bootstrap_.broadcast(std::as_writable_bytes(std::span(&id, 1)));
  try {
    ncclConfig_t config = comm_->config();
    comm_->start({.operation = "start"}, [&](ncclComm_t& made) {
      return ncclCommInitRankConfig(&made, size(), id, rank(), &config);
    });
  } catch (const CommError&) {
    for (int b = 0; b < size(); ++b)
      for (int a = 0; a < b; ++a)
        if (const auto& place = places_[static_cast<std::size_t>(a)];
            place.shares_gpu(places_[static_cast<std::size_t>(b)]))
          fail<ConfigError>("nccl: ranks ", bootstrap_.in_world(a), " and ", bootstrap_.in_world(b),
                            " both use the GPU at ", place.gpu.data(), " of ", place.host.name.data(),
                            ", but NCCL needs a separate GPU for each rank; choose GPUs by local rank, or "
                            "start fewer ranks on that host");
    throw;
  }
}

template <class C, memory::Space S, bool sharded>
void NcclExchange<C, S, sharded>::register_memory(std::initializer_list<std::span<std::byte>> pieces) {
  if ((bootstrap_.alone() && !connects()) || !options().register_arenas) return;
  const bool has_windows = detail::nccl_version() >= detail::nccl_version_of_windows;
  std::vector<std::uint8_t> can, accesses;
  for (const std::span<std::byte> piece : pieces)
    can.push_back(has_windows && detail::NcclMemory::of_process().holds(piece) ? 1 : 0);
  const std::size_t count = pieces.size();
  const std::vector<std::uint8_t> all_can = of_all(can);
  for (std::size_t i = 0; i < count; ++i) {
    bool windows = true;
    for (std::size_t at = i; at < all_can.size(); at += count) windows = windows && all_can[at] != 0;
    const std::span<std::byte> piece = pieces.begin()[i];
    detail::NcclMapping mapping = windows ? comm_->register_window(piece) : detail::NcclMapping();
    if (mapping.access == Access::plain) mapping = comm_->register_memory(piece);
    mappings_.push_back(mapping);
    accesses.push_back(static_cast<std::uint8_t>(mapping.access));
  }
  const std::vector<std::uint8_t> all = of_all(accesses);
  std::uint8_t least = static_cast<std::uint8_t>(Access::symmetric);
  for (std::size_t i = 0; i < all.size(); ++i)
    least = all[i] == accesses[i % count] ? std::min(least, all[i]) : std::uint8_t{0};
  if (least == 0) return unregister();
  access_ = static_cast<Access>(least);
}

// Gathers the bytes of all ranks into on_host_ of every rank, through GPU memory.
template <class C, memory::Space S, bool sharded>
void NcclExchange<C, S, sharded>::gather_on_host(std::span<const std::byte> mine,
                                                 std::string_view operation) {
  const detail::NcclCall what{.operation = operation, .bytes = mine.size()};
  std::byte* const own = staging_.get() + static_cast<std::size_t>(rank()) * mine.size();
  comm_->check();
  cudaStream_t beside{};
  comm_->call_for_numbers(what, [&](ncclComm_t comm, cudaStream_t stream) {
    beside = stream;
    device::check(cudaMemcpyAsync(own, mine.data(), mine.size(), cudaMemcpyHostToDevice, stream),
                  "copy numbers to a GPU");
    return ncclAllGather(own, staging_.get(), mine.size(), ncclUint8, comm, stream);
  });
  on_host_.resize(mine.size() * static_cast<std::size_t>(size()));
  take_out(on_host_.data(), staging_.get(), on_host_.size(), what, beside);
  Base::count(on_host_.size(), 1);
}

template <class C, memory::Space S, bool sharded>
void NcclExchange<C, S, sharded>::all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
  if (!connects()) return;
  const std::size_t element = size_of(reduction.type);
  const auto most = static_cast<std::int64_t>(staging_bytes / element) / size();
  auto* at = static_cast<std::byte*>(values);
  std::vector<const void*> sources(static_cast<std::size_t>(size()));
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t piece = std::min(count - done, most);
    const std::size_t bytes = static_cast<std::size_t>(piece) * element;
    gather_on_host({at, bytes}, "all-reduce of host memory");
    detail::fold_gathered(at, on_host_.data(), piece, reduction, sources);
    done += piece;
    at += bytes;
  }
}

template <class C, memory::Space S, bool sharded>
void NcclExchange<C, S, sharded>::broadcast(void* data, std::size_t bytes, int root) {
  if (root < 0 || root >= size()) fail<ConfigError>("broadcast from rank ", root, " in a world of ", size());
  if (!connects()) return;
  comm_->check();
  auto* at = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, staging_bytes);
    if (rank() == root)
      device::check(cudaMemcpyAsync(staging_.get(), at + done, piece, cudaMemcpyHostToDevice, stream()),
                    "copy numbers to a GPU");
    const detail::NcclCall what{.operation = "broadcast", .bytes = piece};
    comm_->call(what, [&](ncclComm_t comm) {
      return ncclBroadcast(staging_.get(), staging_.get(), piece, ncclUint8, root, comm, stream());
    });
    take_out(at + done, staging_.get(), piece, what, stream());
    Base::count(piece, 1);
    done += piece;
  }
}

}  // namespace convoy::comm
