// Compressed: gradients are exchanged encoded, in fewer bytes, and the encoding error is added to the next
// step's gradients (error feedback: Seide et al. 2014, Karimireddy et al. 2019). All ranks end with the same
// bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/codec/codec.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/pipeline.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/schedule/all_to_all.hpp>
#include <convoy/memory/buffer.hpp>

namespace convoy::comm {

namespace detail {

template <class A>
inline constexpr bool is_all_reduce = false;
template <class S, class T>
inline constexpr bool is_all_reduce<AllReduce<Algorithm<S, T>, true>> = true;

// Whether a codec runs in the memory space of an all-reduce's gradients.
template <class A, class C>
inline constexpr bool encodes = true;

// Rejects, in one sentence at compile time, what cannot be compressed.
template <class A, class C>
consteval bool compresses() {
  if constexpr (!is_all_reduce<A>) {
    static_assert(never<A>,
                  "convoy: Compressed is of an all-reduce, such as Compressed<Ring<T>, codec::Bf16>");
  } else if constexpr (!codec::Codec<C>) {
    static_assert(never<C>,
                  "convoy: this is no codec: it needs name, travel, fields, warm_up(), check() and what "
                  "codec/codec.hpp lists for its way to travel");
  } else if constexpr (!encodes<A, C>) {
    static_assert(never<A>,
                  "convoy: this codec has no kernels for a GPU, as PowerSGD has none: write "
                  "Staged<Compressed<Ring<T>, Codec>, Space>, which encodes in the memory of the host, or "
                  "specialize codec::Kernels");
  } else {
    return true;
  }
  return false;
}

}  // namespace detail

/// The base of Compressed: encoded gradients are exchanged by any schedules over any transport.
template <class Codec>
class AnyCompressed : public AnyCollectives {
  using Base = AnyCollectives;
  static constexpr bool scattered = codec::Scattered<Codec>;
  static constexpr bool gathered = codec::Gathered<Codec>;
  static constexpr bool factored = codec::Factored<Codec>;
  static constexpr int legs = scattered || factored ? 2 : 1;

 public:
  static constexpr std::string_view policy() { return Codec::name; }
  static constexpr bool heeds_decisions() { return true; }

  /// Throws ConfigError for invalid options of the codec.
  AnyCompressed(const transport::Any& where, const Schedules& schedules, const Options& options,
                const Codec& codec)
      : Base(where, schedules, options), codec_((codec.check(), codec)) {}

  void observe(Observer observer) { pipeline_.observe(observer); }
  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready = {}) { pipeline_.start(*this, bucket); }
  void poll() {
    this->engine_->poll();
    pipeline_.move(*this);
  }
  void finish(Update update) {
    const Arrivals arrivals(update);
    for (int b = 0; b < pipeline_.size(); ++b)
      if (!pipeline_.begun(b)) pipeline_.start(*this, b);
    for (int b = 0; b < pipeline_.size(); ++b) {
      this->engine_->await([&] { return pipeline_.through(b); }, [&] { return pipeline_.move(*this); });
      arrivals.arrived(ranges_[static_cast<std::size_t>(b)]);
    }
    const bool applied = arrivals.all(ranges_);
    this->engine_->drain();
    pipeline_.reset();
    if (!applied && !warming_up()) forget();
    if (applied) ++steps_;
    keeps_ = false;
    if (arrivals.decides()) keep_from_now_on();
  }

  /// The error feedback, the factors, and the number of applied steps.
  void visit_state(StateVisitor& visitor);

 private:
  template <int>
  friend class Pipeline;

  template <class C>
  struct FactorsOf {
    struct type {};
  };
  template <codec::Factored C>
  struct FactorsOf<C> {
    using type = typename C::Factors;
  };

