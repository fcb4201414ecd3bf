// A schedule that is one of several: the one with the lowest price for a size.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/schedule/view.hpp>

namespace convoy::schedule {

/// One of the schedules `First, Rest...`, which must have the same goal; `choice` says which.
template <Schedule First, Schedule... Rest>
struct Auto {
  static constexpr std::string_view name = "auto";
  static constexpr Goal goal = First::goal;
  static_assert(((Rest::goal == goal) && ...),
                "convoy: schedules of different goals cannot stand in for each other");
  static constexpr int choices = 1 + static_cast<int>(sizeof...(Rest));
  int segments = 1;
  int window = 4;
  int choice = 0;
  friend constexpr bool operator==(const Auto&, const Auto&) = default;

  /// Calls `f` with the chosen schedule.
  template <class F>
  constexpr decltype(auto) visit(F&& f) const {
    return pick<First, Rest...>(choice, f);
  }
  constexpr int blocks(int size) const {
    return visit([&](const auto& s) { return s.blocks(size); });
  }
  constexpr int owner(int block, int size) const {
    return visit([&](const auto& s) { return s.owner(block, size); });
  }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    visit([&](const auto& s) { s.steps(rank, size, emit); });
  }

 private:
  template <class S, class... Others, class F>
  constexpr decltype(auto) pick(int index, F& f) const {
    if constexpr (sizeof...(Others) > 0)
      if (index > 0) return pick<Others...>(index - 1, f);
    const S chosen = segmented(S{}, segments, window);
    return f(chosen);
  }
};

namespace detail {

// Adapts a View to a schedule of messages with the given segments and window.
struct Viewed {
  static constexpr std::string_view name = "view";
  static constexpr Goal goal = Goal::all_reduce;
  View schedule;
  int segments = 1;
  int window = 4;
  friend bool operator==(const Viewed&, const Viewed&) = default;

  int blocks(int size) const { return schedule.blocks(size); }
  int owner(int, int) const { return 0; }  // not used by price()
  void steps(int rank, int size, Sink<Step> emit) const {
    schedule.steps(segments, window, rank, size, emit);
  }
};

}  // namespace detail

/// Which choice of `schedules` is cheapest for `count` elements of `element` bytes on `size` ranks.
/// `segments_of(blocks)` is the number of segments per block of a buffer of that many blocks. More than 16
/// segments are priced as 16, because the time to compute a price is proportional to the messages.
template <class SegmentsOf>
int cheapest(const View& schedules, int size, std::int64_t count, std::int64_t element,
             const CostModel& model, int window, SegmentsOf&& segments_of) {
  int best = 0;
  double least = 0;
  for (int choice = 0; choice < schedules.choices(); ++choice) {
    double seconds = 0;
    schedules.choose(choice, [&](const View& schedule) {
      const int segments = std::min(16, static_cast<int>(segments_of(schedule.blocks(size))));
      seconds = price(detail::Viewed{schedule, segments, window}, size, count, element, model).seconds;
    });
    if (choice == 0 || seconds < least) {
      best = choice;
      least = seconds;
    }
  }
  return best;
}

/// The same for the schedules that `A` chooses among.
template <class A, class SegmentsOf>
int cheapest(int size, std::int64_t count, std::int64_t element, const CostModel& model, int window,
             SegmentsOf&& segments_of) {
  return cheapest(View::of<A>(), size, count, element, model, window, segments_of);
}

}  // namespace convoy::schedule
