// Trace: the spans of a simulated step as a Chrome trace (the Trace Event Format; open it in Perfetto or
// chrome://tracing), one process a rank, with a track for computing and one for each lane of buckets.
#pragma once

#include <filesystem>
#include <string>

#include <convoy/core/compiled.hpp>
#include <convoy/sim/outcome.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cstdio>
#include <limits>
#include <set>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>
#include <convoy/io/json.hpp>
#endif

namespace convoy::sim {

/// The spans of an outcome, from the first one's beginning on.
std::string trace_text(const Outcome& outcome);

/// Writes them. Throws Error, with the system's reason.
void write_trace(const std::filesystem::path& path, const Outcome& outcome);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::string trace_text(const Outcome& outcome) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  const char* separator = "\n";
  const auto add = [&](const std::string& event) {
    text.append(separator).append(event);
    separator = ",\n";
  };
  std::set<int> ranks;
  std::set<std::pair<int, int>> tracks;
  double begin = std::numeric_limits<double>::infinity();
  for (const Span& span : outcome.spans) {
    begin = std::min(begin, span.begin);
    if (ranks.insert(span.rank).second)
      add(concat(R"({"ph":"M","name":"process_name","pid":)", span.rank, R"(,"args":{"name":"rank )",
                 span.rank, "\"}}"));
    if (tracks.insert({span.rank, span.track}).second)
      add(concat(R"({"ph":"M","name":"thread_name","pid":)", span.rank, R"(,"tid":)", span.track,
                 R"(,"args":{"name":")",
                 span.track == 0 ? std::string("compute") : concat("lane ", span.track), "\"}}"));
  }
  for (const Span& span : outcome.spans) {
    std::string event = R"({"ph":"X","name":)";
    io::append_quoted(event, span.name);
    char numbers[160];
    std::snprintf(numbers, sizeof numbers, R"(,"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f})", span.rank,
                  span.track, (span.begin - begin) * 1e6, (span.end - span.begin) * 1e6);
    add(event + numbers);
  }
  return text + "\n]}\n";
}

CONVOY_FUNCTION void write_trace(const std::filesystem::path& path, const Outcome& outcome) {
  write_file(path, trace_text(outcome));
}
#endif

}  // namespace convoy::sim
