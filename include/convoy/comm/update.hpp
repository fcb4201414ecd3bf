// Update: what a Comm drives when sums of gradients have come: at once, range by range, or, where a rule must
// see the whole gradient (its norm, whether it is finite), in three calls: arrived, decide, update.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include <convoy/core/decision.hpp>
#include <convoy/core/range.hpp>

namespace convoy::comm {

/// An object that decides over the whole gradient of a step before it updates. `Part...` says what an update
/// is of: a range and a scale, or a ServerPart.
///
///   `decides()`        whether the calls below but `update` are to be made in this step; all ranks agree
///   `arrived(part)`    the sums of the part are in the gradients; called once for each part
///   `partial()`        what has been added up over the parts that arrived on this rank, such as squares of
///                      a norm; where ranks see different parts, the Comm puts the sum over ranks there
///   `decide()`         `partial()` covers the whole gradient. It may return a bool: false says that the
///                      step is skipped, so that a codec forgets the step. The next `arrived` begins anew. Or
///                      it returns a Decision, alike on all ranks: `again` asks for one more round of
///                      `arrived` for each part, `partial()` over all ranks, and `decide()`.
///   `update(part)`     or a call of the object: updates the parameters of the part, whatever was decided
template <class U, class... Part>
concept Decider = requires(U& u, Part... part) {
  { u.decides() } -> std::same_as<bool>;
  u.arrived(part...);
  { u.partial() } -> std::same_as<std::span<double>>;
  u.decide();
};

/// A view of an object that updates: a plain callable, or a Decider. The object must outlive the view.
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

  /// Updates the parameters of a part. It may read the gradients but not write them: other ranks may still
  /// be reading.
  void operator()(Part... part) const { update_(object_, part...); }

  bool decides() const { return rule_ != nullptr && rule_->decides(object_); }
  void arrived(Part... part) const { rule_->arrived(object_, part...); }
  std::span<double> partial() const { return rule_->partial(object_); }
  Decision decide() const { return rule_->decide(object_); }

 private:
  struct Rule {
    bool (*decides)(void*);
    void (*arrived)(void*, Part...);
    std::span<double> (*partial)(void*);
    Decision (*decide)(void*);
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
                                &BasicUpdate::decide<U>};

  void* object_;
  void (*update_)(void*, Part...);
  const Rule* rule_ = nullptr;
};

/// `void(Range range, float scale)`: updates the parameters of `range` from the gradients of `range` times
/// `scale`; or a Decider of the same two.
using Update = BasicUpdate<Range, float>;

/// One update on a server: of the parameters of `range`, which lie at `parameters`, from the gradients that
/// lie at `gradients`, times `scale`. `step` is the training step that the update belongs to, counted from 0
/// (for a schedule of learning rates), `count` how many updates the range has had with this one (for bias
/// corrections).
struct ServerPart {
  Range range;
  float* parameters = nullptr;
  const float* gradients = nullptr;
  float scale = 1;
  std::int64_t step = 0, count = 1;
};

/// `void(const ServerPart& part)`, or a Decider of a ServerPart.
using ServerUpdate = BasicUpdate<const ServerPart&>;

/// The updates of a step on a rank that gets all sums. Each range is updated as it arrives; where a rule
/// decides, all ranges are updated once the rule has decided, and the ranks need not talk about it: all hold
/// the same bits.
class Arrivals {
 public:
  explicit Arrivals(Update update) : update_(update), decides_(update.decides()) {}
  bool decides() const { return decides_; }

  /// The sums of a range have come.
  void arrived(Range range) const {
    if (decides_)
      update_.arrived(range, 1.0f);
    else
      update_(range, 1.0f);
  }
  /// The sums of all ranges have come; `ranges` in the order of their updates. False: the step is skipped.
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
