// Compressed over NCCL: GPU gradients are exchanged encoded, by the codec's kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/codec/half.cuh>
#include <convoy/comm/codec/int8.cuh>
#include <convoy/comm/codec/kernels.cuh>
#include <convoy/comm/codec/top_k.cuh>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/policy/compressed.hpp>
#include <convoy/comm/policy/device_buckets.cuh>
#include <convoy/comm/policy/nccl.cuh>
#include <convoy/comm/policy/nccl_communicator.cuh>
#include <convoy/comm/policy/nccl_exchange.cuh>
#include <convoy/core/dtype.hpp>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/space.hpp>

namespace convoy::comm {

/// Implements Compressed<Nccl<S>, Codec>. A bucket is encoded, exchanged and decoded on the exchange stream
/// during backward; the host does not wait and reads no values. All ranks end with the same bits. With codecs
/// that send bytes, these are the bits of Compressed on the host.
template <memory::Space S, class Codec>
class NcclCompressed : public NcclExchange<NcclCompressed<S, Codec>, S, false> {
  using Base = NcclExchange<NcclCompressed, S, false>;
  friend Base;
  friend DeviceBuckets<NcclCompressed, S, false>;
  using Kernels = codec::Kernels<Codec>;
  static constexpr bool scattered = codec::Scattered<Codec>;
  static constexpr bool gathered = codec::Gathered<Codec>;

 public:
  using Options = NcclOptions;
  static constexpr bool heeds_decisions() { return true; }
  using Base::rank;
  using Base::size;

  static constexpr std::string_view policy() { return Codec::name; }

  /// All ranks of the bootstrap construct one together. The thread's current GPU (device::use) becomes this
  /// rank's. Throws ConfigError for invalid options of the codec.
  template <Bootstrap B>
  explicit NcclCompressed(B bootstrap, const Options& options = {}, const Codec& codec = {})
      : Base((codec.check(), std::move(bootstrap)), options), codec_(codec) {}

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void finish(Update update);

  /// The error feedback and the number of applied steps, in the form of Compressed on the host, so that a run
  /// may go on there.
  void visit_state(StateVisitor& visitor);

 private:
  using Base::bucket;
  using Base::buckets;
  using Base::communicator;
  using Base::stream;

