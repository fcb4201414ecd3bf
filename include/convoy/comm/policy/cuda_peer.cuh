// CudaPeer: exchanges of gradients among the GPUs of one node, by convoy's own kernels over peer memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include <cuda_runtime.h>

#include <convoy/comm/bootstrap/agree.hpp>
#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/numbers.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/peer/link.cuh>
#include <convoy/comm/policy/device_buckets.cuh>
#include <convoy/core/error.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/space.hpp>

namespace convoy::comm {

/// Implements CudaPeer and Sharded<CudaPeer> for arenas in a space of CUDA memory whose `stream()` is the
/// compute stream; the arenas come from cudaMalloc. Ranks are processes, each with a GPU, or threads of one
/// process. Not thread-safe.
///
/// `finish` returns when all work is enqueued; with an observer it then waits for the exchange of each
/// bucket, whose times are read on the GPU. Sums are taken in the order of ranks, whatever the buckets: every
/// rank gets the same bits, which are those of Reproducible on the host. Host numbers are exchanged through
/// the bootstrap, `broadcast` goes through the GPUs.
///
/// Kernels of different ranks wait for one another, up to the deadline. Ranks that are threads of one process
/// meet on the host around each exchange (bootstrap/gate.cuh), so that their calls in between may wait for
/// the GPU. Graphs can replay steps only if the ranks are processes, because threads would not meet in a
/// graph. Ranks that share a GPU, for tests, should be threads; device::let_ranks_share_gpus prepares a
/// program for this. A GPU runs processes in turn, so each time that ranks of different processes wait for
/// one another takes whole time slices.
///
/// The host learns late that a wait has failed. Updates that are enqueued by then use gradients that are not
/// sums, so after a CommError this rank may hold other values than the others.
template <memory::Space S, bool sharded>
class BasicCudaPeer : public DeviceBuckets<BasicCudaPeer<S, sharded>, S, sharded> {
  using Base = DeviceBuckets<BasicCudaPeer, S, sharded>;
  friend Base;

 public:
  using Options = PeerOptions;

  static constexpr std::string_view policy() { return sharded ? "sharded cuda-peer" : "cuda-peer"; }

  /// All ranks of the bootstrap construct one together. The thread's current GPU (device::use) becomes this
  /// rank's.
  template <Bootstrap B>
  explicit BasicCudaPeer(B bootstrap, const Options& options = {}) : bootstrap_(std::move(bootstrap)) {
    link_ = std::make_unique<peer::Link>(bootstrap_, options);
  }
  BasicCudaPeer(BasicCudaPeer&&) noexcept = default;
  BasicCudaPeer& operator=(BasicCudaPeer&&) = delete;
  ~BasicCudaPeer() { end(); }

  int rank() const { return link_->rank(); }
  int size() const { return link_->size(); }
  const Options& options() const { return link_->options(); }
  bool exchanges() const { return size() > 1; }
  bool repeats() const { return !Base::observed() && !link_->meets(); }
  void open(const Fingerprint& fingerprint, const Layout& layout);

  using Base::all_reduce;
  using Base::broadcast;
  /// The ranks of all groups of the bootstrap call it together.
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    link_->check();
    all_reduce_numbers(bootstrap_, values, count, reduction);
  }
  void broadcast(void* data, std::size_t bytes, int root);
  void barrier() {
    link_->check();
    if (size() > 1) bootstrap_.barrier();
  }
  void close() noexcept {
    try {
      Base::follow_space();  // a graph that the space has enqueued may contain exchanges
    } catch (...) {          // a stream that failed has no work to wait for
    }
    end();
    Base::forget();
  }

 private:
  void unmap() {
    gradients_ = peer::Window();
    parameters_ = peer::Window();
  }
  void end() noexcept {
    if (link_ != nullptr) link_->close([this] { unmap(); });
  }

  peer::Cuts cuts_of(std::size_t b) const {
    peer::Cuts cuts;
    std::copy(Base::cuts(b).begin(), Base::cuts(b).end(), cuts.at);
    return cuts;
  }
  cudaStream_t stream() const { return link_->stream(); }

  // Required by DeviceBuckets. The kernels have deadlines of their own.
  void check() { link_->check(); }
  void enqueue_sums(std::size_t b);
  void enqueue_parameters(std::size_t b);
  void enqueue_sums(std::span<double> partial) {
    link_->all_reduce(partial.data(), static_cast<std::int64_t>(partial.size()), {peer::Kind::rule});
  }
  void watch(DeviceWork, std::size_t) {}
  void await(std::size_t, cudaEvent_t mark) {
    device::check(cudaEventSynchronize(mark), "finish an exchange");
    link_->check();
  }

  AnyBootstrap bootstrap_;
  peer::Window gradients_, parameters_;
  std::unique_ptr<peer::Link> link_;
};

/// All-reduce over peer memory: every rank updates all parameters. `CudaPeer<memory::Device>`.
template <memory::Space S>
using CudaPeer = BasicCudaPeer<S, false>;

namespace detail {

template <class A>
struct HalvesFrom;
/// `Sharded<CudaPeer<S>>`: reduce-scatter, update of each rank's own part, all-gather.
template <memory::Space S>
struct HalvesFrom<BasicCudaPeer<S, false>> {
  using Sharded = BasicCudaPeer<S, true>;
};

}  // namespace detail

template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::open(const Fingerprint& fingerprint, const Layout& layout) {
  agree(bootstrap_, Base::described(fingerprint, layout));
  Base::follow_space();  // a graph that the space has enqueued may contain exchanges
  link_->synchronize();
  unmap();
  Base::take(layout);
  if (size() == 1) return;
  gradients_ = peer::Window(bootstrap_, layout.gradients.data());
  if constexpr (sharded) parameters_ = peer::Window(bootstrap_, layout.parameters.data());
}

template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::enqueue_sums(std::size_t b) {
  const Range& r = Base::bucket(b);
  const auto bucket = static_cast<int>(b);
  if constexpr (sharded)
    link_->template reduce_scatter<float>(gradients_, r.begin, cuts_of(b),
                                          {peer::Kind::reduce_scatter, bucket});
  else
    link_->template all_reduce<float>(gradients_, r.begin, r.size(), {peer::Kind::all_reduce, bucket});
}

template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::enqueue_parameters(std::size_t b) {
  link_->template all_gather<float>(parameters_, Base::bucket(b).begin, cuts_of(b),
                                    {peer::Kind::all_gather, static_cast<int>(b)});
}

template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::broadcast(void* data, std::size_t bytes, int root) {
  if (root < 0 || root >= size()) fail<ConfigError>("broadcast from rank ", root, " in a world of ", size());
  link_->check();
  if (size() == 1) return;
  Base::follow_space();
  auto* at = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, peer::Link::relay_bytes);
    if (rank() == root)
      device::check(cudaMemcpyAsync(link_->relay(), at + done, piece, cudaMemcpyHostToDevice, stream()),
                    "copy numbers to a GPU");
    link_->broadcast_relay(static_cast<std::int64_t>(piece), root);
    device::check(cudaMemcpyAsync(at + done, link_->relay(), piece, cudaMemcpyDeviceToHost, stream()),
                  "copy numbers from a GPU");
    link_->synchronize();
    Base::count(piece, 1);
    done += piece;
  }
}

}  // namespace convoy::comm
