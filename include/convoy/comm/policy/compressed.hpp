// Compressed: gradients travel encoded, in fewer bytes, and what the encoding leaves out is added the next
// time (error feedback: Seide et al. 2014, Karimireddy et al. 2019). All ranks end with the same bits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include <convoy/comm/codec/half.hpp>
#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/codec/power_sgd.hpp>
#include <convoy/comm/codec/top_k.hpp>
#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/pipeline.hpp>
#include <convoy/comm/policy/all_reduce.hpp>
#include <convoy/comm/schedule/all_to_all.hpp>
#include <convoy/memory/buffer.hpp>

namespace convoy::comm {

template <class A, class Codec>
class Compressed;

/// - codec::Bf16, codec::F16: the algorithm's own all-reduce on half-wide elements, added in f32 on each hop.
/// - codec::Int8: each rank gets its own block of all the others' bytes, adds them up in f32 in the order of
///   ranks and sends the sum encoded again: a value is rounded twice, never once a hop.
/// - codec::TopK: everyone gets everyone's pairs.
/// - codec::PowerSgd: all-reduces of the left factors and of the right ones, in f32; what Layout::tensors
///   does not name, or a bucket cuts, goes as it is.
///
/// Operations on a user's own spans are not encoded.
template <class S, class T, class Codec>
class Compressed<AllReduce<Algorithm<S, T>, true>, Codec> : public Collectives<S, T> {
  using Base = Collectives<S, T>;
  static constexpr bool bytewise = std::is_same_v<Codec, codec::Int8>;
  static constexpr bool sparse = std::is_same_v<Codec, codec::TopK>;
  static constexpr bool factored = std::is_same_v<Codec, codec::PowerSgd>;
  static constexpr bool warms_up = sparse || factored;
  static constexpr int stages = bytewise || factored ? 2 : 1;
  using AllGather = typename detail::HalvesOf<S>::AllGather;

 public:
  static constexpr std::string_view name = Codec::name;

  explicit Compressed(const T& where = T{}, const Options& options = {}, const Codec& codec = {})
      : Base(where, options), codec_(codec) {
    if constexpr (sparse)
      if (!(codec.fraction > 0 && codec.fraction <= 1))
        fail<ConfigError>("topk keeps a fraction of the gradients above 0 and up to 1, not ", codec.fraction);
    if constexpr (factored)
      if (codec.rank < 1) fail<ConfigError>("powersgd needs a rank of at least 1, not ", codec.rank);
    if constexpr (warms_up)
      if (codec.warm_up_steps < 0)
        fail<ConfigError>(Codec::name, " cannot warm up for ", codec.warm_up_steps, " steps");
  }

  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket) {
    if (bucket < 0 || bucket >= pipeline_.size())
      fail("there is no bucket ", bucket, "; ", pipeline_.size(), " were opened");
    if (pipeline_.begun(bucket)) fail("bucket ", bucket, " was begun twice in one step");
    pipeline_.start(*this, bucket);
  }
  void poll() {
    this->engine_->poll();
    pipeline_.move(*this);
  }
  void finish(Update update) {
    for (int b = 0; b < pipeline_.size(); ++b)
      if (!pipeline_.begun(b)) pipeline_.start(*this, b);
    for (int b = 0; b < pipeline_.size(); ++b) {
      this->engine_->await([&] { return pipeline_.through(b); }, [&] { return pipeline_.move(*this); });
      update(buckets_[static_cast<std::size_t>(b)].range, 1.0f);
    }
    this->engine_->drain();
    pipeline_.reset();
    ++steps_;
  }

 private:
  template <int>
  friend class Pipeline;

  struct Bucket {
    Range range;
    std::int64_t block = 0;             // elements of a rank's block (int8), or pairs of a rank (topk)
    Buffer<std::byte> encoded;          // what is sent, then what all have
    Buffer<std::byte> inbox, gathered;  // int8: of this rank's block; the sums
    Buffer<float> sum, left;            // int8: of this rank's block, and what its encoding leaves out
    codec::Factors factors;             // powersgd
  };

  Bucket& at(int bucket) { return buckets_[static_cast<std::size_t>(bucket)]; }
  float* gradients(const Bucket& b) { return layout_.gradients.data() + b.range.begin; }
  float* error(const Bucket& b) { return error_.data() + b.range.begin; }
  // The elements of a rank's block that exist.
  Range block_of(const Bucket& b, int rank) const {
    return {std::min(b.range.size(), rank * b.block), std::min(b.range.size(), (rank + 1) * b.block)};
  }

