// Shared parts of the fuzzers. Invalid input must be refused with a sentence, and have no other effect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include <convoy/core/error.hpp>

namespace fuzz {

/// Unless `holds`, ends the process, so that the fuzzer reports its input.
inline void expect(bool holds, std::string_view what) {
  if (holds) return;
  std::cerr << "fuzz: " << what << "\n";
  std::abort();
}

/// Runs an action that may refuse its input, with a sentence that begins with `begins`.
template <class Action>
void attempt(Action action, std::string_view begins = "data: ") {
  try {
    action();
  } catch (const convoy::Error& error) {
    const std::string_view sentence = error.what();
    expect(sentence.substr(0, begins.size()) == begins && sentence.find('\n') == sentence.npos,
           "not one sentence");
  }
}

/// A file in memory for readers that take a path. The path ends in `ending`.
class File {
 public:
  File(const std::uint8_t* data, std::size_t size, std::string_view ending = "")
      : file_(memfd_create("input", 0)), path_("/proc/self/fd/" + std::to_string(file_)) {
    expect(file_ >= 0 && write(file_, data, size) == static_cast<ssize_t>(size), "no file");
    if (ending.empty()) return;
    link_ =
        std::filesystem::temp_directory_path() / ("fuzz-" + std::to_string(getpid()) + std::string(ending));
    std::filesystem::remove(link_);
    std::filesystem::create_symlink(path_, link_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    close(file_);
    if (!link_.empty()) std::filesystem::remove(link_);
  }
  std::string path() const { return link_.empty() ? path_ : link_.string(); }

 private:
  int file_;
  std::string path_;
  std::filesystem::path link_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace fuzz
