// MappedFile: a memory-mapped file, whose pages are read on first access.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <convoy/data/error.hpp>
#endif

namespace convoy::data {

/// A regular file mapped for reading; processes that map the same file share its memory. Copies share the
/// mapping. The file must not shrink while it is mapped: access to bytes that are gone ends the process
/// (SIGBUS).
class MappedFile {
 public:
  /// Throws DataError, with the system's reason, if the file is missing, empty, not a regular file or cannot
  /// be mapped.
  explicit MappedFile(const std::filesystem::path& path);

  std::span<const std::byte> bytes() const { return {first_.get(), size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::shared_ptr<const std::byte> first_;
  std::size_t size_ = 0;
};

#if CONVOY_DEFINITIONS

CONVOY_FUNCTION MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  struct Descriptor {
    int number;
    ~Descriptor() {
      if (number >= 0) ::close(number);
    }
  };
  const auto refuse = [&] {
    fail<DataError>("data: ", path_, " cannot be read: ", std::generic_category().message(errno));
  };
  // Without O_NONBLOCK, a pipe would be waited for until it has a writer.
  const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  struct stat status {};
  if (file.number < 0 || ::fstat(file.number, &status) != 0) refuse();
  if (!S_ISREG(status.st_mode)) fail<DataError>("data: ", path_, " is not a regular file");
  if (status.st_size == 0) fail<DataError>("data: ", path_, " is empty");
  size_ = static_cast<std::size_t>(status.st_size);
  void* const at = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.number, 0);
  if (at == MAP_FAILED) refuse();
  first_.reset(static_cast<const std::byte*>(at),
               [size = size_](const std::byte* it) { ::munmap(const_cast<std::byte*>(it), size); });
}

#endif

}  // namespace convoy::data
