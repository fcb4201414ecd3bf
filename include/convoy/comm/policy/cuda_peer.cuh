// CudaPeer: gradients of the GPUs of one node, by convoy's own kernels over peer memory. Buckets travel on a
// stream of their own during backward; the stream that computes waits for each bucket in turn, and the host
// waits for nothing.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include <convoy/comm/bootstrap/agree.hpp>
#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/numbers.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/defaults.hpp>
#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/peer/link.cuh>
#include <convoy/core/clock.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/space.hpp>

namespace convoy::comm {

/// The Comm behind CudaPeer and Sharded<CudaPeer>, for arenas in a space of CUDA memory whose `stream()` is
/// the stream that computes; the arenas come from cudaMalloc. Ranks are processes, each with a GPU, or
/// threads of one process. Not to be used by several threads at a time.
///
/// `finish` returns when all is enqueued; with an observer it waits for each bucket, so that the moments are
/// true. Sums are taken in the order of ranks, whatever the buckets: every rank gets the same bits, which are
/// those of Reproducible on the host. A step may be captured in a CUDA graph where nobody observes. Numbers
/// of the host go through the bootstrap, `broadcast` through the GPUs.
///
/// Kernels of different ranks wait for one another. Ranks that share a GPU, for tests, are threads of one
/// process: processes take turns on a GPU, in slices of time. The blocks of an exchange (PeerOptions) of all
/// of them fit on the GPU together; CUDA_DEVICE_MAX_CONNECTIONS=32 gives each stream a queue of its own, and
/// CUDA_MODULE_LOADING=EAGER loads kernels before others wait; and while an exchange is under way no rank
/// calls what waits for the whole GPU, such as cudaFree. Who waits in vain does so up to the deadline.
template <memory::Space S, bool sharded>
class BasicCudaPeer : public Defaults<BasicCudaPeer<S, sharded>> {
  static_assert(
      requires(S & space) {
        { space.stream() } -> std::convertible_to<cudaStream_t>;
      },
      "convoy: CudaPeer exchanges arenas of a space of CUDA memory, which has a stream(), such as "
      "memory::Device");

 public:
  using Options = PeerOptions;
  using Space = S;

  /// Whether the calls of a step may be captured in a CUDA graph.
  static constexpr bool capturable = true;

  static constexpr std::string_view policy() { return sharded ? "sharded cuda-peer" : "cuda-peer"; }

  /// All ranks of the bootstrap make one. The thread's current GPU (device::use) becomes this rank's.
  template <Bootstrap B>
  explicit BasicCudaPeer(B bootstrap, const Options& options = {}) : bootstrap_(std::move(bootstrap)) {
    link_ = std::make_unique<peer::Link>(bootstrap_, options);
    if (size() == 1) return;
    void* p = nullptr;
    device::check(cudaMalloc(&p, relay_bytes), "allocate memory for exchanges");
    relay_memory_ = std::shared_ptr<void>(p, [](void* it) { cudaFree(it); });
    relay_ = peer::Window(bootstrap_, p, relay_memory_);
  }

  int rank() const { return link_->rank(); }
  int size() const { return link_->size(); }
  const Options& options() const { return link_->options(); }
  std::pmr::memory_resource* memory() { return std::pmr::new_delete_resource(); }
  void observe(Observer observer) { observer_ = observer; }
  /// A message is an exchange; the bytes are those that a ring sends.
  Traffic traffic() const { return traffic_; }

  /// The part of each bucket that this rank updates, if it is sharded: block `rank` of `size` blocks of equal
  /// whole cache lines; what is left over is the last rank's too.
  std::vector<Range> updates(std::span<const Range> buckets) const {
    if constexpr (!sharded) return {buckets.begin(), buckets.end()};
    std::vector<Range> mine;
    for (const Range& b : buckets)
      if (const Range r = own_of(b); !r.empty()) mine.push_back(r);
    return mine;
  }

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready ready = {});
  void poll() { link_->check(); }
  void finish(Update update);

