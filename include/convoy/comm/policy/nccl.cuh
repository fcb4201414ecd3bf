// Nccl: gradients of GPUs, by NVIDIA's library.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include <convoy/comm/bootstrap/agree.hpp>
#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/peer/place.cuh>
#include <convoy/comm/policy/device_buckets.cuh>
#include <convoy/comm/policy/nccl_communicator.cuh>
#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/space.hpp>

namespace convoy::comm {

/// The Comm behind Nccl and Sharded<Nccl>, for arenas in a space of CUDA memory whose `stream()` is the
/// stream that computes. Not to be used by several threads at a time.
///
/// `finish` returns when all is enqueued; with an observer it waits for each bucket, so that the moments are
/// true. Sums of gradients are NCCL's own, in an order that depends on the world and the sizes alone; every
/// rank gets the same bits. `all_reduce` and `broadcast` are for a few numbers of the host, and for the
/// parameters at the start.
template <memory::Space S, bool sharded>
class BasicNccl : public DeviceBuckets<BasicNccl<S, sharded>, S, sharded> {
  using Base = DeviceBuckets<BasicNccl, S, sharded>;
  friend Base;

 public:
  using Options = NcclOptions;

  /// Whether the calls of a step may be captured in a CUDA graph. NCCL's collectives may; these calls may
  /// not, since NCCL begins what a non-blocking communicator is asked for on a thread of its own, and since a
  /// replayed graph would pass no one who watches over it. A step's graphs end where its marks are.
  static constexpr bool capturable = false;

  static constexpr std::string_view policy() { return sharded ? "sharded nccl" : "nccl"; }

  /// All ranks of the bootstrap make one. The thread's current GPU (device::use) becomes this rank's.
  template <Bootstrap B>
  explicit BasicNccl(B bootstrap, const Options& options = {}) : bootstrap_(std::move(bootstrap)) {
    places_.resize(static_cast<std::size_t>(bootstrap_.size()));
    const detail::Place mine = detail::Place::here();
    bootstrap_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(places_)));
    comm_ = std::make_unique<detail::Communicator>(bootstrap_.rank(), bootstrap_.size(), options);
    if (size() > 1) connect();
    make_ready();
  }
  BasicNccl(BasicNccl&&) noexcept = default;
  BasicNccl& operator=(BasicNccl&&) = delete;
  ~BasicNccl() {
    if (!comm_ || !comm_->healthy()) return;
    try {
      await_all();
      forget_arenas();
    } catch (...) {  // the communicator has been ended
    }
  }

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  const Options& options() const { return comm_->options(); }
  void open(const Fingerprint& fingerprint, const Layout& layout);

  using Base::all_reduce;
  using Base::broadcast;
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction);
  void broadcast(void* data, std::size_t bytes, int root);
  void barrier() {
    constexpr std::array<std::byte, 1> mine{};
    if (size() > 1) gather_on_host(mine, "barrier");
  }

  /// A world of the ranks that give the same color, in the order of their ranks here. All ranks call it,
  /// between steps; so are `open` and the making of groups of groups called: by the ranks of all groups
  /// together.
  BasicNccl split(int color) const { return BasicNccl(*this, color); }
  /// The ranks of this rank's host.
  BasicNccl within_host() const { return split(first_on(rank())); }
  /// The ranks that are as many-eth on their hosts as this rank is on its own.
  BasicNccl across_hosts() const {
    int before = 0;
    for (int r = 0; r < rank(); ++r) before += first_on(r) == first_on(rank()) ? 1 : 0;
    return split(before);
  }

 private:
  static constexpr std::size_t staging_bytes = std::size_t{1} << 20;
  static constexpr std::int64_t grain = 16;  // floats of a cache line

  // A group of the ranks of `whole`.
  BasicNccl(const BasicNccl& whole, int color) : bootstrap_(whole.bootstrap_) {
    if (color < 0) fail<ConfigError>("nccl: a group's color is a number from 0, not ", color);
    std::vector<int> colors(static_cast<std::size_t>(whole.size())), members;
    bootstrap_.all_gather(std::as_bytes(std::span(&color, 1)), std::as_writable_bytes(std::span(colors)));
    for (std::size_t r = 0; r < colors.size(); ++r)
      if (colors[r] == color) {
        members.push_back(static_cast<int>(r));
        places_.push_back(whole.places_[r]);
      }
    bootstrap_ = whole.bootstrap_.group(members);
    comm_ = std::make_unique<detail::Communicator>(bootstrap_.rank(), bootstrap_.size(), whole.options());
    if (whole.size() > 1) {
      ncclComm_t made = nullptr;
      ncclConfig_t config = comm_->config();
      whole.comm_->call({.operation = "split"}, [&](ncclComm_t parent) {
        return ncclCommSplit(parent, color, whole.rank(), &made, &config);
      });
      comm_->start({.operation = "split"}, [&](ncclComm_t& comm) {
        comm = made;
        return ncclInProgress;
      });
    }
    make_ready();
  }

  int first_on(int rank) const {
    int first = 0;
    while (!places_[static_cast<std::size_t>(first)].shares_host(places_[static_cast<std::size_t>(rank)]))
      ++first;
    return first;
  }
  void connect();
  void make_ready() {
    staging_done_ = device::make_event();
    void* p = nullptr;
    if (size() > 1) device::check(cudaMalloc(&p, staging_bytes), "allocate memory for exchanges");
    staging_ = std::unique_ptr<std::byte, FreeOnDevice>(static_cast<std::byte*>(p));
  }

  using Base::bucket;
  using Base::buckets;
  using Base::bytes_of;
  using Base::count;
  using Base::layout;

  // Of a sharded bucket: blocks of equal whole cache lines, as NCCL wants them, and what is left over, which
  // is the last rank's too.
  std::int64_t block_of(const Range& bucket) const {
    const std::int64_t lines = bucket.size() / (grain * size());
    return lines * grain;
  }
  Range own_of(const Range& bucket) const {
    const std::int64_t block = block_of(bucket);
    const std::int64_t begin = bucket.begin + rank() * block;
    return {begin, rank() == size() - 1 ? bucket.end : begin + block};
  }

  float* gradients(std::int64_t at) const { return layout().gradients.data() + at; }
  float* parameters(std::int64_t at) const { return layout().parameters.data() + at; }
  cudaStream_t stream() const { return comm_->stream(); }

  // What DeviceBuckets asks for.
  void check() { comm_->check(); }
  void enqueue_sums(std::size_t b);
  void enqueue_parameters(std::size_t b);
  void enqueue_sums(std::span<double> partial);
  detail::NcclCall call_of(DeviceWork work, std::size_t b) const {
    if (work == DeviceWork::rule) return {.operation = "all-reduce of a rule's sums"};
    const bool halved = work == DeviceWork::sums && sharded;
    return {work == DeviceWork::parameters ? "all-gather"
            : halved                       ? "reduce-scatter"
                                           : "all-reduce",
            static_cast<int>(b), bytes_of(b)};
  }
  void watch(DeviceWork work, std::size_t b, cudaEvent_t mark) {
    const std::size_t place = work == DeviceWork::sums         ? b
                              : work == DeviceWork::parameters ? buckets() + b
                                                               : 2 * buckets();
    comm_->expect(place, mark, call_of(work, b));
  }
  void await(std::size_t b, cudaEvent_t mark) {
    comm_->await(mark, {"exchange", static_cast<int>(b), bytes_of(b)});
  }

  // Nothing is under way from here on.
  void await_all() {
    if (size() == 1) return;
    device::check(cudaEventRecord(staging_done_.get(), stream()), "mark a stream");
    comm_->await(staging_done_.get(), {.operation = "end of the exchanges"});
  }
  void forget_arenas();

  void gather_on_host(std::span<const std::byte> mine, std::string_view operation);
  void take_out(void* to, const void* from, std::size_t bytes, const detail::NcclCall& what);

  struct FreeOnDevice {
    void operator()(std::byte* p) const { cudaFree(p); }
  };

  AnyBootstrap bootstrap_;
  std::vector<detail::Place> places_;  // of all ranks
  std::unique_ptr<std::byte, FreeOnDevice> staging_;
  device::Event staging_done_;
  std::unique_ptr<detail::Communicator> comm_;  // ends before the events that are watched
  std::vector<void*> registered_;
  std::vector<std::byte> on_host_;  // what was gathered
};

