// Staged: a host Comm for an Exec on a device. Gradients pass through host memory, bucket by bucket.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/begun_buckets.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/comm/policy/wrapper.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/memory/space.hpp>

namespace convoy::comm {

/// Options of Staged.
struct StagedOptions {
  /// Limit of the wait for a step's gradients, counted from the last bucket that became final.
  Seconds deadline{60};

  static constexpr void fields(auto& self, auto&& field) {
    field("deadline", self.deadline, convoy::fields::local);
  }
};

namespace detail {

struct NothingLocked {};
/// Pins host memory that is often copied from and to a space, if the space asks for that.
template <memory::Space S>
auto lock(S& space, std::span<float> memory) {
  if constexpr (requires { space.lock(memory.data(), memory.size_bytes()); })
    return space.lock(memory.data(), memory.size_bytes());
  else
    return NothingLocked();
}
template <memory::Space S>
using Locked = decltype(lock(std::declval<S&>(), std::span<float>()));

/// Copies buckets from a space to host memory, in the order in which they are posted. It has its own thread
/// and stream, so that the copy of a bucket waits for that bucket alone.
template <memory::Space S>
class CopyOut {
 public:
  CopyOut() : thread_([this] { run(); }) {}
  CopyOut(const CopyOut&) = delete;
  CopyOut& operator=(const CopyOut&) = delete;
  ~CopyOut() {
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
    }
    posted_more_.notify_one();
    thread_.join();
  }

  /// The space that the thread uses; for use while nothing is posted.
  S& space() { return space_; }
  /// Each bucket is one of `ranges` and is copied from `from` to the same range of `to`.
  void open(const float* from, float* to, std::span<const Range> ranges) {
    const std::lock_guard lock(mutex_);
    from_ = from;
    to_ = to;
    ranges_ = ranges;
    posted_.reserve(ranges.size());
  }
  /// Posts a bucket, which is final once the stream has passed `ready`.
  void post(int bucket, Ready ready) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back({bucket, ready});
    }
    posted_more_.notify_one();
  }
  /// How many buckets of this step have been copied, in the order of `post`. Waits up to `most` for more than
  /// `known`. Rethrows the exception of a copy.
  std::size_t copied(std::size_t known, std::chrono::microseconds most) {
    std::unique_lock lock(mutex_);
    copied_more_.wait_for(lock, most, [&] { return copied_ > known || failure_; });
    if (failure_) std::rethrow_exception(failure_);
    return copied_;
  }
  std::size_t copied() {
    const std::lock_guard lock(mutex_);
    if (failure_) std::rethrow_exception(failure_);
    return copied_;
  }
  /// The `i`-th bucket that was posted in this step.
  int bucket(std::size_t i) {
    const std::lock_guard lock(mutex_);
    return posted_[i].bucket;
  }
  /// Discards posted buckets and waits for a copy under way, but not for a bucket to become final. Nothing is
  /// copied until the next `post`.
  void reset() {
    std::unique_lock lock(mutex_);
    ++step_;
    posted_.clear();
    copied_ = 0;
    copied_more_.wait(lock, [&] { return !using_; });
  }

 private:
  struct Posted {
    int bucket;
    Ready ready;
  };

  using Lock = std::unique_lock<std::mutex>;

  void run() {
    Lock lock(mutex_);
    while (true) {
      posted_more_.wait(lock, [&] { return quit_ || (!failure_ && copied_ < posted_.size()); });
      if (quit_) return;
      copy_next(lock);
    }
  }
  void copy_next(Lock& lock) {
    const Posted next = posted_[copied_];
    const std::uint64_t step = step_;
    try {
      using_caller(lock, [&] {
        if constexpr (requires { space_.enter(); }) space_.enter();
        space_.wait_for(next.ready);
      });
      // A copy that waits inside a driver may lock other threads out of it.
      unlocked(lock, [&] { space_.synchronize(); });
      const Range range = step == step_ ? ranges_[static_cast<std::size_t>(next.bucket)] : Range{};
      if (!range.empty())
        using_caller(lock, [&] {
          space_.read(to_ + range.begin, from_ + range.begin,
                      static_cast<std::size_t>(range.size()) * sizeof(float));
        });
    } catch (...) {
      failure_ = std::current_exception();
    }
    if (step == step_) ++copied_;  // unless reset() has discarded it meanwhile
    copied_more_.notify_all();
  }

  /// Calls `f` without the lock.
  template <class F>
  void unlocked(Lock& lock, F&& f) {
    struct Relock {
      Lock& lock;
      ~Relock() { lock.lock(); }
    };
    lock.unlock();
    const Relock relock{lock};
    f();
  }
  /// The same for an `f` that uses an event or an arena, which its owner may release once reset() has
  /// returned.
  template <class F>
  void using_caller(Lock& lock, F&& f) {
    struct Used {
      CopyOut& copy;
      ~Used() {
        copy.using_ = false;
        copy.copied_more_.notify_all();
      }
    };
    using_ = true;
    const Used used{*this};
    unlocked(lock, std::forward<F>(f));
  }

  S space_;  // another stream over the same memory
  const float* from_ = nullptr;
  float* to_ = nullptr;
  std::span<const Range> ranges_;
  std::mutex mutex_;
  std::condition_variable posted_more_, copied_more_;
  std::vector<Posted> posted_;  // in this step
  std::size_t copied_ = 0;      // how many of these have been copied
  std::uint64_t step_ = 0;      // changes with each reset
  bool using_ = false, quit_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