  /// Combines the ranks' numbers in the order of ranks. The ranks of all groups of the bootstrap call it
  /// together.
  template <class E, OperationTag O>
  void all_reduce(std::span<E> values, O op) {
    all_reduce(values.data(), static_cast<std::int64_t>(values.size()), reduction<E>(op));
  }
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
    link_->check();
    all_reduce_numbers(bootstrap_, values, count, reduction);
  }
  template <class E>
  void broadcast(std::span<E> values, int root) {
    static_assert(std::is_trivially_copyable_v<E>,
                  "convoy: only trivially copyable elements can be broadcast");
    broadcast(static_cast<void*>(values.data()), values.size_bytes(), root);
  }
  void broadcast(void* data, std::size_t bytes, int root);
  void barrier() {
    link_->check();
    if (size() > 1) bootstrap_.all_gather({}, {});
  }

  /// For an exchange that does something of its own between the two halves of a bucket, and calls no
  /// `finish`: a mark behind the sums of this rank's part, which `begin` has asked for; the second half,
  /// which gives the ranks each other's parts of the layout's parameters, behind what the space has enqueued,
  /// and a mark behind that; and the end of the step.
  Ready summed(int bucket) const { return {reduced_[static_cast<std::size_t>(bucket)].get()}; }
  Ready gather(int bucket) {
    gather(static_cast<std::size_t>(bucket));
    return {gathered_[static_cast<std::size_t>(bucket)].get()};
  }
  void end_step() { begun_.assign(begun_.size(), false); }

 private:
  static constexpr std::size_t relay_bytes = std::size_t{1} << 20;

  Range own_of(const Range& bucket) const {
    const Range own = link_->own_of(bucket.size());
    return {bucket.begin + own.begin, bucket.begin + own.end};
  }
  cudaStream_t stream() const { return link_->stream(); }
  void count(std::size_t bytes, int passes) {
    if (size() == 1) return;
    ++traffic_.messages;
    traffic_.bytes += static_cast<std::int64_t>(bytes) * passes * (size() - 1) / size();
  }
  std::size_t bytes_of(std::size_t b) const {
    return static_cast<std::size_t>(buckets_[b].size()) * sizeof(float);
  }
  // What is enqueued from now on begins behind what the stream has done.
  static void follow(cudaStream_t next, cudaEvent_t mark, cudaStream_t stream) {
    device::check(cudaEventRecord(mark, stream), "mark a stream");
    device::check(cudaStreamWaitEvent(next, mark, 0), "wait for a stream");
  }

  void reduce(std::size_t b);
  void gather(std::size_t b);
  void arrive(std::size_t b);
  void decide(Update update);

  AnyBootstrap bootstrap_;
  device::Event computed_, decided_;
  std::vector<device::Event> reduced_, gathered_;  // by bucket
  std::shared_ptr<void> relay_memory_;
  peer::Window relay_, gradients_, parameters_;
  S* space_ = nullptr;
  Layout layout_;
  std::vector<Range> buckets_;
  std::vector<bool> begun_;
  std::vector<Clock::time_point> begun_at_;
  Observer observer_;
  Traffic traffic_;
  std::unique_ptr<peer::Link> link_;  // last: it ends what uses the windows
};

/// All-reduce over peer memory: every rank updates all parameters. `CudaPeer<memory::Device>`.
template <memory::Space S>
using CudaPeer = BasicCudaPeer<S, false>;

namespace detail {

template <class A>
struct HalvesFrom;
/// `Sharded<CudaPeer<S>>`: reduce-scatter, each rank's update of its own part, all-gather.
template <memory::Space S>
struct HalvesFrom<BasicCudaPeer<S, false>> {
  using Sharded = BasicCudaPeer<S, true>;
};

}  // namespace detail

template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::open(const Fingerprint& fingerprint, const Layout& layout) {
  if (layout.space == nullptr)
    fail<ConfigError>("cuda-peer: the layout does not say in which object of the space ", S::name,
                      " the arenas lie");
  if (sharded && layout.parameters.size() < layout.gradients.size())
    fail<ConfigError>("sharded needs a parameter for each of the ", layout.gradients.size(),
                      " gradients, not ", layout.parameters.size());
  detail::check(layout);
  Fingerprint all = fingerprint;
  all.add("comm", policy());
  all.add("comm", options());
  all.add("gradients", layout.gradients.size());
  all.add("parameters", layout.parameters.size());
  detail::add_buckets(all, layout);
  agree(bootstrap_, all);

  link_->synchronize();
  space_ = static_cast<S*>(layout.space);
  layout_ = layout;
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  begun_.assign(buckets_.size(), false);
  begun_at_.assign(buckets_.size(), {});
  computed_ = device::make_event();
  decided_ = device::make_event();
  while (reduced_.size() < buckets_.size()) reduced_.push_back(device::make_event());
  while (sharded && gathered_.size() < buckets_.size()) gathered_.push_back(device::make_event());
  if (size() == 1) return;
  gradients_ = peer::Window(bootstrap_, layout.gradients.data());
  if constexpr (sharded) parameters_ = peer::Window(bootstrap_, layout.parameters.data());
}

