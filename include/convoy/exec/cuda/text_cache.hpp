// Text cache: choices for a GPU that are slow to find, kept for this process and for other runs.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>

namespace convoy::exec::cuda {

/// Texts by key, for all threads, so that ranks that are threads of one process, and models that are created
/// anew in it, compute the same bits.
class SharedTexts {
 public:
  static SharedTexts& of_process() {
    static SharedTexts texts;
    return texts;
  }

  /// Empty if none is kept.
  std::string find(std::uint64_t key) const {
    const std::lock_guard lock(mutex_);
    const auto known = texts_.find(key);
    return known != texts_.end() ? known->second : std::string();
  }
  /// Returns the kept text: that of the first thread to call `keep` with this key.
  std::string keep(std::uint64_t key, std::string text) {
    const std::lock_guard lock(mutex_);
    return texts_.emplace(key, std::move(text)).first->second;
  }
  /// Forgets all texts: later calls look in a folder or choose anew.
  void clear() {
    const std::lock_guard lock(mutex_);
    texts_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::string> texts_;
};

/// Texts of this process and of a folder, which has one file per key. A file that cannot be read or written
/// counts as missing: its text can be computed again.
class TextCache {
 public:
  /// An empty `folder` shares nothing with other runs.
  explicit TextCache(std::filesystem::path folder, SharedTexts& shared = SharedTexts::of_process())
      : folder_(std::move(folder)), shared_(shared) {}

  /// The text of this process, which is also written to the folder if the folder has another text or none;
  /// else the folder's text if `fits` accepts it; else empty.
  template <class Fits>
  std::string find(std::uint64_t key, Fits fits) const {
    const std::string own = shared_.find(key), kept = read(key);
    if (own.empty()) return !kept.empty() && fits(kept) ? shared_.keep(key, kept) : std::string();
    if (own != kept) write(key, own);
    return own;
  }
  /// Returns the kept text: that of the first thread of this process to call `keep` with this key.
  std::string keep(std::uint64_t key, std::string text) const {
    text = shared_.keep(key, std::move(text));
    write(key, text);
    return text;
  }

 private:
  std::string read(std::uint64_t key) const {
    if (folder_.empty()) return {};
    std::ifstream file(path(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(std::uint64_t key, const std::string& text) const {
    if (folder_.empty()) return;
    try {
      std::filesystem::create_directories(folder_);
      write_file(path(key), text);
    } catch (const std::exception&) {
    }
  }
  std::filesystem::path path(std::uint64_t key) const { return folder_ / concat(key, ".json"); }

  std::filesystem::path folder_;
  SharedTexts& shared_;
};

}  // namespace convoy::exec::cuda
