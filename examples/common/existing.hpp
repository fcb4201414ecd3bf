// Paths that options name, or their default paths.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <convoy/core/error.hpp>

namespace examples {

/// Returns `path`, the value of `option` (with its dashes). Throws ConfigError, naming the option, if there
/// is no such file or folder.
inline const std::string& existing(std::string_view option, const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    convoy::fail<convoy::ConfigError>(option, ": ", path, " does not exist");
  return path;
}

}  // namespace examples