  struct Bucket {
    std::int64_t block = 0;         // scattered: elements of a rank's block
    std::size_t size = 0;           // scattered, gathered: bytes of a rank's block
    Buffer<std::byte> encoded;      // the encoded gradients; gathered: of all ranks
    Buffer<std::byte> inbox, sums;  // scattered: this rank's block from all ranks, and the encoded sums
    Buffer<float> sum;              // scattered: the sum of this rank's block
    Buffer<float> residual, kept_residual;  // scattered: what encoding that sum left out, and its copy
    typename FactorsOf<Codec>::type factors;
  };

  Bucket& at(int bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }
  Range range(int bucket) const { return ranges_[static_cast<std::size_t>(bucket)]; }
  float* gradients(int bucket) { return layout_.gradients.data() + range(bucket).begin; }
  float* error(int bucket) { return error_.data() + range(bucket).begin; }
  // The elements of a rank's block, without padding.
  Range block_of(int bucket, int rank) {
    const std::int64_t count = range(bucket).size(), block = at(bucket).block;
    return {std::min(count, rank * block), std::min(count, (rank + 1) * block)};
  }

  // The blocks of the ranks are cut at multiples of 64 bytes.
  static void check_bytes(std::int64_t count, std::int64_t bytes) {
    if (bytes < 0 || bytes % 64 != 0)
      fail<ConfigError>("the codec ", policy(), " encodes ", count, " elements in ", bytes,
                        " bytes; bytes() must be a multiple of 64");
  }
  void check_matrices(Fingerprint& fingerprint, const Layout& layout) const;
  /// Makes a bucket's buffers and engine slots.
  void prepare(int bucket);
  // `slot` is the engine slot of the first leg.
  void prepare_scattered(int bucket, Engine::Slot slot);
  void prepare_gathered(int bucket, Engine::Slot slot);
  void prepare_factored(int bucket, Engine::Slot slot);
  void prepare_elements(int bucket, Engine::Slot slot);
  Buffer<std::byte> buffer_of(std::int64_t bytes) {
    return Buffer<std::byte>(static_cast<std::size_t>(bytes), this->memory());
  }
  void enter(int leg, int bucket);
  bool passed(int leg, int bucket) {
    if (warming_up()) return leg > 0 || this->engine_->over(slot_of(plain, bucket));
    return this->engine_->over(slot_of(leg, bucket));
  }
  void encode(int bucket);
  void between(int bucket);
  void decode(int bucket);
  void keep_from_now_on() {
    keeps_ = true;
    if (kept_error_.size() < error_.size()) kept_error_ = Buffer<float>(error_.size());
  }
  void keep(int bucket);
  void forget();

  // Each leg has an engine slot for each bucket. The slots after them exchange unencoded gradients.
  static constexpr int plain = legs;
  int slot_of(int leg, int bucket) const { return leg * pipeline_.size() + bucket; }
  // The lanes of one leg; lane 0 is for operations that a caller waits for.
  int lanes() const { return (this->engine_->transport().lanes() - 1) / legs; }
  bool warming_up() const { return steps_ < codec_.warm_up(); }

  Codec codec_;
  Layout layout_;
  std::vector<Range> ranges_;
  std::vector<Bucket> buckets_;
  Buffer<float> error_, kept_error_;
  Buffer<std::byte> room_;  // gathered: workspace of the codec
  std::int64_t steps_ = 0;  // applied steps
  bool keeps_ = false;      // the state before a step is kept until the step is decided
  Pipeline<legs> pipeline_;
};

template <class Codec>
void AnyCompressed<Codec>::open(const Fingerprint& fingerprint, const Layout& layout) {
  Fingerprint all = fingerprint;
  all.add("comm algorithm", schedules_.all_reduce.name());
  all.add("comm codec", Codec::name);
  all.add("comm codec", codec_);
  if constexpr (factored) check_matrices(all, layout);
  Base::agree_on(all, layout, policy());
  layout_ = layout;
  ranges_.assign(layout.buckets.begin(), layout.buckets.end());
  error_ = Buffer<float>(layout.gradients.size());
  kept_error_ = {};
  keeps_ = false;
  steps_ = 0;
  buckets_.clear();
  buckets_.resize(ranges_.size());
  pipeline_.resize(static_cast<int>(ranges_.size()));
  this->engine_->resize((codec_.warm_up() > 0 ? plain + 1 : legs) * pipeline_.size());
  for (int i = 0; i < pipeline_.size(); ++i) prepare(i);
}

