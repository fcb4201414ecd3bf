// Nccl: exchanges of GPU gradients by NVIDIA's NCCL.
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
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/memory/space.hpp>

namespace convoy::comm {

/// Implements Nccl and Sharded<Nccl> for arenas in a space of CUDA memory whose `stream()` is the compute
/// stream (policy/nccl_exchange.cuh). NCCL sums the gradients in an order that depends only on the world, the
/// sizes and how the arenas are registered (Traffic::arenas); every rank gets the same bits.
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
  bool exchanges() const { return Base::connects(); }

  /// All ranks of the bootstrap construct one together. The thread's current GPU (device::use) becomes this
  /// rank's.
  template <Bootstrap B>
  explicit BasicNccl(B bootstrap, const Options& options = {}) : Base(std::move(bootstrap), options) {}

  void open(const Fingerprint& fingerprint, const Layout& layout) {
    Base::agree_on(Base::described(fingerprint, layout));
    Base::start_anew();
    Base::take(layout);
    const auto gradients = std::as_writable_bytes(layout.gradients);
    const auto parameters = std::as_writable_bytes(layout.parameters);
    if (sharded && parameters.data() != gradients.data())
      Base::register_memory({gradients, parameters});
    else
      Base::register_memory({gradients});
  }

  /// A world of the ranks that pass the same color, in the order of their ranks here. All ranks call it,
  /// between steps. The ranks of all groups also call `open`, and `split` of a group, together.
  BasicNccl split(int color) const { return BasicNccl(*this, color); }

 private:
  BasicNccl(const BasicNccl& whole, int color) : Base(whole, color) {}

  using Base::bucket;
  using Base::bytes_of;
  using Base::communicator;
  using Base::stream;

  // Makes the calls for the parts of a sharded bucket as one group: `at_once` for equal blocks of all ranks,
  // for which NCCL has collectives, and `of_one` for the remainder, or for each rank's part if the parts are
  // not equal.
  template <class AtOnce, class OfOne>
  void for_parts(DeviceWork work, std::size_t b, AtOnce&& at_once, OfOne&& of_one);

  float* gradients(std::int64_t at) const { return Base::layout().gradients.data() + at; }
  float* parameters(std::int64_t at) const { return Base::layout().parameters.data() + at; }

  // Required by DeviceBuckets and NcclExchange.
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
/// `Sharded<Nccl<S>>`: reduce-scatter, update of each rank's own part, all-gather.
template <memory::Space S>
struct HalvesFrom<BasicNccl<S, false>> {
  using Sharded = BasicNccl<S, true>;
};

}  // namespace detail

template <memory::Space S, bool sharded>
template <class AtOnce, class OfOne>
void BasicNccl<S, sharded>::for_parts(DeviceWork work, std::size_t b, AtOnce&& at_once, OfOne&& of_one) {
  const Range r = bucket(b);
  const std::int64_t block = Base::even() ? schedule::equal_part(r.size(), size()) : 0;
  communicator().group(call_of(work, b), [&](ncclComm_t comm) {
    ncclResult_t result = block > 0 ? at_once(comm, static_cast<std::size_t>(block)) : ncclSuccess;
    for (int root = 0; root < size(); ++root) {
      const auto& cuts = Base::cuts(b);
      const std::int64_t begin = block > 0 ? block * size() : cuts[static_cast<std::size_t>(root)],
                         end = cuts[static_cast<std::size_t>(root) + 1];
      if (begin < end && (result == ncclSuccess || result == ncclInProgress))
        result = of_one(comm, root, r.begin + begin, static_cast<std::size_t>(end - begin));
    }
    return result;
  });
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::enqueue_sums(std::size_t b) {
  const Range r = bucket(b);
  if constexpr (sharded)
    for_parts(
        DeviceWork::sums, b,
        [&](ncclComm_t comm, std::size_t block) {
          return ncclReduceScatter(gradients(r.begin),
                                   gradients(r.begin + rank() * static_cast<std::int64_t>(block)), block,
                                   ncclFloat32, ncclSum, comm, stream());
        },
        [&](ncclComm_t comm, int root, std::int64_t at, std::size_t count) {
          return ncclReduce(gradients(at), gradients(at), count, ncclFloat32, ncclSum, root, comm, stream());
        });
  else
    Base::sum(gradients(r.begin), r.size(), ncclFloat32, call_of(DeviceWork::sums, b));
}

template <memory::Space S, bool sharded>
void BasicNccl<S, sharded>::enqueue_parameters(std::size_t b) {
  const Range r = bucket(b);
  for_parts(
      DeviceWork::parameters, b,
      [&](ncclComm_t comm, std::size_t block) {
        return ncclAllGather(parameters(r.begin + rank() * static_cast<std::int64_t>(block)),
                             parameters(r.begin), block, ncclFloat32, comm, stream());
      },
      [&](ncclComm_t comm, int root, std::int64_t at, std::size_t count) {
        return ncclBroadcast(parameters(at), parameters(at), count, ncclFloat32, root, comm, stream());
      });
}

}  // namespace convoy::comm
