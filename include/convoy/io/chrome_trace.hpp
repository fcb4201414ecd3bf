// Chrome traces (the Trace Event Format; open them in Perfetto or chrome://tracing): spans of time on named
// tracks of named processes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <limits>

#include <convoy/core/error.hpp>
#include <convoy/io/json.hpp>
#endif

namespace convoy::io {

/// Writes a trace event by event. The spans of a track may overlap. They are then written as several tracks
/// of that name, because Perfetto leaves out a span that ends within another one of its track.
class ChromeTrace {
 public:
  void name_process(int process, std::string_view name) { processes_[process].name = name; }
  /// The tracks of a process are in the order of their numbers.
  void name_track(int process, int track, std::string_view name) {
    processes_[process].tracks[track].name = name;
  }
  /// A span from `begin` to `end`, both in seconds.
  void add(std::string_view name, int process, int track, double begin, double end);

  /// The whole trace of everything added so far.
  std::string text() const;

 private:
  struct Span {
    std::string name;
    double begin, end;  // in whole nanoseconds, so that rounding makes no two spans overlap
  };
  struct Track {
    std::string name;
    std::vector<Span> spans;
  };
  struct Process {
    std::string name;
    std::map<int, Track> tracks;
  };

  /// Writes a track as tracks from number `first` on, and returns the number of these.
  static int write(std::string& text, const Track& track, int process, int first);

  std::map<int, Process> processes_;
};

#if CONVOY_DEFINITIONS
namespace detail {

// In microseconds, and with a decimal point whatever the process's locale is, as snprintf is not.
inline void append_microseconds(std::string& text, double nanoseconds) {
  char digits[400];
  text.append(
      digits,
      std::to_chars(digits, digits + sizeof digits, nanoseconds * 1e-3, std::chars_format::fixed, 3).ptr);
}

}  // namespace detail

CONVOY_FUNCTION void ChromeTrace::add(std::string_view name, int process, int track, double begin,
                                      double end) {
  processes_[process].tracks[track].spans.push_back(
      {std::string(name), std::round(begin * 1e9), std::round(end * 1e9)});
}

CONVOY_FUNCTION int ChromeTrace::write(std::string& text, const Track& track, int process, int first) {
  std::vector<const Span*> sorted;
  for (const Span& span : track.spans) sorted.push_back(&span);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Span* a, const Span* b) { return a->begin < b->begin; });
  std::vector<double> free;  // when the last span of each track ends
  const auto begin_track = [&] {
    text += concat(",\n", R"({"ph":"M","name":"thread_name","pid":)", process, R"(,"tid":)",
                   first + static_cast<int>(free.size()), R"(,"args":{"name":)");
    append_quoted(text, track.name);
    text += "}}";
    free.push_back(-std::numeric_limits<double>::infinity());
  };
  begin_track();
  for (const Span* span : sorted) {
    std::size_t row = 0;
    while (row < free.size() && free[row] > span->begin) ++row;
    if (row == free.size()) begin_track();
    free[row] = span->end;
    text += ",\n{\"ph\":\"X\",\"name\":";
    append_quoted(text, span->name);
    text += concat(R"(,"pid":)", process, R"(,"tid":)", first + static_cast<int>(row), R"(,"ts":)");
    detail::append_microseconds(text, span->begin);
    text += R"(,"dur":)";
    detail::append_microseconds(text, span->end - span->begin);
    text += '}';
  }
  return static_cast<int>(free.size());
}

CONVOY_FUNCTION std::string ChromeTrace::text() const {
  std::string text;
  for (const auto& [number, process] : processes_) {
    text += concat(",\n", R"({"ph":"M","name":"process_name","pid":)", number, R"(,"args":{"name":)");
    append_quoted(text, process.name);
    text += "}}";
    int tracks = 0;
    for (const auto& numbered : process.tracks) tracks += write(text, numbered.second, number, tracks);
  }
  return R"({"displayTimeUnit":"ms","traceEvents":[)" + text.substr(std::min<std::size_t>(1, text.size())) +
         "\n]}\n";
}
#endif

}  // namespace convoy::io
