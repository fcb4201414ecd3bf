// Chrome traces (the Trace Event Format; open them in Perfetto or chrome://tracing): spans of time on named
// tracks of named processes.
#pragma once

#include <string>
#include <string_view>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <charconv>

#include <convoy/core/error.hpp>
#include <convoy/io/json.hpp>
#endif

namespace convoy::io {

/// Writes a trace event by event.
class ChromeTrace {
 public:
  void name_process(int process, std::string_view name);
  void name_track(int process, int track, std::string_view name);
  /// A span that begins at `begin` and lasts `length`, both in seconds.
  void add(std::string_view name, int process, int track, double begin, double length);

  /// The whole trace of everything added so far.
  std::string text() const { return text_ + "\n]}\n"; }

 private:
  void begin_event();

  std::string text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  bool empty_ = true;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void ChromeTrace::begin_event() {
  text_ += empty_ ? "\n" : ",\n";
  empty_ = false;
}

CONVOY_FUNCTION void ChromeTrace::name_process(int process, std::string_view name) {
  begin_event();
  text_ += concat(R"({"ph":"M","name":"process_name","pid":)", process, R"(,"args":{"name":)");
  append_quoted(text_, name);
  text_ += "}}";
}

CONVOY_FUNCTION void ChromeTrace::name_track(int process, int track, std::string_view name) {
  begin_event();
  text_ +=
      concat(R"({"ph":"M","name":"thread_name","pid":)", process, R"(,"tid":)", track, R"(,"args":{"name":)");
  append_quoted(text_, name);
  text_ += "}}";
}

CONVOY_FUNCTION void ChromeTrace::add(std::string_view name, int process, int track, double begin,
                                      double length) {
  begin_event();
  text_ += R"({"ph":"X","name":)";
  append_quoted(text_, name);
  // In microseconds, and with a decimal point whatever the process's locale is, as snprintf is not.
  const auto microseconds = [&](double seconds) {
    char digits[400];
    text_.append(
        digits,
        std::to_chars(digits, digits + sizeof digits, seconds * 1e6, std::chars_format::fixed, 3).ptr);
  };
  text_ += concat(R"(,"pid":)", process, R"(,"tid":)", track, R"(,"ts":)");
  microseconds(begin);
  text_ += R"(,"dur":)";
  microseconds(length);
  text_ += '}';
}
#endif

}  // namespace convoy::io
