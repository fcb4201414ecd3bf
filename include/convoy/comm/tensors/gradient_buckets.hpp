// GradientBuckets: exchanges the gradients of a backward pass that convoy does not compute, during that pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/tensors/carrier.hpp>
#include <convoy/comm/tensors/fusion.hpp>
#include <convoy/comm/tensors/named_span.hpp>
#include <convoy/comm/tensors/nonblocking.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/memory/buffer.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstring>
#include <string>

#include <convoy/comm/error.hpp>
#include <convoy/core/fields.hpp>
#endif

namespace convoy::comm {

/// Gradients anywhere in memory, registered once in the order in which backward finishes them. A training
/// step calls `ready(i)` for each gradient as soon as it is final, `poll()` as often as convenient, and
/// `wait()`, after which every tensor holds the mean (or the sum) over ranks:
///
///     comm::Nonblocking<comm::Ring<transport::Mpi>> comm{session};
///     comm::GradientBuckets gradients{comm, {{"fc2.weight", dw2}, {"fc1.weight", dw1}}};
///     for (...) {
///       ... gradients.ready(0); ... gradients.ready(1);
///       gradients.wait();
///       ... update ...
///     }
///
/// Ranks may mark tensors in different orders. A bucket is sent once all its tensors are marked and all
/// buckets before it are sent, so the order is the same on all ranks, as in PyTorch's DDP. A bucket whose
/// tensors are contiguous is exchanged in place (with no copy if they lie in memory of the exchange,
/// `comm.memory()`); any other bucket is packed into memory of the exchange. From `ready(i)` to the end of
/// the step the tensor belongs to the exchange. Once each bucket has been exchanged, a step allocates
/// nothing.
///
/// With gradient accumulation, gradients are added up over micro-steps and marked in the last one only.
class GradientBuckets {
 public:
  /// All ranks call it with the same names, counts, types and options; otherwise all throw a ConfigError that
  /// names rank and field: "rank 1 differs from rank 0 in gradient 3: 10 f32 of fc1.bias instead of 784 f32
  /// of fc1.weight". `exchange` must outlive this object and have nothing in flight now. Also throws
  /// ConfigError for min and max, for the mean of i32, for gradients that share memory, and if there are no
  /// gradients.
  GradientBuckets(NonblockingExchange& exchange, std::vector<NamedSpan> gradients,
                  const FusionOptions& options = {})
      : GradientBuckets(std::make_unique<detail::NonblockingCarrier>(exchange), std::move(gradients),
                        options) {}
  /// The same over any Comm that leaves every sum on every rank (Hierarchical over two transports,
  /// Compressed, Reproducible, Native, Any). Gradients are f32, and the buckets of `comm` are used for
  /// nothing else. Buckets are exchanged in place only if all of them are contiguous; results are there after
  /// `wait`. Throws ConfigError for a Comm with servers or shards, and for a Comm that another
  /// GradientBuckets uses.
  template <Comm C>
  GradientBuckets(C& comm, std::vector<NamedSpan> gradients, const FusionOptions& options = {})
      : GradientBuckets(std::make_unique<detail::CommCarrier<C>>(comm), std::move(gradients), options) {}
  /// Gives up the exchange if a step is under way.
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Marks gradient i as final. Does not wait. Throws Error if the gradient was already marked in this step,
  /// CommError if the exchange has failed.
  void ready(int gradient);
  /// Says that this rank has no gradient for tensor i in this step. The gradient counts as zeros in sum and
  /// mean, and the tensor ends with the result of the other ranks.
  void unused(int gradient);
  /// Advances the exchange as far as possible.
  void poll();
  /// Ends the step: returns when all tensors hold their results and may be written again. A CommError names
  /// the tensors that were waited for. If this rank has not marked a tensor, and options.find_unused is not
  /// set, the CommError names that tensor and has this rank as its culprit; the other ranks wait for this
  /// rank no longer than the deadline.
  void wait();

  /// After `wait` with options.find_unused: whether any rank has marked the gradient as ready. If none has,
  /// the tensor holds zeros.
  bool used(int gradient) const;

