// Chrome traces: their text is JSON, in every locale.
#include <clocale>

#include <doctest/doctest.h>

#include <convoy/io/chrome_trace.hpp>

using namespace convoy;

TEST_CASE("a trace's times are JSON, also where a comma is the decimal point") {
  // Where no such locale is installed, the text is checked in the one that there is.
  for (const char* locale : {"de_DE.UTF-8", "fr_FR.UTF-8", "pt_BR.UTF-8"})
    if (std::setlocale(LC_NUMERIC, locale) != nullptr) break;
  io::ChromeTrace trace;
  trace.name_process(1, "a \"host\"");
  trace.name_track(1, 2, "b\n");
  trace.add("c", 1, 2, 1234.5, 0.0000012345);
  const std::string text = trace.text();
  std::setlocale(LC_NUMERIC, "C");
  CHECK(text == R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","name":"process_name","pid":1,"args":{"name":"a \"host\""}},
{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"b\u000a"}},
{"ph":"X","name":"c","pid":1,"tid":2,"ts":1234500000.000,"dur":1.234}
]}
)");
}
