// Trace: the spans of a simulated step as a Chrome trace (io/chrome_trace.hpp), one process per rank, with a
// track for computing and one for each lane of buckets.
#pragma once

#include <filesystem>
#include <string>

#include <convoy/core/compiled.hpp>
#include <convoy/sim/outcome.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>
#include <convoy/io/chrome_trace.hpp>
#endif

namespace convoy::sim {

/// The spans of an outcome, from the first one's beginning on.
std::string trace_text(const Outcome& outcome);

/// Writes the spans of an outcome to a file. Throws Error, with the system's reason.
void write_trace(const std::filesystem::path& path, const Outcome& outcome);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::string trace_text(const Outcome& outcome) {
  io::ChromeTrace trace;
  std::set<int> ranks;
  std::set<std::pair<int, int>> tracks;
  double begin = std::numeric_limits<double>::infinity();
  for (const Span& span : outcome.spans) {
    begin = std::min(begin, span.begin);
    if (ranks.insert(span.rank).second) trace.name_process(span.rank, concat("rank ", span.rank));
    if (tracks.insert({span.rank, span.track}).second)
      trace.name_track(span.rank, span.track, span.track == 0 ? "compute" : concat("lane ", span.track));
  }
  for (const Span& span : outcome.spans)
    trace.add(span.name, span.rank, span.track, span.begin - begin, span.end - begin);
  return trace.text();
}

CONVOY_FUNCTION void write_trace(const std::filesystem::path& path, const Outcome& outcome) {
  write_file(path, trace_text(outcome));
}
#endif

}  // namespace convoy::sim
