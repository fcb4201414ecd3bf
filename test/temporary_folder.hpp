// A folder for the files of one test.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

#include <stdlib.h>

/// A new empty folder, removed at the end with all that is in it.
struct TemporaryFolder {
  std::filesystem::path path;

  explicit TemporaryFolder(const std::filesystem::path& within = std::filesystem::temp_directory_path()) {
    std::string name = within / "convoy-test-XXXXXX";
    if (mkdtemp(name.data()) == nullptr)
      throw std::runtime_error("cannot make a folder in " + within.string());
    path = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path, error);
  }
};
