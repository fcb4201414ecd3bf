// Text cache: what takes long to find out about a GPU, kept for other runs.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>

namespace convoy::exec::cuda {

/// Texts in a folder, each in a file of its own. One that cannot be read or kept is as if it were not there:
/// what is in it can be made again.
class TextCache {
 public:
  /// No folder: nothing is kept.
  explicit TextCache(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::string find(std::uint64_t key) const {
    if (folder_.empty()) return {};
    std::ifstream file(path(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  bool keeps() const { return !folder_.empty(); }
  void keep(std::uint64_t key, const std::string& text) const {
    try {
      std::filesystem::create_directories(folder_);
      write_file(path(key), text);
    } catch (const std::exception&) {
    }
  }

 private:
  std::filesystem::path path(std::uint64_t key) const { return folder_ / concat(key, ".json"); }
  std::filesystem::path folder_;
};

}  // namespace convoy::exec::cuda