template <class Codec>
void AnyCompressed<Codec>::visit_state(StateVisitor& visitor) {
  visitor.arena("error_feedback", error_);
  for (int b = 0; b < pipeline_.size(); ++b) {
    if constexpr (scattered) visitor.values(concat("error_feedback.sum.", b), at(b).residual);
    if constexpr (factored) at(b).factors.visit_state(visitor, b);
  }
  visitor.counter("steps", steps_);
  // The restored state is worth keeping: the next step may be skipped.
  if (visitor.writes()) keep_from_now_on();
}

template <class Codec>
void AnyCompressed<Codec>::prepare(int bucket) {
  const Engine::Slot slot{.lane = 1 + bucket % lanes(), .bucket = bucket};
  if (codec_.warm_up() > 0) {
    const std::int64_t count = range(bucket).size();
    Engine::Slot unencoded = slot;
    unencoded.program = &Base::program_for(count, DType::f32);
    unencoded.data = gradients(bucket);
    unencoded.count = count;
    unencoded.reduction = reduction<f32>(sum);
    this->engine_->assign(slot_of(plain, bucket), unencoded);
  }
  if constexpr (scattered)
    prepare_scattered(bucket, slot);
  else if constexpr (gathered)
    prepare_gathered(bucket, slot);
  else if constexpr (factored)
    prepare_factored(bucket, slot);
  else
    prepare_elements(bucket, slot);
}

template <class Codec>
void AnyCompressed<Codec>::prepare_scattered(int bucket, Engine::Slot slot) {
  Bucket& b = at(bucket);
  const std::int64_t count = range(bucket).size(), n = this->size();
  b.block = (count + n * Codec::block - 1) / (n * Codec::block) * Codec::block;
  const std::int64_t size = codec_.bytes(b.block);
  check_bytes(b.block, size);
  b.size = static_cast<std::size_t>(size);
  b.encoded = buffer_of(n * size);
  b.sums = buffer_of(n * size);
  b.inbox = Buffer<std::byte>(static_cast<std::size_t>(n * size), this->engine_->inboxes());
  b.sum = Buffer<float>(static_cast<std::size_t>(b.block));
  b.residual = Buffer<float>(static_cast<std::size_t>(b.block));
  slot.program = &this->template half<schedule::AllToAll>(n * size, DType::u8);
  slot.data = b.encoded.data();
  slot.inbox = b.inbox.data();
  slot.count = count > 0 ? n * size : 0;
  this->engine_->assign(slot_of(0, bucket), slot);
  slot.program = &this->cut(schedules_.all_gather, this->size(), n * size, DType::u8);
  slot.data = b.sums.data();
  slot.inbox = nullptr;
  slot.lane += lanes();
  this->engine_->assign(slot_of(1, bucket), slot);
}

template <class Codec>
void AnyCompressed<Codec>::prepare_gathered(int bucket, Engine::Slot slot) {
  Bucket& b = at(bucket);
  const std::int64_t count = range(bucket).size(), n = this->size();
  const std::int64_t size = codec_.bytes(count);
  check_bytes(count, size);
  b.size = static_cast<std::size_t>(size);
  if (const auto room = static_cast<std::size_t>(codec_.room(count)); room > room_.size())
    room_ = Buffer<std::byte>(room);
  b.encoded = buffer_of(n * size);
  slot.program = &this->cut(schedules_.all_gather, this->size(), n * size, DType::u8);
  slot.data = b.encoded.data();
  slot.count = n * size;
  this->engine_->assign(slot_of(0, bucket), slot);
}