/// All-reduce by NCCL: every rank updates all parameters. `Nccl<memory::Device>`.
template <memory::Space S>
using Nccl = BasicNccl<S, false>;

namespace detail {

template <class A>
struct HalvesFrom;
/// `Sharded<Nccl<S>>`: reduce-scatter, each rank's update of its own part, all-gather.
template <memory::Space S>
struct HalvesFrom<BasicNccl<S, false>> {
  using Sharded = BasicNccl<S, true>;
};

}  // namespace detail

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::connect() {
  ncclUniqueId id{};
  if (rank() == 0)
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
      fail<ConfigError>("nccl: could not begin a world: ", ncclGetErrorString(result));
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
          fail<ConfigError>("nccl: ranks ", a, " and ", b, " both use the GPU at ", place.gpu.data(), " of ",
                            place.host.data(),
                            ", and NCCL wants a GPU for each rank; choose it by the rank's "
                            "number on its host, or start fewer ranks there");
    throw;
  }
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::open(const Fingerprint& fingerprint, const Layout& layout) {
  Fingerprint all = Base::described(fingerprint, layout);
  int version = 0;
  ncclGetVersion(&version);
  all.add("nccl", version);
  agree(bootstrap_, all);

  if (!registered_.empty()) await_all();
  forget_arenas();
  Base::take(layout);
  if (size() == 1 || !options().register_arenas) return;
  // All ranks or none: NCCL may not be given registered memory on one rank and other memory on another.
  const std::span<float> arenas[] = {layout.gradients, layout.parameters};
  std::uint8_t mine = 1;
  for (std::size_t i = 0; i < (sharded ? 2u : 1u); ++i) {
    registered_.push_back(comm_->register_memory(arenas[i].data(), arenas[i].size_bytes()));
    if (registered_.back() == nullptr) mine = 0;
  }
  std::vector<std::uint8_t> everyone(static_cast<std::size_t>(size()));
  bootstrap_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(everyone)));
  if (std::count(everyone.begin(), everyone.end(), 0) > 0) forget_arenas();
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::forget_arenas() {
  for (void* handle : registered_) comm_->forget_memory(handle);
  registered_.clear();
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::enqueue_sums(std::size_t b) {
  const Range r = bucket(b);
  const detail::NcclCall what = call_of(DeviceWork::sums, b);
  if constexpr (sharded) {
    const std::int64_t block = block_of(r), rest = r.begin + block * size();
    const auto elements = static_cast<std::size_t>(block);
    comm_->group(what, [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      if (block > 0)
        result = ncclReduceScatter(gradients(r.begin), gradients(r.begin + rank() * block), elements,
                                   ncclFloat32, ncclSum, comm, stream());
      if (rest < r.end && (result == ncclSuccess || result == ncclInProgress))
        result = ncclReduce(gradients(rest), gradients(rest), static_cast<std::size_t>(r.end - rest),
                            ncclFloat32, ncclSum, size() - 1, comm, stream());
      return result;
    });
  } else {
    comm_->call(what, [&](ncclComm_t comm) {
      return ncclAllReduce(gradients(r.begin), gradients(r.begin), static_cast<std::size_t>(r.size()),
                           ncclFloat32, ncclSum, comm, stream());
    });
  }
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::enqueue_parameters(std::size_t b) {
  const Range r = bucket(b);
  const std::int64_t block = block_of(r), rest = r.begin + block * size();
  comm_->group(call_of(DeviceWork::parameters, b), [&](ncclComm_t comm) {
    ncclResult_t result = ncclSuccess;
    if (block > 0)
      result = ncclAllGather(parameters(r.begin + rank() * block), parameters(r.begin),
                             static_cast<std::size_t>(block), ncclFloat32, comm, stream());
    if (rest < r.end && (result == ncclSuccess || result == ncclInProgress))
      result = ncclBroadcast(parameters(rest), parameters(rest), static_cast<std::size_t>(r.end - rest),
                             ncclFloat32, size() - 1, comm, stream());
    return result;
  });
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::enqueue_sums(std::span<double> partial) {
  comm_->call(call_of(DeviceWork::rule, 0), [&](ncclComm_t comm) {
    return ncclAllReduce(partial.data(), partial.data(), partial.size(), ncclFloat64, ncclSum, comm,
                         stream());
  });
}

// Each rank's bytes in on_host_ of every rank, through memory of the GPU.
template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::gather_on_host(std::span<const std::byte> mine, std::string_view operation) {
  const detail::NcclCall what{.operation = operation, .bytes = mine.size()};
  std::byte* const own = staging_.get() + static_cast<std::size_t>(rank()) * mine.size();
  comm_->check();
  device::check(cudaMemcpyAsync(own, mine.data(), mine.size(), cudaMemcpyHostToDevice, stream()),
                "copy numbers to a GPU");
  comm_->call(what, [&](ncclComm_t comm) {
    return ncclAllGather(own, staging_.get(), mine.size(), ncclUint8, comm, stream());
  });
  on_host_.resize(mine.size() * static_cast<std::size_t>(size()));
  take_out(on_host_.data(), staging_.get(), on_host_.size(), what);
  count(on_host_.size(), 1);
}

// The copy itself cannot be polled, so it begins when there is nothing left to wait for.
template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::take_out(void* to, const void* from, std::size_t bytes,
                                     const detail::NcclCall& what) {
  device::check(cudaEventRecord(staging_done_.get(), stream()), "mark a stream");
  comm_->await(staging_done_.get(), what);
  device::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream()),
                "copy numbers from a GPU");
  device::check(cudaStreamSynchronize(stream()), "copy numbers from a GPU");
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
  if (size() == 1) return;
  const std::size_t element = size_of(reduction.type);
  const auto most = static_cast<std::int64_t>(staging_bytes / element) / size();
  auto* at = static_cast<std::byte*>(values);
  std::vector<const void*> sources(static_cast<std::size_t>(size()));
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t piece = std::min(count - done, most);
    const std::size_t bytes = static_cast<std::size_t>(piece) * element;
    gather_on_host({at, bytes}, "all-reduce of numbers of the host");
    for (std::size_t r = 0; r < sources.size(); ++r) sources[r] = on_host_.data() + r * bytes;
    void* into = at;
    reduction.fold(&into, 1, sources.data(), size(), piece,
                   reduction.op == Op::mean && reduction.divides ? 1.0 / size() : 1, false);
    done += piece;
    at += bytes;
  }
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::broadcast(void* data, std::size_t bytes, int root) {
  if (root < 0 || root >= size()) fail<ConfigError>("broadcast from rank ", root, " in a world of ", size());
  if (size() == 1) return;
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
    take_out(at + done, staging_.get(), piece, what);
    count(piece, 1);
    done += piece;
  }
}

}  // namespace convoy::comm
