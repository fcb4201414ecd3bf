// Update: the callable that a Comm calls when sums of gradients have arrived. A plain update is called at
// once, range by range. A rule that must see the whole gradient first (its norm, whether it is finite) has
// three calls: arrived, decide, update.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include <convoy/core/decision.hpp>
#include <convoy/core/range.hpp>

namespace convoy::comm {

/// An object that decides over the whole gradient of a step before it updates. `Part...` are the arguments of
/// an update: a range and a scale, or a ServerPart.
///
///   `decides()`        whether this step uses `arrived`, `partial` and `decide`; the same on all ranks
///   `arrived(part)`    the sums of the part are in the gradients; called once for each part
///   `partial()`        the values accumulated over the parts that arrived on this rank, such as the sum of
///                      squares of a norm; if ranks see different parts, the Comm stores the sum over ranks
///                      there
///   `decide()`         called when `partial()` covers the whole gradient. It may return a bool: false means
///                      that the step is skipped, so that a codec discards the step. The next `arrived`
///                      starts anew. Or it returns a Decision, the same on all ranks: `again` requests one
///                      more round of `arrived` for each part, `partial()` over all ranks, and `decide()`.
///   `update(part)`     or `operator()`: updates the parameters of the part, whatever was decided
///
/// On a worker whose parameters are updated by servers on other ranks, none of these is called but
///
///   `decided(d)`       optional: what the servers have decided about this step, apply or skip
template <class U, class... Part>
concept Decider = requires(U& u, Part... part) {
  { u.decides() } -> std::same_as<bool>;
  u.arrived(part...);
  { u.partial() } -> std::same_as<std::span<double>>;
  u.decide();
};

/// A non-owning view of an updater: a plain callable, or a Decider. The updater must outlive the view.
template <class... Part>
class BasicUpdate {
  template <class U>
  static constexpr bool named = requires(U& u, Part... part) {
    u.update(part...);
  };

 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, BasicUpdate> &&
           (std::is_invocable_v<F&, Part...> || named<std::remove_reference_t<F>>)) BasicUpdate(F&& object)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(object)))),
        update_([](void* it, Part... part) {
          auto& updater = *static_cast<std::remove_reference_t<F>*>(it);
          if constexpr (named<std::remove_reference_t<F>>)
            updater.update(part...);
          else
            updater(part...);
        }) {
    using U = std::remove_reference_t<F>;
    static_assert(
        Decider<U, Part...> || !requires(U & u) { u.decide(); },
        "convoy: an object that decides has arrived(part), partial() and decides() beside decide()");
    if constexpr (Decider<U, Part...>) rule_ = &rule_of<U>;
  }

  /// Updates the parameters of a part. The updater may read the gradients but must not write them, because
  /// other ranks may still be reading them.
  void operator()(Part... part) const { update_(object_, part...); }

  bool decides() const { return rule_ != nullptr && rule_->decides(object_); }
  void arrived(Part... part) const { rule_->arrived(object_, part...); }
  std::span<double> partial() const { return rule_->partial(object_); }
  Decision decide() const { return rule_->decide(object_); }
  void decided(Decision decision) const { rule_->decided(object_, decision); }

 private:
  struct Rule {
    bool (*decides)(void*);
    void (*arrived)(void*, Part...);
    std::span<double> (*partial)(void*);
    Decision (*decide)(void*);
    void (*decided)(void*, Decision);
  };
  template <class U>
  static Decision decide(void* it) {
    auto& decider = *static_cast<U*>(it);
    using Answer = decltype(decider.decide());
    if constexpr (std::is_same_v<Answer, Decision>) {
      return decider.decide();
    } else if constexpr (std::is_same_v<Answer, bool>) {
      return decider.decide() ? Decision::apply : Decision::skip;
    } else {
      decider.decide();
      return Decision::apply;
    }
  }
  template <class U>
  static constexpr Rule rule_of{[](void* it) { return static_cast<U*>(it)->decides(); },
                                [](void* it, Part... part) { static_cast<U*>(it)->arrived(part...); },
                                [](void* it) { return static_cast<U*>(it)->partial(); },
                                &BasicUpdate::decide<U>,
                                [](void* it, [[maybe_unused]] Decision decision) {
                                  if constexpr (requires(U & u) { u.decided(decision); })
                                    static_cast<U*>(it)->decided(decision);
                                }};

  void* object_;
  void (*update_)(void*, Part...);
  const Rule* rule_ = nullptr;
};

/// `void(Range range, float scale)`: updates the parameters of `range` from the gradients of `range` times
/// `scale`; or a Decider with these two arguments.
using Update = BasicUpdate<Range, float>;

/// One update on a server: updates the parameters of `range`, stored at `parameters`, from the gradients
/// stored at `gradients` times `scale`. `step` is the training step of the update, counted from 0 (for
/// learning-rate schedules). `count` is the number of updates of the range including this one (for bias
/// correction).
struct ServerPart {
  Range range;
  float* parameters = nullptr;
  const float* gradients = nullptr;
  float scale = 1;
  std::int64_t step = 0, count = 1;
};

/// `void(const ServerPart& part)`, or a Decider of a ServerPart.
using ServerUpdate = BasicUpdate<const ServerPart&>;

/// The updates of a step on a rank that gets all sums. Each range is updated as it arrives. If a rule
/// decides, all ranges are updated after the decision; the ranks need not communicate for it, because all
/// hold the same bits.
class Arrivals {
 public:
  explicit Arrivals(Update update) : update_(update), decides_(update.decides()) {}
  bool decides() const { return decides_; }

  /// The sums of a range have arrived.
  void arrived(Range range) const {
    if (decides_)
      update_.arrived(range, 1.0f);
    else
      update_(range, 1.0f);
  }
  /// The sums of all ranges have arrived; `ranges` are in the order of their updates. Returns false if the
  /// step is skipped.
  bool all(std::span<const Range> ranges) const {
    if (!decides_) return true;
    Decision decision = update_.decide();
    while (decision == Decision::again) {
      for (const Range& range : ranges) update_.arrived(range, 1.0f);
      decision = update_.decide();
    }
    for (const Range& range : ranges) update_(range, 1.0f);
    return decision == Decision::apply;
  }

 private:
  Update update_;
  bool decides_;
};

}  // namespace convoy::comm