template <class Codec>
void AnyCompressed<Codec>::prepare_factored(int bucket, Engine::Slot slot) {
  Bucket& b = at(bucket);
  b.factors = typename Codec::Factors(codec_, range(bucket), layout_.matrices,
                                      static_cast<std::uint64_t>(bucket), this->memory());
  slot.reduction = reduction<f32>(sum);
  for (int leg = 0; leg < legs; ++leg, slot.lane += lanes()) {
    const std::span<float> factor = leg == 0 ? b.factors.left() : b.factors.right();
    slot.count = static_cast<std::int64_t>(factor.size());
    slot.program = &Base::program_for(slot.count, DType::f32);
    slot.data = factor.data();
    this->engine_->assign(slot_of(leg, bucket), slot);
  }
}

template <class Codec>
void AnyCompressed<Codec>::prepare_elements(int bucket, Engine::Slot slot) {
  using E = typename Codec::Element;
  Bucket& b = at(bucket);
  const std::int64_t count = range(bucket).size();
  b.encoded = buffer_of(count * static_cast<std::int64_t>(sizeof(E)));
  slot.program = &Base::program_for(count, dtype_of<E>);
  slot.data = b.encoded.data();
  slot.count = count;
  slot.reduction = reduction<E>(sum);
  this->engine_->assign(slot_of(0, bucket), slot);
}

template <class Codec>
void AnyCompressed<Codec>::check_matrices(Fingerprint& fingerprint, const Layout& layout) const {
  std::int64_t end = 0;
  std::uint64_t hash = hash_start;
  for (const Matrix& m : layout.matrices) {
    if (m.range.begin < end || m.range.end > static_cast<std::int64_t>(layout.gradients.size()))
      fail<ConfigError>(policy(), ": the tensors must be in ascending order within the ",
                        layout.gradients.size(), " gradients; one is at ", m.range.begin, " to ",
                        m.range.end);
    if (m.rows < 1 || m.columns < 1 || m.range.size() != m.rows * m.columns)
      fail<ConfigError>(policy(), ": a tensor of ", m.rows, " rows and ", m.columns, " columns cannot have ",
                        m.range.size(), " elements");
    if (m.panel < 1 || m.rows % m.panel != 0)
      fail<ConfigError>(policy(), ": ", m.rows, " rows cannot be stored in panels of ", m.panel);
    end = m.range.end;
    for (const std::int64_t part : {m.range.begin, m.rows, m.columns, m.panel})
      hash = hash_of(static_cast<std::uint64_t>(part), hash);
  }
  fingerprint.add("tensors", hash, concat(layout.matrices.size()));
}

template <class Codec>
void AnyCompressed<Codec>::enter(int leg, int bucket) {
  if (warming_up()) {
    if (leg == 0) this->engine_->begin(slot_of(plain, bucket));
    return;
  }
  if (leg == 0) {
    if (keeps_) keep(bucket);
    encode(bucket);
  } else if (leg < legs) {
    between(bucket);
  } else {
    decode(bucket);
  }
  if (leg < legs) this->engine_->begin(slot_of(leg, bucket));
}

template <class Codec>
void AnyCompressed<Codec>::encode(int bucket) {
  Bucket& b = at(bucket);
  const std::int64_t count = range(bucket).size();
  if constexpr (scattered) {
    for (int r = 0; r < this->size(); ++r) {
      const Range part = block_of(bucket, r);
      codec_.encode(b.encoded.data() + static_cast<std::size_t>(r) * b.size, gradients(bucket) + part.begin,
                    error(bucket) + part.begin, part.size());
    }
  } else if constexpr (gathered) {
    codec_.encode(b.encoded.data() + static_cast<std::size_t>(this->rank()) * b.size, gradients(bucket),
                  error(bucket), count, std::span<std::byte>(room_));
  } else if constexpr (factored) {
    b.factors.project(gradients(bucket), error(bucket));
  } else {
    codec_.encode(reinterpret_cast<typename Codec::Element*>(b.encoded.data()), gradients(bucket),
                  error(bucket), count);
  }
}

