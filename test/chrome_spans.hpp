// The spans of a Chrome trace's text.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace convoy::test {

/// The names of the spans that end within another one of their track, after it has begun: viewers leave them
/// out, or show them wrong.
inline std::vector<std::string> broken_spans(const std::string& text) {
  struct Span {
    std::string name;
    long long begin, end;  // in nanoseconds
  };
  std::map<std::pair<int, int>, std::vector<Span>> tracks;
  constexpr char mark[] = "{\"ph\":\"X\"";
  for (std::size_t at = text.find(mark); at != text.npos; at = text.find(mark, at + 1)) {
    char name[64];
    int process = 0, track = 0;
    double begin = 0, length = 0;
    if (std::sscanf(text.c_str() + at,
                    "{\"ph\":\"X\",\"name\":\"%63[^\"]\",\"pid\":%d,\"tid\":%d,\"ts\":%lf,\"dur\":%lf}", name,
                    &process, &track, &begin, &length) != 5)
      return {"a span that is not read"};
    const long long from = std::llround(begin * 1e3);
    tracks[{process, track}].push_back({name, from, from + std::llround(length * 1e3)});
  }
  std::vector<std::string> broken;
  for (const auto& track : tracks)
    for (const Span& outer : track.second)
      for (const Span& inner : track.second)
        if (outer.begin < inner.begin && inner.begin < outer.end && outer.end < inner.end)
          broken.push_back(inner.name);
  return broken;
}

}  // namespace convoy::test
