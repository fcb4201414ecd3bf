// Timeline: what a rank did when, written as a Chrome trace (the Trace Event Format; open it in Perfetto or
// chrome://tracing), one process a rank, with a track each for computing, exchanging and the optimizer.
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
#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>

namespace convoy::train {

enum class Track : std::uint8_t { compute, exchange, optimizer };

/// A trivially copyable event, so that ranks can send theirs to one another.
struct TimelineEvent {
  std::array<char, 23> name{};
  Track track = Track::compute;
  double begin = 0, end = 0;  ///< seconds since the ranks' common start
};

/// Records the events of one rank in memory that is reserved at the start; when it is full, later events are
/// dropped and counted.
class Timeline {
 public:
  explicit Timeline(std::size_t capacity = 1 << 16) { events_.reserve(capacity); }

  /// The moment that counts as zero; Trainer calls it on all ranks right after a barrier.
  void start(Clock::time_point zero = Clock::now()) { zero_ = zero; }

  void record(std::string_view name, int number, Track track, Clock::time_point begin,
              Clock::time_point end) {
    if (events_.size() == events_.capacity()) {
      ++dropped_;
      return;
    }
    TimelineEvent event;
    event.track = track;
    event.begin = Seconds(begin - zero_).count();
    event.end = Seconds(end - zero_).count();
    if (number < 0)
      std::snprintf(event.name.data(), event.name.size(), "%.*s", static_cast<int>(name.size()), name.data());
    else
      std::snprintf(event.name.data(), event.name.size(), "%.*s %d", static_cast<int>(name.size()),
                    name.data(), number);
    events_.push_back(event);
  }

  const std::vector<TimelineEvent>& events() const { return events_; }
  std::size_t dropped() const { return dropped_; }

 private:
  Clock::time_point zero_ = Clock::now();
  std::vector<TimelineEvent> events_;
  std::size_t dropped_ = 0;
};

/// Writes the events of all ranks. Throws Error when the file cannot be written.
void write_timeline(const std::filesystem::path& path, const std::vector<std::vector<TimelineEvent>>& ranks);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void write_timeline(const std::filesystem::path& path,
                                    const std::vector<std::vector<TimelineEvent>>& ranks) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  constexpr std::array tracks = {"compute", "exchange", "optimizer"};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    text += concat(separator, R"({"ph":"M","name":"process_name","pid":)", rank, R"(,"args":{"name":"rank )",
                   rank, "\"}}");
    separator = ",\n";
    for (std::size_t t = 0; t < tracks.size(); ++t)
      text += concat(separator, R"({"ph":"M","name":"thread_name","pid":)", rank, R"(,"tid":)", t,
                     R"(,"args":{"name":")", tracks[t], "\"}}");
    char line[256];
    for (const auto& event : ranks[rank]) {
      std::snprintf(line, sizeof line, R"({"ph":"X","name":"%s","pid":%zu,"tid":%d,"ts":%.3f,"dur":%.3f})",
                    event.name.data(), rank, static_cast<int>(event.track), event.begin * 1e6,
                    (event.end - event.begin) * 1e6);
      text.append(separator).append(line);
    }
  }
  text += "\n]}\n";
  write_file(path, text);
}
#endif

}  // namespace convoy::train
