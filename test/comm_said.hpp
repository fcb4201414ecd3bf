// What ranks that are threads say when an exchange fails.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/comm/error.hpp>
#include <convoy/core/error.hpp>

namespace comm_said {

/// Each rank's error and the culprit that it names.
struct Said {
  std::vector<std::string> what;
  std::vector<int> culprit;
  explicit Said(int ranks)
      : what(static_cast<std::size_t>(ranks), "nothing"), culprit(static_cast<std::size_t>(ranks), -2) {}
  template <class F>
  void listen(int rank, F&& f) {
    const auto r = static_cast<std::size_t>(rank);
    try {
      f();
    } catch (const convoy::CommError& e) {
      what[r] = e.what();
      culprit[r] = e.culprit;
    } catch (const convoy::Error& e) {
      what[r] = e.what();
    }
  }
};

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace comm_said
