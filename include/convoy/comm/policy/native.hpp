// Native: the MPI library's own MPI_Allreduce, the peer that every other policy is measured against.
//
// A bucket is reduced in `finish`, by the blocking call. MPI_Iallreduce would let buckets travel during
// backward, but a library without a progress thread moves them only while it is polled, on the processor that
// computes. This made MPI_Iallreduce 1.5 to 2.2 times slower.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/comm/engine/collectives.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstddef>
#include <limits>

#include <convoy/comm/watchdog.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::comm {

/// All-reduce by MPI_Allreduce, except min and max of floating-point numbers. The call cannot be polled: a
/// watchdog ends the process if the call does not return in time.
class Native : public Collectives<schedule::Ring, transport::Mpi> {
  using Base = Collectives<schedule::Ring, transport::Mpi>;

 public:
  static constexpr std::string_view policy() { return "native"; }

  explicit Native(const transport::Mpi& where = transport::Mpi{}, const Options& options = {})
      : Base(where, options) {}

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready = {});
  void poll() {}
  void finish(Update update);
  void observe(Observer observer) { observer_ = observer; }

  template <Contiguous R, OperationTag O>
  void all_reduce(R&& range, O op) {
    const auto values = span_of(range);
    static_assert(!std::is_same_v<element_of<R>, bf16> && !std::is_same_v<element_of<R>, f16>,
                  "convoy: MPI_Allreduce knows neither bf16 nor f16; use comm::Ring<transport::Mpi>, "
                  "which adds them in f32, or exchange f32");
    all_reduce(values.data(), static_cast<std::int64_t>(values.size()), reduction<element_of<R>>(op));
  }
  void all_reduce(void* values, std::int64_t count, const Reduction& reduction);

 private:
  Layout layout_;
  std::vector<Range> buckets_;
  BegunBuckets begun_;
  std::vector<Clock::time_point> begun_at_;
  Observer observer_;
};

static_assert(Comm<Native>);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void Native::open(const Fingerprint& fingerprint, const Layout& layout) {
  Base::agree_on(fingerprint, layout, policy());
  layout_ = layout;
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  begun_.resize(buckets_.size());
  begun_at_.assign(buckets_.size(), Clock::time_point{});
}

CONVOY_FUNCTION void Native::begin(int bucket, Ready) {
  const std::size_t b = begun_.begin(bucket);
  if (observer_.call != nullptr) begun_at_[b] = Clock::now();
}

CONVOY_FUNCTION void Native::finish(Update update) {
  const Arrivals arrivals(update);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Range b = buckets_[i];
    if (!begun_[i]) begin(static_cast<int>(i));
    all_reduce(layout_.gradients.data() + b.begin, b.size(), reduction<f32>(sum));
    if (observer_.call != nullptr)
      observer_.call(observer_.context, {static_cast<int>(i), begun_at_[i], Clock::now()});
    arrivals.arrived(b);
  }
  arrivals.all(buckets_);
  begun_.reset();
}

CONVOY_FUNCTION void Native::all_reduce(void* values, std::int64_t count, const Reduction& reduction) {
  const auto [loop, type, op, fold, divides] = reduction;
  const MPI_Datatype datatype = type == DType::f32   ? MPI_FLOAT
                                : type == DType::f64 ? MPI_DOUBLE
                                : type == DType::i32 ? MPI_INT32_T
                                                     : MPI_DATATYPE_NULL;
  if (datatype == MPI_DATATYPE_NULL || loop == nullptr || fold == nullptr)
    fail<ConfigError>("native has no ", name_of(op), " of ", convoy::name_of(type),
                      "; use ring over mpi, or f32 or f64");
  // MPI_MIN and MPI_MAX may drop a NaN, so floating-point numbers go round the ring.
  if ((op == Op::min || op == Op::max) && type != DType::i32)
    return Base::all_reduce(values, count, reduction);
  const MPI_Op operation = op == Op::min ? MPI_MIN : op == Op::max ? MPI_MAX : MPI_SUM;
  auto* at = static_cast<std::byte*>(values);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t piece = std::min<std::int64_t>(count - done, std::numeric_limits<int>::max());
    const Watchdog watchdog("MPI_Allreduce", rank(), options().deadline);
    mpi::check(MPI_Allreduce(MPI_IN_PLACE, at, static_cast<int>(piece), datatype, operation,
                             engine_->transport().get<transport::Mpi>()->comm()),
               "MPI_Allreduce");
    done += piece;
    at += static_cast<std::size_t>(piece) * size_of(type);
  }
  if (op != Op::mean || !divides) return;
  const auto scale = [&]<class E>(E* at_first) {
    for (std::int64_t i = 0; i < count; ++i) at_first[i] *= static_cast<E>(1.0 / size());
  };
  if (type == DType::f32)
    scale(static_cast<float*>(values));
  else
    scale(static_cast<double*>(values));
}
#endif

template <>
struct Offer<registry::Native, transport::Mpi> {
  using type = Native;
};

}  // namespace convoy::comm
