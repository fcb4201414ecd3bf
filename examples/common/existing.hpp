// Paths that options name, or that stand there by default.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include <convoy/core/error.hpp>

namespace examples {

/// `path`, which `option` names with its dashes. Throws ConfigError, which tells people the option to give
/// another one by, where there is no file or folder.
inline const std::string& existing(std::string_view option, const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    convoy::fail<convoy::ConfigError>(option, ": ", path, " does not exist");
  return path;
}

}  // namespace examples