  void check_tensors(Fingerprint& fingerprint, const Layout& layout) const;
  void enter(int stage, int bucket);
  bool passed(int stage, int bucket) {
    if (warming_up()) return stage > 0 || this->engine_->over(slot_of(plain, bucket));
    return this->engine_->over(slot_of(stage, bucket));
  }
  // Each stage has a slot of the engine for each bucket; beyond them are those that send gradients as they
  // are.
  static constexpr int plain = stages;
  int slot_of(int stage, int bucket) const { return stage * pipeline_.size() + bucket; }
  bool warming_up() const {
    if constexpr (warms_up)
      return steps_ < codec_.warm_up_steps;
    else
      return false;
  }

  Codec codec_;
  Layout layout_;
  std::vector<Bucket> buckets_;
  Buffer<float> error_;
  std::int64_t steps_ = 0;
  std::vector<codec::TopK::Pair> room_;  // topk: for candidates
  Pipeline<stages> pipeline_;
};

template <class S, class T, class Codec>
void Compressed<AllReduce<Algorithm<S, T>, true>, Codec>::open(const Fingerprint& fingerprint,
                                                               const Layout& layout) {
  Fingerprint all = fingerprint;
  all.add("comm algorithm", S::name);
  all.add("comm codec", Codec::name);
  if constexpr (sparse) all.add("comm codec fraction", codec_.fraction);
  if constexpr (factored) check_tensors(all, layout);
  if constexpr (warms_up) all.add("comm codec warm-up steps", codec_.warm_up_steps);
  Base::agree_on(all, layout, name);
  layout_ = layout;
  error_ = Buffer<float>(layout.gradients.size());
  const std::int64_t n = this->size();
  buckets_.clear();
  pipeline_.resize(static_cast<int>(layout.buckets.size()));
  this->engine_->resize((warms_up ? plain + 1 : stages) * pipeline_.size());
  steps_ = 0;
  constexpr int lanes = (T::lanes - 1) / stages;
  const auto bytes = [&](std::int64_t size) {
    return Buffer<std::byte>(static_cast<std::size_t>(size), this->memory());
  };
  for (int i = 0; i < pipeline_.size(); ++i) {
    Bucket b;
    b.range = layout.buckets[static_cast<std::size_t>(i)];
    const std::int64_t count = b.range.size();
    if constexpr (sparse && sizeof(codec::TopK::Pair) == 8)
      if (count > std::int64_t{1} << 32)
        fail<ConfigError>("topk: bucket ", i, " has more than 2^32 elements");
    typename Engine<T>::Slot slot{.lane = 1 + i % lanes, .bucket = i};
    if constexpr (warms_up) {
      slot.program = &Base::program_for(count, DType::f32);
      slot.data = gradients(b);
      slot.count = count;
      slot.reduction = reduction<f32>(sum);
      this->engine_->assign(slot_of(plain, i), slot);
    }
    if constexpr (bytewise) {
      b.block = (count + n * 512 - 1) / (n * 512) * 512;
      const std::int64_t size = Codec::bytes(b.block);
      b.encoded = bytes(n * size);
      b.gathered = bytes(n * size);
      b.inbox = Buffer<std::byte>(static_cast<std::size_t>(n * size), this->engine_->inboxes());
      b.sum = Buffer<float>(static_cast<std::size_t>(b.block));
      b.left = Buffer<float>(static_cast<std::size_t>(b.block));
      slot.program = &this->template half<schedule::AllToAll>(n * size, DType::u8);
      slot.data = b.encoded.data();
      slot.inbox = b.inbox.data();
      slot.count = count > 0 ? n * size : 0;
      this->engine_->assign(i, slot);
      slot.program = &this->template half<AllGather>(n * size, DType::u8);
      slot.data = b.gathered.data();
      slot.inbox = nullptr;
      slot.lane += lanes;
      this->engine_->assign(pipeline_.size() + i, slot);
    } else if constexpr (sparse) {
      // Each rank's pairs fill a block, to the next cache line.
      b.block = (codec_.kept(count) + 7) / 8 * 8;
      room_.resize(std::max(room_.size(), codec_.room(count)));
      b.encoded = bytes(n * b.block * 8);
      slot.program = &this->template half<AllGather>(n * b.block * 8, DType::u8);
      slot.data = b.encoded.data();
      slot.count = n * b.block * 8;
      slot.reduction = {};
      this->engine_->assign(i, slot);
    } else if constexpr (factored) {
      b.factors =
          codec::Factors(codec_, b.range, layout.tensors, static_cast<std::uint64_t>(i), this->memory());
      for (int stage = 0; stage < stages; ++stage, slot.lane += lanes) {
        const std::span<float> factor = stage == 0 ? b.factors.left() : b.factors.right();
        slot.count = static_cast<std::int64_t>(factor.size());
        slot.program = &Base::program_for(slot.count, DType::f32);
        slot.data = factor.data();
        this->engine_->assign(slot_of(stage, i), slot);
      }
    } else {
      using E = typename Codec::Element;
      b.encoded = bytes(count * static_cast<std::int64_t>(sizeof(E)));
      slot.program = &Base::program_for(count, dtype_of<E>);
      slot.data = b.encoded.data();
      slot.count = count;
      slot.reduction = reduction<E>(sum);
      this->engine_->assign(i, slot);
    }
    buckets_.push_back(std::move(b));
  }
}