  int count() const { return static_cast<int>(gradients_.size()); }
  /// Throws Error if there is no such gradient.
  const NamedSpan& gradient(int i) const { return gradients_[checked(i)]; }
  const std::vector<FusedBucket>& buckets() const { return fused_; }
  /// Whether the bucket's tensors are copied into contiguous memory. Throws Error if there is no such bucket.
  bool packed(int bucket) const;

 private:
  enum class Mark : unsigned char { none, ready, unused };
  struct FusedState {
    std::byte* data = nullptr;  // of the whole bucket
    bool packed = false;
    int missing = 0;  // unmarked tensors
    float scale = 1;  // factor that the result is still to be multiplied by
  };
  GradientBuckets(std::unique_ptr<detail::Carrier> carrier, std::vector<NamedSpan> gradients,
                  const FusionOptions& options);

  std::size_t checked(int gradient) const;
  void mark(int gradient, Mark as);
  void launch();
  void place(detail::Load* loads);
  void unpack(std::size_t bucket);
  void begin_step();
  [[noreturn]] void refuse_unmarked();
  std::string_view name_of(int gradient) const { return gradients_[static_cast<std::size_t>(gradient)].name; }
  template <class F>
  void named(const std::size_t& bucket, F&& f) const;

  // Copies `bytes` bytes. If `scale` is not 1, the bytes are f32 and each number is multiplied by `scale`.
  static void copy(void* into, const void* from, std::size_t bytes, float scale);

