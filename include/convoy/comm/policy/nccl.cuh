// Nccl: gradients of GPUs, by NVIDIA's library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

#include <nccl.h>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/policy/device_buckets.cuh>
#include <convoy/comm/policy/nccl_communicator.cuh>
#include <convoy/comm/policy/nccl_exchange.cuh>
#include <convoy/memory/space.hpp>

namespace convoy::comm {

/// The Comm behind Nccl and Sharded<Nccl>, for arenas in a space of CUDA memory whose `stream()` is the
/// stream that computes (policy/nccl_exchange.cuh). Sums of gradients are NCCL's own, in an order that
/// depends on the world and the sizes alone; every rank gets the same bits.
template <memory::Space S, bool sharded>
class BasicNccl : public NcclExchange<BasicNccl<S, sharded>, S, sharded> {
  using Base = NcclExchange<BasicNccl, S, sharded>;
  friend Base;
  friend DeviceBuckets<BasicNccl, S, sharded>;

 public:
  using Options = NcclOptions;
  using Base::rank;
  using Base::size;

  static constexpr std::string_view policy() { return sharded ? "sharded nccl" : "nccl"; }

  /// All ranks of the bootstrap make one. The thread's current GPU (device::use) becomes this rank's.
  template <Bootstrap B>
  explicit BasicNccl(B bootstrap, const Options& options = {}) : Base(std::move(bootstrap), options) {}

  void open(const Fingerprint& fingerprint, const Layout& layout) {
    Base::agree_on(Base::described(fingerprint, layout));
    Base::start_anew();
    Base::take(layout);
    const auto gradients = std::as_writable_bytes(layout.gradients);
    if constexpr (sharded)
      Base::register_memory({gradients, std::as_writable_bytes(layout.parameters)});
    else
      Base::register_memory({gradients});
  }

  /// A world of the ranks that give the same color, in the order of their ranks here. All ranks call it,
  /// between steps; so are `open` and the making of groups of groups called: by the ranks of all groups
  /// together.
  BasicNccl split(int color) const { return BasicNccl(*this, color); }
  /// The ranks of this rank's host.
  BasicNccl within_host() const { return split(this->first_on(rank())); }
  /// The ranks that are as many-eth on their hosts as this rank is on its own.
  BasicNccl across_hosts() const {
    int before = 0;
    for (int r = 0; r < rank(); ++r) before += this->first_on(r) == this->first_on(rank()) ? 1 : 0;
    return split(before);
  }

 private:
  static constexpr std::int64_t grain = 16;  // floats of a cache line

  BasicNccl(const BasicNccl& whole, int color) : Base(whole, color) {}

  using Base::bucket;
  using Base::bytes_of;
  using Base::communicator;
  using Base::stream;

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

  float* gradients(std::int64_t at) const { return Base::layout().gradients.data() + at; }
  float* parameters(std::int64_t at) const { return Base::layout().parameters.data() + at; }

  // What DeviceBuckets and NcclExchange ask for.
  void enqueue_sums(std::size_t b);
  void enqueue_parameters(std::size_t b);
  void enqueue_sums(std::span<double> partial) {
    Base::sum(partial.data(), static_cast<std::int64_t>(partial.size()), ncclFloat64,
              call_of(DeviceWork::rule, 0));
  }
  detail::NcclCall call_of(DeviceWork work, std::size_t b) const {
    if (work == DeviceWork::rule) return {.operation = "all-reduce of a rule's sums"};
    const bool halved = work == DeviceWork::sums && sharded;
    return {work == DeviceWork::parameters ? "all-gather"
            : halved                       ? "reduce-scatter"
                                           : "all-reduce",
            static_cast<int>(b), bytes_of(b)};
  }
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
void BasicNccl<S, sharded>::enqueue_sums(std::size_t b) {
  const Range r = bucket(b);
  const detail::NcclCall what = call_of(DeviceWork::sums, b);
  if constexpr (sharded) {
    const std::int64_t block = block_of(r), rest = r.begin + block * size();
    const auto elements = static_cast<std::size_t>(block);
    communicator().group(what, [&](ncclComm_t comm) {
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
    Base::sum(gradients(r.begin), r.size(), ncclFloat32, what);
  }
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::enqueue_parameters(std::size_t b) {
  const Range r = bucket(b);
  const std::int64_t block = block_of(r), rest = r.begin + block * size();
  communicator().group(call_of(DeviceWork::parameters, b), [&](ncclComm_t comm) {
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

}  // namespace convoy::comm
