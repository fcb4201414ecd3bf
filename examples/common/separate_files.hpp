// Checks that a program does not write a file that it reads, nor one file twice.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <convoy/core/error.hpp>

namespace examples {

/// Files, each with the option that names it; an empty path: the option is not given.
using NamedFiles = std::vector<std::pair<std::string_view, std::string>>;

/// The path without its links, of which the last may lead to a file that does not exist yet.
inline std::filesystem::path without_links(std::filesystem::path path) {
  std::error_code error;
  path = std::filesystem::absolute(path, error);
  for (int links = 0; links < 40 && std::filesystem::is_symlink(path, error); ++links)
    path = path.parent_path() / std::filesystem::read_symlink(path, error);
  const std::filesystem::path whole = std::filesystem::weakly_canonical(path, error);
  return error ? path : whole;
}

/// Whether both paths lead to one file. A pipe or a device such as /dev/null may be named twice.
inline bool same_file(const std::filesystem::path& one, const std::filesystem::path& other) {
  std::error_code error;
  if (std::filesystem::exists(one, error) && !std::filesystem::is_regular_file(one, error)) return false;
  return std::filesystem::equivalent(one, other, error) || without_links(one) == without_links(other);
}

/// Throws ConfigError if a file that is written is read as well, or if two of them are the same, because only
/// the one written last would be left.
inline void expect_separate_files(NamedFiles read, NamedFiles written) {
  for (NamedFiles* files : {&read, &written})
    std::erase_if(*files, [](const auto& file) { return file.second.empty(); });
  for (const auto& [option, path] : read)
    for (const auto& [writer, target] : written)
      if (same_file(target, path))
        convoy::fail<convoy::ConfigError>(writer, ' ', target, " would overwrite the file of ", option,
                                          ", which the run reads; choose another file");
  for (auto file = written.begin(); file != written.end(); ++file)
    for (auto other = written.begin(); other != file; ++other)
      if (same_file(file->second, other->second))
        convoy::fail<convoy::ConfigError>(other->first, ' ', other->second, " and ", file->first, ' ',
                                          file->second, " are one file; choose another file for one of them");
}

}  // namespace examples