/// Host copy of a rule's partial values while the ranks add them up.
class PartialOnHost {
 public:
  template <class S>
  std::span<double> fetch(S& space, std::span<double> there) {
    if (!fetched_) {
      values_.resize(there.size());
      space.read(values_.data(), there.data(), there.size_bytes());
      fetched_ = true;
    }
    return values_;
  }
  template <class S>
  void put_back(S& space, std::span<double> there) {
    if (std::exchange(fetched_, false)) space.write(there.data(), values_.data(), there.size_bytes());
  }

 private:
  std::vector<double> values_;
  bool fetched_ = false;
};

/// An arena of the space and its counterpart on the host.
template <class S>
class Twin {
 public:
  Twin() = default;
  Twin(S& space, float* there, float* here, std::int64_t first = 0)
      : space_(&space), there_(there), here_(here), first_(first) {}

  float* there(Range range) const { return there_ + (range.begin - first_); }
  void bring_in(Range range) const { bring_in(range, here_ + (range.begin - first_)); }
  void bring_in(Range range, const float* from) const {
    if (!range.empty()) space_->write(there(range), from, bytes(range));
  }
  void take_out(Range range) const { take_out(range, here_ + (range.begin - first_)); }
  void take_out(Range range, float* to) const {
    if (!range.empty()) space_->read(to, there(range), bytes(range));
  }

 private:
  static std::size_t bytes(Range range) { return static_cast<std::size_t>(range.size()) * sizeof(float); }

  S* space_ = nullptr;
  float *there_ = nullptr, *here_ = nullptr;
  std::int64_t first_ = 0;  // the element that `there_` and `here_` point to
};

/// The update that the host Comm calls in a step: it copies sums to the space and applies them there.
template <class S>
struct UpdateThere {
  S& space;
  Update rule;
  const Twin<S>& gradients;
  const Twin<S>& parameters;
  PartialOnHost& sums;
  bool shared;         ///< other ranks get the parameters that this rank updates
  bool there = false;  ///< the sums are in the space already, because the rule asked for one more round

  bool decides() const { return rule.decides(); }
  void arrived(Range range, float scale) const {
    if (!there) gradients.bring_in(range);
    rule.arrived(range, scale);
  }
  std::span<double> partial() const { return sums.fetch(space, rule.partial()); }
  Decision decide() {
    sums.put_back(space, rule.partial());
    const Decision decision = rule.decide();
    there = decision == Decision::again;
    return decision;
  }
  void decided(Decision decision) const { rule.decided(decision); }
  void operator()(Range range, float scale) const {
    if (!rule.decides()) gradients.bring_in(range);
    rule(range, scale);
    if (shared) parameters.take_out(range);
  }
};

/// A server whose optimizer runs in a space: it copies a part's gradients and parameters in, and the
/// parameters back. It has its own arenas, because those of the worker are in use meanwhile.
template <memory::Space S>
class ServeThere {
 public:
  /// Allocates from `owner`, which must outlive this object; `space` need not.
  void open(S& space, S& owner, std::span<const Range> served) {
    space_ = &space;
    const Range range = served.empty() ? Range{} : Range{served.front().begin, served.back().end};
    const auto size = static_cast<std::size_t>(range.size());
    gradients_ = memory::Array<float, S>(owner, size);
    parameters_ = memory::Array<float, S>(owner, size);
    owner.synchronize();  // they were zeroed in another stream
    first_ = range.begin;
  }
  void serve(ServerUpdate update) { update_ = update; }

