// Timeline: the events of a rank, written as a Chrome trace (io/chrome_trace.hpp) with one process per rank
// and tracks for computation, exchange and the optimizer.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>
#include <convoy/io/chrome_trace.hpp>
#endif

namespace convoy::train {

enum class Track : std::uint8_t { compute, exchange, optimizer };

/// An event. Trivially copyable, so that ranks can send events to each other.
struct TimelineEvent {
  std::array<char, 23> name{};
  Track track = Track::compute;
  double begin = 0, end = 0;  ///< seconds since the ranks' common start
};

/// Records the events of one rank, on GPUs by timestamps of its streams, in memory reserved at construction.
/// N events that do not fit are recorded as one event, "dropped N".
class Timeline {
 public:
  /// Has room for `capacity` events.
  explicit Timeline(std::size_t capacity = 1 << 16) : capacity_(capacity) { events_.reserve(capacity + 1); }

  /// Sets the time that counts as zero. Trainer calls it on all ranks right after a barrier.
  void start(Clock::time_point zero = Clock::now()) { zero_ = zero; }

  /// Records an event called `name`, followed by `number` unless that is negative.
  void record(std::string_view name, int number, Track track, Clock::time_point begin,
              Clock::time_point end) {
    const double from = Seconds(begin - zero_).count(), to = Seconds(end - zero_).count();
    if (events_.size() >= capacity_) return drop(track, from, to);
    TimelineEvent event{.track = track, .begin = from, .end = to};
    if (number < 0)
      std::snprintf(event.name.data(), event.name.size(), "%.*s", static_cast<int>(name.size()), name.data());
    else
      std::snprintf(event.name.data(), event.name.size(), "%.*s %d", static_cast<int>(name.size()),
                    name.data(), number);
    events_.push_back(event);
  }

  const std::vector<TimelineEvent>& events() const { return events_; }

 private:
  void drop(Track track, double begin, double end) {
    if (dropped_++ == 0) events_.push_back({.track = track, .begin = begin, .end = end});
    TimelineEvent& all = events_.back();
    all.end = std::max(all.end, end);
    std::snprintf(all.name.data(), all.name.size(), "dropped %zu", dropped_);
  }

  Clock::time_point zero_ = Clock::now();
  std::size_t capacity_;
  std::vector<TimelineEvent> events_;
  std::size_t dropped_ = 0;
};

/// Writes the events of all ranks. Throws Error if the file cannot be written.
void write_timeline(const std::filesystem::path& path, const std::vector<std::vector<TimelineEvent>>& ranks);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void write_timeline(const std::filesystem::path& path,
                                    const std::vector<std::vector<TimelineEvent>>& ranks) {
  io::ChromeTrace trace;
  constexpr std::array tracks = {"compute", "exchange", "optimizer"};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    trace.name_process(rank, concat("rank ", rank));
    for (std::size_t t = 0; t < tracks.size(); ++t) trace.name_track(rank, static_cast<int>(t), tracks[t]);
    for (const TimelineEvent& event : ranks[r])
      trace.add(event.name.data(), rank, static_cast<int>(event.track), event.begin, event.end);
  }
  write_file(path, trace.text());
}
#endif

}  // namespace convoy::train