template <class S, class T, class Codec>
void Compressed<AllReduce<Algorithm<S, T>, true>, Codec>::check_tensors(Fingerprint& fingerprint,
                                                                        const Layout& layout) const {
  std::int64_t end = 0;
  std::uint64_t hash = 0;
  for (const Tensor& t : layout.tensors) {
    if (t.range.begin < end || t.range.end > static_cast<std::int64_t>(layout.gradients.size()))
      fail<ConfigError>("powersgd: the tensors must be in ascending order within the ",
                        layout.gradients.size(), " gradients; one is at ", t.range.begin, " to ",
                        t.range.end);
    if (t.rows < 1 || t.columns < 1 || t.range.size() != t.rows * t.columns)
      fail<ConfigError>("powersgd: a tensor of ", t.rows, " rows and ", t.columns, " columns cannot have ",
                        t.range.size(), " elements");
    if (t.panel < 1 || t.rows % t.panel != 0)
      fail<ConfigError>("powersgd: ", t.rows, " rows cannot stand in panels of ", t.panel);
    end = t.range.end;
    for (const std::int64_t part : {t.range.begin, t.rows, t.columns, t.panel})
      hash = (hash ^ static_cast<std::uint64_t>(part)) * 0x100000001b3ull;
  }
  fingerprint.add("comm codec rank", codec_.rank);
  fingerprint.add("tensors", hash);
}

template <class S, class T, class Codec>
void Compressed<AllReduce<Algorithm<S, T>, true>, Codec>::enter(int stage, int bucket) {
  Bucket& b = at(bucket);
  const std::int64_t count = b.range.size();
  if (warming_up()) {
    if (stage == 0) this->engine_->begin(slot_of(plain, bucket));
    return;
  }
  if constexpr (bytewise) {
    const auto size = static_cast<std::size_t>(Codec::bytes(b.block));
    const auto me = static_cast<std::size_t>(this->rank());
    if (stage == 0) {
      for (int r = 0; r < this->size(); ++r) {
        const Range part = block_of(b, r);
        Codec::encode(b.encoded.data() + static_cast<std::size_t>(r) * size, gradients(b) + part.begin,
                      error(b) + part.begin, part.size());
      }
    } else if (stage == 1) {
      const Range mine = block_of(b, this->rank());
      std::fill(b.sum.begin(), b.sum.end(), 0.0f);
      for (std::size_t r = 0; r < static_cast<std::size_t>(this->size()); ++r)
        Codec::decode_add(b.sum.data(), r == me ? b.encoded.data() + me * size : b.inbox.data() + r * size,
                          mine.size());
      Codec::encode(b.gathered.data() + me * size, b.sum.data(), b.left.data(), mine.size());
    } else {
      for (int r = 0; r < this->size(); ++r) {
        const Range part = block_of(b, r);
        Codec::decode(gradients(b) + part.begin, b.gathered.data() + static_cast<std::size_t>(r) * size,
                      part.size());
      }
    }
  } else if constexpr (sparse) {
    auto* pairs = reinterpret_cast<codec::TopK::Pair*>(b.encoded.data());
    if (stage == 0) {
      codec_.encode(pairs + this->rank() * b.block, gradients(b), error(b), count, room_);
    } else {
      std::fill(gradients(b), gradients(b) + count, 0.0f);
      for (int r = 0; r < this->size(); ++r)
        for (std::int64_t k = 0; k < codec_.kept(count); ++k) {
          const auto& pair = pairs[r * b.block + k];
          if (pair.index >= count)
            fail("topk: rank ", r, " sent an index of ", pair.index, " in a bucket of ", count);
          gradients(b)[pair.index] += pair.value;
        }
    }
  } else if constexpr (factored) {
    if (stage == 0)
      b.factors.project(gradients(b), error(b));
    else if (stage == 1)
      b.factors.project_back(error(b));
    else
      b.factors.expand(gradients(b));
  } else {
    auto* halves = reinterpret_cast<typename Codec::Element*>(b.encoded.data());
    if (stage == 0)
      Codec::encode(halves, gradients(b), error(b), count);
    else
      Codec::decode(gradients(b), halves, count);
  }
  if (stage < stages) this->engine_->begin(slot_of(stage, bucket));
}

static_assert(Comm<Compressed<Ring<transport::Threads>, codec::Bf16>>);
static_assert(Comm<Compressed<Ring<transport::Threads>, codec::Int8>>);
static_assert(Comm<Compressed<Ring<transport::Threads>, codec::TopK>>);
static_assert(Comm<Compressed<Ring<transport::Threads>, codec::PowerSgd>>);

}  // namespace convoy::comm