template <class Codec>
void AnyCompressed<Codec>::between(int bucket) {
  Bucket& b = at(bucket);
  if constexpr (scattered) {
    const auto me = static_cast<std::size_t>(this->rank());
    const Range mine = block_of(bucket, this->rank());
    std::fill(b.sum.begin(), b.sum.end(), 0.0f);
    for (std::size_t r = 0; r < static_cast<std::size_t>(this->size()); ++r)
      codec_.decode_add(b.sum.data(), (r == me ? b.encoded : b.inbox).data() + r * b.size, mine.size());
    codec_.encode(b.sums.data() + me * b.size, b.sum.data(), b.residual.data(), mine.size());
  } else if constexpr (factored) {
    b.factors.project_back(error(bucket));
  }
}

template <class Codec>
void AnyCompressed<Codec>::decode(int bucket) {
  Bucket& b = at(bucket);
  const std::int64_t count = range(bucket).size();
  if constexpr (scattered) {
    for (int r = 0; r < this->size(); ++r) {
      const Range part = block_of(bucket, r);
      codec_.decode(gradients(bucket) + part.begin, b.sums.data() + static_cast<std::size_t>(r) * b.size,
                    part.size());
    }
  } else if constexpr (gathered) {
    std::fill(gradients(bucket), gradients(bucket) + count, 0.0f);
    for (int r = 0; r < this->size(); ++r) {
      try {
        codec_.decode_add(gradients(bucket), b.encoded.data() + static_cast<std::size_t>(r) * b.size, count);
      } catch (const Error& error) {
        fail("rank ", r, " sent data that cannot be decoded: ", error.what());
      }
    }
  } else if constexpr (factored) {
    b.factors.expand(gradients(bucket));
  } else {
    codec_.decode(gradients(bucket), reinterpret_cast<const typename Codec::Element*>(b.encoded.data()),
                  count);
  }
}

// Copies the state of a bucket that a step changes, gradients excepted.
template <class Codec>
void AnyCompressed<Codec>::keep(int bucket) {
  Bucket& b = at(bucket);
  std::copy_n(error(bucket), range(bucket).size(), kept_error_.data() + range(bucket).begin);
  if constexpr (scattered) {
    if (b.kept_residual.size() < b.residual.size()) b.kept_residual = Buffer<float>(b.residual.size());
    std::copy(b.residual.begin(), b.residual.end(), b.kept_residual.begin());
  }
  if constexpr (factored) b.factors.keep();
}

// Undoes the last step, which was skipped, in the error feedback and the factors.
template <class Codec>
void AnyCompressed<Codec>::forget() {
  if (keeps_)
    std::swap(error_, kept_error_);
  else
    std::fill(error_.begin(), error_.end(), 0.0f);
  for (Bucket& b : buckets_) {
    if constexpr (scattered) {
      if (keeps_)
        std::swap(b.residual, b.kept_residual);
      else
        std::fill(b.residual.begin(), b.residual.end(), 0.0f);
    }
    if constexpr (factored) keeps_ ? b.factors.restore() : b.factors.reset();
  }
}

/// An all-reduce of encoded gradients: `Compressed<Ring<transport::Mpi>, codec::TopK>`. The codec determines
/// how gradients travel (codec/codec.hpp). Operations on a user's own spans are not encoded.
///
/// A step that a rule decides to skip leaves no trace in the error feedback: ranks restore their state from
/// before the step. For this each rank copies the state in every step that follows a step in which a rule
/// decided, or in which the state was restored. If no rule decided in the step before a skipped step, there
/// is no copy, and the error feedback starts anew from zero.
template <class A, class Codec, bool fits = detail::compresses<A, Codec>()>
class Compressed;

template <class A, class Codec>
class Compressed<A, Codec, false> : public detail::Refused {
  using Refused::Refused;
};

template <class S, class T, class Codec>
class Compressed<AllReduce<Algorithm<S, T>, true>, Codec, true> : public AnyCompressed<Codec> {
 public:
  /// Throws ConfigError for invalid options of the codec.
  explicit Compressed(const T& where = T{}, const Options& options = {}, const Codec& codec = {})
      : AnyCompressed<Codec>(where, Schedules::of<S>(), options, codec) {}
};

}  // namespace convoy::comm
