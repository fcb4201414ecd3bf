// Queue: the pending events, in time order.
//
// Thousands of events are pending, most of them within a few latencies. A calendar queue (Brown, "Calendar
// queues", CACM 1988) finds the next one without comparing it to all others. The length of a day adapts so
// that each day holds some events. Today's events are in a heap, those of the rest of the year in a list for
// each day, and those beyond the year in a heap of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace convoy::sim {

/// An event. Of simultaneous events the one with the lower `tie` comes first, so that the order never depends
/// on the order in which events were pushed.
struct Event {
  double at = 0;
  std::uint32_t tie = 0;
  std::uint32_t what = 0;

  friend bool operator<(const Event& a, const Event& b) {
    return a.at != b.at ? a.at < b.at : a.tie != b.tie ? a.tie < b.tie : a.what < b.what;
  }
};

/// A heap with four children per node: half as deep as a binary one, and siblings share a cache line (LaMarca
/// and Ladner, "The influence of caches on the performance of heaps", 1996).
class EventHeap {
 public:
  bool empty() const { return heap_.empty(); }
  std::size_t size() const { return heap_.size(); }
  const Event& first() const { return heap_.front(); }

  void push(const Event& event) {
    std::size_t i = heap_.size();
    heap_.push_back(event);
    while (i > 0) {
      const std::size_t parent = (i - 1) / 4;
      if (!(event < heap_[parent])) break;
      heap_[i] = heap_[parent];
      i = parent;
    }
    heap_[i] = event;
  }

  Event pop() {
    const Event first = heap_.front(), last = heap_.back();
    heap_.pop_back();
    const std::size_t size = heap_.size();
    if (size == 0) return first;
    std::size_t i = 0;
    for (std::size_t child = 1; child < size; child = 4 * i + 1) {
      const std::size_t end = child + 4 < size ? child + 4 : size;
      std::size_t least = child;
      for (std::size_t k = child + 1; k < end; ++k)
        if (heap_[k] < heap_[least]) least = k;
      if (!(heap_[least] < last)) break;
      heap_[i] = heap_[least];
      i = least;
    }
    heap_[i] = last;
    return first;
  }

 private:
  std::vector<Event> heap_;
};

class Queue {
 public:
  Queue() : days_(year) {}

  bool empty() const { return size_ == 0; }
  /// The time of the next event; infinity if there is none.
  double next() {
    if (size_ == 0) return std::numeric_limits<double>::infinity();
    if (today_.empty()) wake();
    return today_.first().at;
  }

  /// An event must not be earlier than the last one that was popped.
  void push(const Event& event) {
    ++size_;
    place(event);
  }

  Event pop() {
    if (today_.empty()) wake();
    --size_;
    ++popped_;
    return today_.pop();
  }

 private:
  static constexpr std::int64_t year = 4096;         // days
  static constexpr std::int64_t few = 2, many = 24;  // events per day

  std::int64_t day_of(const Event& event) const {
    return static_cast<std::int64_t>(std::min(event.at / length_, 9e18));
  }
  void place(const Event& event) {
    const std::int64_t day = day_of(event);
    if (day <= day_)
      today_.push(event);
    else if (day < day_ + year)
      days_[static_cast<std::size_t>(day % year)].push_back(event);
    else
      later_.push(event);
    if (day > day_ && day < day_ + year) ++in_year_;
  }

  // Makes the next day with an event today.
  void wake() {
    if (passed_ >= year) adapt();
    if (!today_.empty()) return;
    if (in_year_ == 0) day_ = day_of(later_.first()) - 1;
    do {
      ++day_;
      // Moves events that are now within a year into the calendar.
      while (!later_.empty() && day_of(later_.first()) < day_ + year) place(later_.pop());
    } while (days_[static_cast<std::size_t>(day_ % year)].empty() && today_.empty());
    std::vector<Event>& events = days_[static_cast<std::size_t>(day_ % year)];
    for (const Event& event : events) today_.push(event);
    in_year_ -= static_cast<std::int64_t>(events.size());
    events.clear();
    ++passed_;
  }

  // Makes days longer or shorter if they hold too few or too many events.
  void adapt() {
    const std::int64_t held = popped_ / passed_;
    passed_ = popped_ = 0;
    if (held >= few && held <= many) return;
    std::vector<Event> all;
    while (!later_.empty()) all.push_back(later_.pop());
    for (std::vector<Event>& events : days_) {
      all.insert(all.end(), events.begin(), events.end());
      events.clear();
    }
    if (all.empty()) return;
    const double now = static_cast<double>(day_) * length_;
    length_ *= held < few ? 4 : 0.25;
    day_ = static_cast<std::int64_t>(now / length_);
    in_year_ = 0;
    for (const Event& event : all) place(event);
  }

  std::size_t size_ = 0;
  double length_ = 1e-6;  // of a day, in seconds
  std::int64_t day_ = -1, in_year_ = 0, passed_ = 0, popped_ = 0;
  EventHeap today_, later_;
  std::vector<std::vector<Event>> days_;
};

}  // namespace convoy::sim
