// Chrome traces: their text is JSON, in every locale, and shows every span.
#include <clocale>

#include <doctest/doctest.h>

#include "chrome_spans.hpp"
#include <convoy/io/chrome_trace.hpp>

using namespace convoy;

TEST_CASE("a trace's times are JSON, also where a comma is the decimal point") {
  // Where no such locale is installed, the text is checked in the one that there is.
  for (const char* locale : {"de_DE.UTF-8", "fr_FR.UTF-8", "pt_BR.UTF-8"})
    if (std::setlocale(LC_NUMERIC, locale) != nullptr) break;
  io::ChromeTrace trace;
  trace.name_process(1, "a \"host\"");
  trace.name_track(1, 2, "b\n");
  trace.add("c", 1, 2, 1234.5, 1234.5000012341);
  const std::string text = trace.text();
  std::setlocale(LC_NUMERIC, "C");
  CHECK(text == R"({"displayTimeUnit":"ms","traceEvents":[
{"ph":"M","name":"process_name","pid":1,"args":{"name":"a \"host\""}},
{"ph":"M","name":"thread_name","pid":1,"tid":0,"args":{"name":"b\u000a"}},
{"ph":"X","name":"c","pid":1,"tid":0,"ts":1234500000.000,"dur":1.234}
]}
)");
}

TEST_CASE("spans of a track that overlap are on several tracks of its name") {
  io::ChromeTrace trace;
  trace.name_process(0, "rank 0");
  for (const char* name : {"compute", "exchange", "optimizer"}) trace.name_track(0, *name, name);
  trace.add("backward", 0, 'c', 0, 5);
  trace.add("bucket 2", 0, 'e', 3, 6);
  trace.add("bucket 0", 0, 'e', 1, 3);
  trace.add("bucket 1", 0, 'e', 2, 4);
  trace.add("bucket 3", 0, 'e', 4, 7);
  trace.add("update", 0, 'o', 7, 8);
  const std::string text = trace.text();
  CHECK(test::broken_spans(text).empty());
  const auto at = [&](const char* span, int track) {
    return text.find(concat("\"name\":\"", span, "\",\"pid\":0,\"tid\":", track, ',')) != text.npos;
  };
  CHECK(at("backward", 0));
  CHECK(at("bucket 0", 1));
  CHECK(at("bucket 1", 2));
  CHECK(at("bucket 2", 1));
  CHECK(at("bucket 3", 2));
  CHECK(at("update", 3));
  CHECK(text.find(R"("tid":2,"args":{"name":"exchange"}})") != text.npos);
  CHECK(text.find(R"("tid":3,"args":{"name":"optimizer"}})") != text.npos);
}

TEST_CASE("spans that follow each other do not overlap after rounding") {
  io::ChromeTrace trace;
  double now = 0;
  for (int i = 1; i <= 100; ++i) {
    const double begin = now;
    trace.add("a", 0, 0, begin, now += 1e-7 / i);
  }
  CHECK(test::broken_spans(trace.text()).empty());
  CHECK(trace.text().find("\"tid\":1") == std::string::npos);
}

TEST_CASE("a trace without an event is an empty list") {
  CHECK(io::ChromeTrace().text() == "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n]}\n");
}