  static constexpr std::int64_t lines(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

  float* gradients(std::size_t b) const { return Base::layout().gradients.data() + bucket(b).begin; }
  bool warming_up() const { return steps_ < codec_.warm_up(); }

  // One block of the bucket per rank, or the whole bucket for each rank.
  codec::Parts parts(std::size_t b) const {
    const std::int64_t count = bucket(b).size();
    if constexpr (scattered) {
      const std::int64_t whole = size() * Codec::block, block = (count + whole - 1) / whole * Codec::block;
      return {count, block, codec_.bytes(block)};
    } else if constexpr (gathered) {
      return {count, count, codec_.bytes(count)};
    } else {
      return {count, count, count * static_cast<std::int64_t>(sizeof(typename Codec::Element))};
    }
  }
  // Of the workspace that the buckets use in turn: the encoded gradients and, scattered, the inbox and the
  // sums, or, gathered, room for a selection.
  std::int64_t bytes_of_all(std::size_t b) const {
    return lines(parts(b).bytes * (scattered || gathered ? size() : 1));
  }
  std::int64_t working_bytes(std::size_t b) const {
    if constexpr (scattered)
      return 3 * bytes_of_all(b);
    else if constexpr (gathered)
      return bytes_of_all(b) + Kernels::room(codec_, bucket(b).size());
    else
      return bytes_of_all(b);
  }

  // The error feedback that a step reads, and the place for its encoding error: a spare buffer if the step
  // may be skipped.
  const float* error(std::size_t b) const { return feedback_ + bucket(b).begin; }
  float* left(std::size_t b) const { return (keeps_ ? spare_ : feedback_) + bucket(b).begin; }
  // The same for the sums that this rank encodes.
  const float* sum_error(std::size_t b) const { return feedback_ + sums_at_[b]; }
  float* sum_left(std::size_t b) const { return (keeps_ ? spare_ : feedback_) + sums_at_[b]; }
  float* make_feedback() { return reinterpret_cast<float*>(Base::allocate(feedback_size_ * sizeof(float))); }
  void keep_from_now_on() {
    keeps_ = true;
    if (spare_ == nullptr) spare_ = make_feedback();
  }

  // Required by DeviceBuckets and NcclExchange.
  void enqueue_sums(std::size_t b);
  void count_sums(std::size_t b) {
    if (warming_up()) return Base::count_sums(b);
    Base::count(static_cast<std::size_t>(parts(b).bytes * (scattered || gathered ? size() : 1)),
                gathered ? 1 : 2);
  }
  detail::NcclCall call_of(DeviceWork, std::size_t b) const {
    if (warming_up()) return {"all-reduce", static_cast<int>(b), Base::bytes_of(b)};
    return call(scattered ? "all-to-all and all-gather" : gathered ? "all-gather" : "all-reduce", b);
  }
  detail::NcclCall call(std::string_view operation, std::size_t b) const {
    return {operation, static_cast<int>(b), static_cast<std::size_t>(parts(b).bytes)};
  }
  // Gathers every rank's part; part r is rank r's.
  void all_gather(std::byte* all, std::size_t b) {
    const auto bytes = static_cast<std::size_t>(parts(b).bytes);
    communicator().call(call("all-gather", b), [&](ncclComm_t comm) {
      return ncclAllGather(all + static_cast<std::size_t>(rank()) * bytes, all, bytes, ncclUint8, comm,
                           stream());
    });
  }
  // Part r goes to rank r; the part from rank r goes to place r of the inbox.
  void all_to_all(const std::byte* all, std::byte* inbox, std::size_t b) {
    const auto bytes = static_cast<std::size_t>(parts(b).bytes);
    communicator().group(call("all-to-all", b), [&](ncclComm_t comm) {
      ncclResult_t result = ncclSuccess;
      for (int r = 0; r < size(); ++r) {
        if (r == rank()) continue;
        const std::size_t at = static_cast<std::size_t>(r) * bytes;
        if (result == ncclSuccess || result == ncclInProgress)
          result = ncclSend(all + at, bytes, ncclUint8, r, comm, stream());
        if (result == ncclSuccess || result == ncclInProgress)
          result = ncclRecv(inbox + at, bytes, ncclUint8, r, comm, stream());
      }
      return result;
    });
  }

  Codec codec_;
  std::byte* working_ = nullptr;
  std::size_t feedback_size_ = 0;
  float *feedback_ = nullptr, *spare_ = nullptr;  // one for each gradient, then those of the sums
  std::vector<std::int64_t> sums_at_;             // by bucket
  std::int64_t steps_ = 0;                        // applied steps
  bool keeps_ = false;                            // the feedback before a step is kept until it is decided
};

template <memory::Space S, class Codec>
void NcclCompressed<S, Codec>::open(const Fingerprint& fingerprint, const Layout& layout) {
  Fingerprint all = Base::described(fingerprint, layout);
  all.add("comm codec", Codec::name);
  all.add("comm codec", codec_);
  Base::agree_on(all);
  Base::start_anew();
  Base::take(layout);
  spare_ = nullptr;
  keeps_ = false;
  steps_ = 0;
  std::int64_t working = lines(1);
  feedback_size_ = static_cast<std::size_t>(lines(static_cast<std::int64_t>(layout.gradients.size())));
  sums_at_.assign(buckets(), 0);
  for (std::size_t b = 0; b < buckets(); ++b) {
    working = std::max(working, working_bytes(b));
    sums_at_[b] = static_cast<std::int64_t>(feedback_size_);
    if constexpr (scattered) feedback_size_ += static_cast<std::size_t>(parts(b).block);
  }
  feedback_ = make_feedback();
  working_ = Base::allocate(static_cast<std::size_t>(working));
  const std::span<std::byte> encoded(working_, static_cast<std::size_t>(working));
  if (codec_.warm_up() > 0)
    Base::register_memory({encoded, std::as_writable_bytes(layout.gradients)});
  else
    Base::register_memory({encoded});
}

template <memory::Space S, class Codec>
void NcclCompressed<S, Codec>::enqueue_sums(std::size_t b) {
  const codec::Parts cut = parts(b);
  if (warming_up()) return Base::sum(gradients(b), cut.count, ncclFloat32, call_of(DeviceWork::sums, b));
  if constexpr (scattered) {
    std::byte *const inbox = working_ + bytes_of_all(b), *const sums = inbox + bytes_of_all(b);
    const std::int64_t own = rank() * cut.bytes;
    Kernels::encode(codec_, stream(), working_, gradients(b), error(b), left(b), cut);
    all_to_all(working_, inbox, b);
    Kernels::fold(codec_, stream(), sums + own, working_ + own, inbox, rank(), size(), sum_error(b),
                  sum_left(b), cut);
    all_gather(sums, b);
    Kernels::decode(codec_, stream(), gradients(b), sums, cut);
  } else if constexpr (gathered) {
    Kernels::encode(codec_, stream(), working_ + rank() * cut.bytes, gradients(b), error(b), left(b),
                    cut.count, working_ + bytes_of_all(b));
    all_gather(working_, b);
    Kernels::sum(codec_, stream(), gradients(b), working_, size(), cut.count);
  } else {
    using E = typename Codec::Element;
    static_assert(std::is_same_v<E, bf16> || std::is_same_v<E, f16>,
                  "convoy: NCCL adds up elements of a codec that are bf16 or f16");
    auto* const encoded = reinterpret_cast<E*>(working_);
    Kernels::encode(codec_, stream(), encoded, gradients(b), error(b), left(b), cut.count);
    Base::sum(encoded, cut.count, std::is_same_v<E, bf16> ? ncclBfloat16 : ncclFloat16,
              call_of(DeviceWork::sums, b));
    Kernels::decode(codec_, stream(), gradients(b), encoded, cut.count);
  }
}

template <memory::Space S, class Codec>
void NcclCompressed<S, Codec>::finish(Update update) {
  const bool decides = update.decides(), applied = Base::step(update);
  if (!warming_up()) {
    if (keeps_ && applied) std::swap(feedback_, spare_);
    if (!keeps_ && !applied)
      device::check(cudaMemsetAsync(feedback_, 0, feedback_size_ * sizeof(float), stream()), "clear memory");
  }
  if (applied) ++steps_;
  keeps_ = false;
  if (decides) keep_from_now_on();
}

template <memory::Space S, class Codec>
void NcclCompressed<S, Codec>::visit_state(StateVisitor& visitor) {
  std::vector<float> here(feedback_size_);
  const std::size_t bytes = feedback_size_ * sizeof(float);
  Base::take_out(here.data(), feedback_, bytes, {.operation = "end of the exchanges", .bytes = bytes},
                 stream());
  visitor.arena("error_feedback", std::span(here).first(Base::layout().gradients.size()));
  if constexpr (scattered)
    for (std::size_t b = 0; b < buckets(); ++b)
      visitor.values(concat("error_feedback.sum.", b),
                     std::span(here).subspan(static_cast<std::size_t>(sums_at_[b]),
                                             static_cast<std::size_t>(parts(b).block)));
  visitor.counter("steps", steps_);
  if (!visitor.writes()) return;
  Base::bring_in(feedback_, here.data(), bytes);
  // The restored state is worth keeping: the next step may be skipped.
  keep_from_now_on();
}

namespace detail {

template <memory::Space S>
inline constexpr bool is_all_reduce<BasicNccl<S, false>> = true;
template <memory::Space S, class Codec>
inline constexpr bool encodes<BasicNccl<S, false>, Codec> = codec::OnGpu<Codec>;

}  // namespace detail

/// `Compressed<Nccl<memory::Device>, codec::Int8>`
template <memory::Space S, class Codec>
class Compressed<BasicNccl<S, false>, Codec, true> : public NcclCompressed<S, Codec> {
 public:
  using NcclCompressed<S, Codec>::NcclCompressed;
};

}  // namespace convoy::comm