  bool decides() const { return update_->decides(); }
  void arrived(const ServerPart& part) { update_->arrived(again_ ? there(part) : bring_in(part)); }
  std::span<double> partial() { return sums_.fetch(*space_, update_->partial()); }
  Decision decide() {
    sums_.put_back(*space_, update_->partial());
    const Decision decision = update_->decide();
    again_ = decision == Decision::again;
    return decision;
  }
  void operator()(const ServerPart& part) {
    (*update_)(update_->decides() ? there(part) : bring_in(part));
    parameters().take_out(part.range, part.parameters);
  }

 private:
  Twin<S> gradients() { return {*space_, gradients_.data(), nullptr, first_}; }
  Twin<S> parameters() { return {*space_, parameters_.data(), nullptr, first_}; }
  ServerPart there(ServerPart part) {
    part.gradients = gradients().there(part.range);
    part.parameters = parameters().there(part.range);
    return part;
  }
  ServerPart bring_in(const ServerPart& part) {
    gradients().bring_in(part.range, part.gradients);
    parameters().bring_in(part.range, part.parameters);
    return there(part);
  }

  S* space_ = nullptr;
  memory::Array<float, S> gradients_, parameters_;
  std::int64_t first_ = 0;
  std::optional<ServerUpdate> update_;
  PartialOnHost sums_;
  bool again_ = false;  // the parts are in the space already, because the rule asked for one more round
};

}  // namespace detail

/// Adapts the host Comm `C` to arenas in the space `S`: `Staged<Ring<transport::Mpi>, Device>`. Codecs and
/// background threads go inside: `Staged<Compressed<Ring<T>, codec::Bf16>, Device>`,
/// `Staged<Background<Ring<T>>, Device>`, `Staged<Any, Device>`.
///
/// A bucket is copied to host memory as soon as its gradients are final, on a separate thread and stream; the
/// rank begins the exchange of the bucket the next time that it polls. Sums are copied back as they arrive.
/// Updates, including those of servers, are made in the space. Parameters that other ranks updated are copied
/// to the space at the end of a step. `finish` returns when all this is enqueued. Host memory for gradients
/// and parameters comes from `C::memory()`; nothing is allocated in a step. Not movable.
template <Comm C, memory::Space S>
class Staged : public Wrapper<C> {
  static_assert(works_in<C, memory::Host>,
                "convoy: Staged is of a Comm that works in host memory, such as Staged<Ring<T>, Space>");
  using Base = Wrapper<C>;

 public:
  using Space = S;
  using Options = StagedOptions;

  /// The arguments construct the `C`; StagedOptions may come before them.
  template <class... Arguments>
  explicit Staged(const Options& options, Arguments&&... arguments)
      : Base(std::in_place, std::forward<Arguments>(arguments)...), options_(options) {}
  Staged() : Staged(Options{}) {}
  template <class First, class... Arguments>
  requires(!std::is_convertible_v<First, const Options&>) explicit Staged(First&& first,
                                                                          Arguments&&... arguments)
      : Staged(Options{}, std::forward<First>(first), std::forward<Arguments>(arguments)...) {}

  std::pmr::memory_resource* memory() { return nullptr; }
  void open(const Fingerprint& fingerprint, const Layout& layout);
  void begin(int bucket, Ready ready = {});
  void poll() {
    carefully([&] {
      begin_copied(copy_out_.copied());
      Base::poll();
    });
  }
  void finish(Update update);

  void serve(ServerUpdate update) {
    if (!this->has_servers()) return Base::serve(update);
    // The servers start from rank 0's parameters, which they get from the host Comm.
    if (this->role() == Role::worker) parameters_.take_out(whole_);
    server_.serve(update);
    Base::serve(ServerUpdate(server_));
  }
  void dismiss() {
    Base::dismiss();
    if (this->has_servers() && this->role() == Role::worker) parameters_.bring_in(whole_);
  }
  void close() noexcept {
    copy_out_.reset();
    Base::close();
  }

 private:
  // How long the rank sleeps between two polls while it waits for a copy.
  static constexpr std::chrono::microseconds nap{50};

  void await_copies();
  // Stops copying before it throws, because the caller may then release the arenas.
  template <class F>
  void carefully(F&& f) {
    try {
      f();
    } catch (...) {
      copy_out_.reset();
      throw;
    }
  }
  void begin_copied(std::size_t copied) {
    for (; begun_here_ < copied; ++begun_here_) Base::begin(copy_out_.bucket(begun_here_));
  }