  std::vector<NamedSpan> gradients_;
  FusionOptions options_;
  std::vector<FusedBucket> fused_;
  std::vector<FusedState> at_;        // of each bucket
  std::vector<int> bucket_of_;        // of each gradient
  std::vector<std::int64_t> offset_;  // of each gradient, in its bucket, in bytes
  std::vector<Mark> marks_;           // of each gradient, in this step
  Buffer<std::byte> gathered_;        // the packed buckets
  std::vector<float> used_;           // of each gradient: whether this rank, after `wait` any rank, has it
  float before_ = 1;                  // factor applied to gradients when they are marked
  std::unique_ptr<detail::Carrier> carrier_;
  std::size_t begun_ = 0, ended_ = 0;  // buckets of this step
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION GradientBuckets::GradientBuckets(std::unique_ptr<detail::Carrier> carrier,
                                                 std::vector<NamedSpan> gradients,
                                                 const FusionOptions& options)
    : gradients_(std::move(gradients)), options_(options), carrier_(std::move(carrier)) {
  if (options.op != Op::sum && options.op != Op::mean)
    fail<ConfigError>("gradients are combined by sum or mean, not by ", comm::name_of(options.op));
  if (gradients_.empty()) fail<ConfigError>("there is no gradient to exchange");
  for (const NamedSpan& g : gradients_) {
    if (carrier_->one_arena() && g.type() != DType::f32)
      fail<ConfigError>("gradient ", g.name, " is ", convoy::name_of(g.type()),
                        ", and the buckets of this exchange are f32; use comm::Nonblocking for other types");
    if (options.op == Op::mean && g.type() == DType::i32)
      fail<ConfigError>("the mean of i32 is not defined, and gradient ", g.name,
                        " is i32; register f32 or f64, or use sum");
  }
  Fingerprint same = detail::registered("gradient", gradients_);
  detail::refuse_overlaps("gradient", gradients_);
  fields::for_each_text("fusion", options, [&](std::string_view name, const std::string& text, bool) {
    same.add(name, std::string_view(text));
  });
  before_ = carrier_->before(options.op);
  fused_ = fuse(gradients_, options);
  marks_.resize(gradients_.size());
  used_.assign(gradients_.size(), 1);
  std::vector<detail::Load> loads(fused_.size());
  place(loads.data());
  carrier_->open(same, loads);
  begin_step();
}

// Where each bucket lies: in place if its tensors are contiguous, else in memory of the exchange.
CONVOY_FUNCTION void GradientBuckets::place(detail::Load* loads) {
  bucket_of_.resize(gradients_.size());
  offset_.resize(gradients_.size());
  at_.resize(fused_.size());
  bool apart = false;
  const std::byte* end = nullptr;  // of all buckets so far
  for (std::size_t b = 0; b < fused_.size(); ++b) {
    FusedState& state = at_[b];
    std::int64_t offset = 0;
    for (const int t : fused_[b].tensors) {
      const NamedSpan& g = gradients_[static_cast<std::size_t>(t)];
      if (offset == 0) state.data = static_cast<std::byte*>(g.data);
      state.packed = state.packed || (g.count > 0 && g.data != state.data + offset);
      apart = apart || state.packed || (end != nullptr && g.count > 0 && g.data != end);
      if (g.count > 0) end = static_cast<std::byte*>(g.data) + g.bytes();
      bucket_of_[static_cast<std::size_t>(t)] = static_cast<int>(b);
      offset_[static_cast<std::size_t>(t)] = offset;
      offset += static_cast<std::int64_t>(g.bytes());
    }
    loads[b].reduction = gradients_[static_cast<std::size_t>(fused_[b].tensors[0])].add;
    loads[b].reduction.op = options_.op;
    loads[b].count = fused_[b].count;
  }
  if (carrier_->one_arena())
    for (FusedState& state : at_) state.packed = apart;
  // One arena has no gaps, so that it matches ranks whose tensors are contiguous.
  const std::size_t grain = carrier_->one_arena() ? 1 : alignment;
  const auto room = [&](std::size_t b) {
    const std::size_t bytes = static_cast<std::size_t>(fused_[b].count) * size_of(fused_[b].type);
    return at_[b].packed ? (bytes + grain - 1) / grain * grain : 0;
  };
  std::size_t bytes = 0;
  for (std::size_t b = 0; b < fused_.size(); ++b) bytes += room(b);
  gathered_ = Buffer<std::byte>(bytes, carrier_->memory());
  std::size_t used = 0;
  for (std::size_t b = 0; b < fused_.size(); ++b) {
    if (at_[b].packed) at_[b].data = gathered_.data() + used;
    used += room(b);
    loads[b].data = at_[b].data;
  }
}

CONVOY_FUNCTION GradientBuckets::~GradientBuckets() {
  // From the first mark on, the other ranks wait for this one.
  if (std::any_of(marks_.begin(), marks_.end(), [](Mark mark) { return mark != Mark::none; }))
    carrier_->fail_with(CommError({carrier_->rank(), -1, "gradients", 0, 0, 0, carrier_->rank()},
                                  "they were given up in the middle of a step"));
}

CONVOY_FUNCTION void GradientBuckets::begin_step() {
  begun_ = ended_ = 0;
  std::fill(marks_.begin(), marks_.end(), Mark::none);
  for (std::size_t b = 0; b < fused_.size(); ++b) at_[b].missing = static_cast<int>(fused_[b].tensors.size());
}

CONVOY_FUNCTION void GradientBuckets::ready(int gradient) {
  mark(gradient, Mark::ready);
  poll();
}

CONVOY_FUNCTION void GradientBuckets::unused(int gradient) {
  mark(gradient, Mark::unused);
  poll();
}

CONVOY_FUNCTION void GradientBuckets::mark(int gradient, Mark as) {
  const std::size_t i = checked(gradient);
  const NamedSpan& g = gradients_[i];
  if (marks_[i] != Mark::none) {
    poll();  // throws if the exchange has failed, which has not ended the step
    fail("gradient ", g.name, " was marked twice in one step");
  }
  FusedState& state = at_[static_cast<std::size_t>(bucket_of_[i])];
  std::byte* const into = state.data + offset_[i];
  // Without a share a gradient must not count, but 0 times NaN would.
  if (g.count > 0 && (as == Mark::unused || before_ == 0))
    std::memset(into, 0, g.bytes());
  else if (state.packed || before_ != 1)
    copy(into, g.data, g.bytes(), before_);
  marks_[i] = as;
  --state.missing;
  launch();
}

CONVOY_FUNCTION void GradientBuckets::launch() {
  for (; begun_ < fused_.size() && at_[begun_].missing == 0; ++begun_)
    carrier_->begin(static_cast<int>(begun_));
}

CONVOY_FUNCTION void GradientBuckets::poll() {
  if (begun_ == ended_) carrier_->poll();
  for (bool there = true; ended_ < begun_; ++ended_) {
    named(ended_, [&] { there = carrier_->arrived(static_cast<int>(ended_)); });
    if (!there) break;
    unpack(ended_);
  }
}

CONVOY_FUNCTION void GradientBuckets::copy(void* into, const void* from, std::size_t bytes, float scale) {
  if (scale == 1) {
    if (bytes > 0) std::memcpy(into, from, bytes);
    return;
  }
  auto* const to = static_cast<float*>(into);
  const auto* const values = static_cast<const float*>(from);
  for (std::size_t i = 0; i < bytes / sizeof(float); ++i) to[i] = values[i] * scale;
}

CONVOY_FUNCTION void GradientBuckets::unpack(std::size_t bucket) {
  if (!at_[bucket].packed) return;
  for (const int t : fused_[bucket].tensors) {
    const auto i = static_cast<std::size_t>(t);
    copy(gradients_[i].data, at_[bucket].data + offset_[i], gradients_[i].bytes(), at_[bucket].scale);
  }
}

// Runs `f`; a CommError in it is rethrown as one of the bucket's tensors.
template <class F>
void GradientBuckets::named(const std::size_t& bucket, F&& f) const {
  try {
    f();
  } catch (const CommError& e) {
    std::string_view reason = e.what();
    if (const std::string who = concat("rank ", e.rank, ": "); reason.starts_with(who))
      reason.remove_prefix(who.size());
    const std::vector<int>& tensors = fused_[std::min(bucket, fused_.size() - 1)].tensors;
    CommError error({e.rank, -1,
                     tensors.size() == 1
                         ? concat("gradient ", name_of(tensors.front()))
                         : concat("gradients ", name_of(tensors.front()), " to ", name_of(tensors.back())),
                     e.sequence, e.bytes, e.elapsed, e.culprit},
                    reason);
    error.peer = e.peer;
    error.root = e.root;
    throw error;
  }
}

CONVOY_FUNCTION void GradientBuckets::refuse_unmarked() {
  const auto first = std::find(marks_.begin(), marks_.end(), Mark::none);
  const auto missing = std::count(marks_.begin(), marks_.end(), Mark::none);
  const int me = carrier_->rank();
  const std::string which(name_of(static_cast<int>(first - marks_.begin())));
  const CommError error(
      {me, -1, concat("gradient ", which), 0, 0, 0, me},
      concat("the step ended before rank ", me, " marked it as ready or unused",
             missing > 1 ? concat(" (nor ", counted(missing - 1, "other"), ")") : std::string(),
             "; set find_unused if a step may leave gradients unused"));
  carrier_->fail_with(error);
  throw error;
}

CONVOY_FUNCTION void GradientBuckets::wait() {
  if (!options_.find_unused && std::find(marks_.begin(), marks_.end(), Mark::none) != marks_.end())
    refuse_unmarked();
  for (std::size_t i = 0; i < marks_.size(); ++i) {
    if (options_.find_unused) used_[i] = marks_[i] == Mark::ready ? 1 : 0;
    if (marks_[i] == Mark::none) mark(static_cast<int>(i), Mark::unused);
  }
  poll();  // throws if the exchange has failed, which may not have begun all buckets
  named(ended_, [&] {
    carrier_->finish(static_cast<int>(ended_), [&](int bucket, float scale) {
      ended_ = static_cast<std::size_t>(bucket);
      at_[ended_].scale = scale;
      unpack(ended_++);
    });
  });
  for (std::size_t b = 0; b < fused_.size(); ++b)
    if (!at_[b].packed && at_[b].scale != 1)
      copy(at_[b].data, at_[b].data, static_cast<std::size_t>(fused_[b].count) * size_of(fused_[b].type),
           at_[b].scale);
  if (options_.find_unused) carrier_->largest(used_);
  begin_step();
}

CONVOY_FUNCTION bool GradientBuckets::used(int gradient) const { return used_[checked(gradient)] > 0; }

CONVOY_FUNCTION bool GradientBuckets::packed(int bucket) const {
  if (bucket < 0 || static_cast<std::size_t>(bucket) >= at_.size())
    fail("there is no bucket ", bucket, "; the gradients are in ", at_.size(), " buckets");
  return at_[static_cast<std::size_t>(bucket)].packed;
}

CONVOY_FUNCTION std::size_t GradientBuckets::checked(int gradient) const {
  if (gradient < 0 || gradient >= count())
    fail("there is no gradient ", gradient, "; ", count(), count() == 1 ? " is" : " are", " registered");
  return static_cast<std::size_t>(gradient);
}
#endif

}  // namespace convoy::comm