template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::begin(int bucket, Ready ready) {
  if (bucket < 0 || static_cast<std::size_t>(bucket) >= buckets_.size())
    fail("there is no bucket ", bucket, "; ", buckets_.size(), " were opened");
  const auto b = static_cast<std::size_t>(bucket);
  if (begun_[b]) fail("bucket ", bucket, " was begun twice in one step");
  begun_[b] = true;
  if (observer_.call != nullptr) begun_at_[b] = Clock::now();
  if (ready.event != nullptr)
    device::check(cudaStreamWaitEvent(stream(), static_cast<cudaEvent_t>(ready.event), 0),
                  "wait for a bucket's gradients");
  reduce(b);
}

// The sums of a bucket: on every rank, or of each rank's own part.
template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::reduce(std::size_t b) {
  const Range r = buckets_[b];
  const auto bucket = static_cast<int>(b);
  if (!r.empty()) {
    if constexpr (sharded)
      link_->template reduce_scatter<float>(gradients_, r.begin, r.size(),
                                            {peer::Kind::reduce_scatter, bucket});
    else
      link_->template all_reduce<float>(gradients_, r.begin, r.size(), {peer::Kind::all_reduce, bucket});
    count(bytes_of(b), sharded ? 1 : 2);
  }
  device::check(cudaEventRecord(reduced_[b].get(), stream()), "mark a stream");
}

// Every rank gets the parameters that each has updated.
template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::gather(std::size_t b) {
  const Range r = buckets_[b];
  follow(stream(), computed_.get(), space_->stream());
  if (!r.empty()) {
    link_->template all_gather<float>(parameters_, r.begin, r.size(),
                                      {peer::Kind::all_gather, static_cast<int>(b)});
    count(bytes_of(b), 1);
  }
  device::check(cudaEventRecord(gathered_[b].get(), stream()), "mark a stream");
}

// What computes is behind the sums of a bucket from here on.
template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::arrive(std::size_t b) {
  device::check(cudaStreamWaitEvent(space_->stream(), reduced_[b].get(), 0), "wait for a bucket's sums");
  if (observer_.call == nullptr) return;
  device::check(cudaEventSynchronize(reduced_[b].get()), "finish an exchange");
  link_->check();
  observer_.call(observer_.context, {static_cast<int>(b), begun_at_[b], Clock::now()});
}

// Every rank sees the sums of its own parts alone, so the ranks add up what each has found before any of them
// decides; the host sees none of it.
template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::decide(Update update) {
  const auto arrived = [&](std::size_t b) {
    if (const Range mine = own_of(buckets_[b]); !mine.empty()) update.arrived(mine, 1.0f);
  };
  const auto add_up = [&] {
    const std::span<double> partial = update.partial();
    follow(stream(), computed_.get(), space_->stream());
    link_->all_reduce(partial.data(), static_cast<std::int64_t>(partial.size()), {peer::Kind::rule});
    follow(space_->stream(), decided_.get(), stream());
    count(partial.size_bytes(), 2);
  };
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    arrive(b);
    arrived(b);
  }
  add_up();
  while (update.decide() == Decision::again) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) arrived(b);
    add_up();
  }
}

template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::finish(Update update) {
  link_->check();
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (!begun_[b]) begin(static_cast<int>(b), space_->mark());
  if constexpr (sharded) {
    const bool decides = update.decides();
    if (decides) decide(update);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      if (!decides) arrive(b);
      if (const Range mine = own_of(buckets_[b]); !mine.empty()) update(mine, 1.0f);
      gather(b);
    }
    if (!buckets_.empty())
      device::check(cudaStreamWaitEvent(space_->stream(), gathered_[buckets_.size() - 1].get(), 0),
                    "wait for the parameters of others");
  } else {
    const Arrivals arrivals(update);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      arrive(b);
      arrivals.arrived(buckets_[b]);
    }
    arrivals.all(buckets_);
  }
  end_step();
}

template <memory::Space S, bool sharded>
void BasicCudaPeer<S, sharded>::broadcast(void* data, std::size_t bytes, int root) {
  if (root < 0 || root >= size()) fail<ConfigError>("broadcast from rank ", root, " in a world of ", size());
  link_->check();
  if (size() == 1) return;
  auto* at = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t piece = std::min(bytes - done, relay_bytes);
    if (rank() == root)
      device::check(cudaMemcpyAsync(relay_memory_.get(), at + done, piece, cudaMemcpyHostToDevice, stream()),
                    "copy numbers to a GPU");
    link_->broadcast(relay_, 0, static_cast<std::int64_t>(piece), root);
    device::check(cudaMemcpyAsync(at + done, relay_memory_.get(), piece, cudaMemcpyDeviceToHost, stream()),
                  "copy numbers from a GPU");
    link_->synchronize();
    count(piece, 1);
    done += piece;
  }
}

}  // namespace convoy::comm