  Options options_;
  S* space_ = nullptr;
  Buffer<float> host_gradients_, host_parameters_;
  detail::Locked<S> locked_gradients_, locked_parameters_;  // pin these two
  std::vector<Range> buckets_;
  std::vector<Range> from_others_;  // the ranges that this rank does not update
  bool shared_ = false;             // each rank gets the parameters that others update
  Range whole_;                     // all parameters on the host
  detail::Twin<S> gradients_, parameters_;
  detail::PartialOnHost sums_;
  BegunBuckets begun_;          // by the caller
  std::size_t begun_here_ = 0;  // how many of these are begun in the host Comm
  detail::CopyOut<S> copy_out_;
  detail::ServeThere<S> server_;
};

template <Comm C, memory::Space S>
void Staged<C, S>::open(const Fingerprint& fingerprint, const Layout& layout) {
  if (layout.space == nullptr)
    fail<ConfigError>("staged: the layout does not say which object of the space ", S::name,
                      " holds the arenas");
  space_ = static_cast<S*>(layout.space);
  copy_out_.reset();
  const std::size_t size = layout.gradients.size();
  locked_gradients_ = {}, locked_parameters_ = {};
  host_gradients_ = Buffer<float>(size, Base::memory());
  host_parameters_ = Buffer<float>(std::min(size, layout.parameters.size()), Base::memory());
  locked_gradients_ = detail::lock(*space_, std::span<float>(host_gradients_));
  locked_parameters_ = detail::lock(*space_, std::span<float>(host_parameters_));
  whole_ = {0, static_cast<std::int64_t>(host_parameters_.size())};
  buckets_.assign(layout.buckets.begin(), layout.buckets.end());
  gradients_ = {*space_, layout.gradients.data(), host_gradients_.data()};
  parameters_ = {*space_, layout.parameters.data(), host_parameters_.data()};
  begun_.resize(buckets_.size());
  begun_here_ = 0;
  Base::open(fingerprint, {.gradients = host_gradients_,
                           .parameters = host_parameters_,
                           .buckets = buckets_,
                           .matrices = layout.matrices,
                           .whole = layout.whole});
  copy_out_.open(layout.gradients.data(), host_gradients_.data(), buckets_);

  const std::vector<Range> own = this->updates(buckets_);
  from_others_.clear();
  shared_ = false;
  if (this->has_servers()) {
    server_.open(*space_, copy_out_.space(), own);
    from_others_.push_back(whole_);
    return;
  }
  auto next = own.begin();
  for (const Range& bucket : buckets_) {
    std::int64_t at = bucket.begin;
    for (; next != own.end() && next->begin < bucket.end; ++next) {
      if (next->begin > at) from_others_.push_back({at, next->begin});
      at = std::max(at, next->end);  // the range of an empty bucket may lie before this bucket
    }
    if (at < bucket.end) from_others_.push_back({at, bucket.end});
  }
  // A rank that updates all of a small arena cannot tell by itself that the others update nothing.
  double any[] = {from_others_.empty() ? 0.0 : 1.0};
  Base::all_reduce(std::span<double>(any), max);
  shared_ = any[0] > 0;
}

template <Comm C, memory::Space S>
void Staged<C, S>::begin(int bucket, Ready ready) {
  begun_.begin(bucket);
  copy_out_.post(bucket, ready);
  poll();
}

template <Comm C, memory::Space S>
void Staged<C, S>::finish(Update update) {
  for (std::size_t b = 0; b < begun_.size(); ++b)
    if (!begun_[b]) begin(static_cast<int>(b), space_->mark());
  carefully([&] {
    await_copies();
    detail::UpdateThere<S> there{*space_, update, gradients_, parameters_, sums_, shared_};
    Base::finish(there);
  });
  for (const Range& range : from_others_) parameters_.bring_in(range);
  begun_.reset();
  begun_here_ = 0;
  copy_out_.reset();
}

template <Comm C, memory::Space S>
void Staged<C, S>::await_copies() {
  Stopwatch since_last;
  while (begun_here_ < begun_.size()) {
    const std::size_t before = begun_here_;
    begin_copied(copy_out_.copied(begun_here_, nap));
    Base::poll();
    if (begun_here_ > before) since_last.restart();
    if (since_last.seconds() > options_.deadline.count())
      throw CommError({.rank = this->rank(),
                       .operation = concat("staged bucket ", copy_out_.bucket(begun_here_)),
                       .elapsed = since_last.seconds(),
                       .culprit = this->rank()},
                      concat("its gradients were not final within ", options_.deadline.count(), " s"));
  }
}

}  // namespace convoy::comm
