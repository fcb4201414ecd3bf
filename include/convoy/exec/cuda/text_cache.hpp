// Text cache: what takes long to find out about a GPU, kept for this process and for other runs.
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

/// Texts by key, for all threads: ranks that are threads of a process, and a model that is made again in it,
/// compute alike.
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
  /// Returns what is kept: what a thread came with first.
  std::string keep(std::uint64_t key, std::string text) {
    const std::lock_guard lock(mutex_);
    return texts_.emplace(key, std::move(text)).first->second;
  }
  /// What is looked for from here on is found in a folder, or chosen anew.
  void clear() {
    const std::lock_guard lock(mutex_);
    texts_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::string> texts_;
};

/// Texts of this process and of a folder, there each in a file of its own. A file that cannot be read or
/// written is as if it were not there: what is in it can be made again.
class TextCache {
 public:
  /// No folder: other runs find nothing.
  explicit TextCache(std::filesystem::path folder, SharedTexts& shared = SharedTexts::of_process())
      : folder_(std::move(folder)), shared_(shared) {}

  /// The text of this process, which a folder that lacks it gets, else that of the folder if it `fits`; empty
  /// if there is neither.
  template <class Fits>
  std::string find(std::uint64_t key, Fits fits) const {
    const std::string own = shared_.find(key), kept = read(key);
    if (own.empty()) return !kept.empty() && fits(kept) ? shared_.keep(key, kept) : std::string();
    if (own != kept) write(key, own);
    return own;
  }
  /// Returns what is kept: what a thread of this process came with first.
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
