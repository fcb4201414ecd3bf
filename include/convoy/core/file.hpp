// File: reads, and atomic writes and renames, so that a file or folder is there whole or not at all. Locks
// between processes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <convoy/core/call.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

#if CONVOY_DEFINITIONS
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <system_error>
#if defined(__unix__)
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#endif
#endif

namespace convoy {

/// The bytes of a file. Throws Error with the system's reason if the file cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Writes a text to a temporary file next to `path`, syncs it and renames it to `path`, so that a reader sees
/// either the old content or the new. The permissions of a replaced file stay. A symbolic link stays, and
/// the file that it leads to is written. Throws Error with the system's reason if any of this fails,
/// including on a full disk; the old content is then unchanged. What cannot be replaced is written in place:
/// a pipe, a device, and a file that is itself mounted, as containers do with single files.
void write_file(const std::filesystem::path& path, std::string_view text);
/// The same for a text of `parts` parts. `part(i)` returns part i, which is written before the next call.
/// What `part` throws passes through, and the old content is unchanged.
void write_file(const std::filesystem::path& path, std::size_t parts,
                Call<std::string_view(std::size_t)> part);
/// Checks early, before long work, that write_file can open its file: throws Error if it cannot. Leaves
/// existing content unchanged.
void expect_writable(const std::filesystem::path& path);

/// Waits until the names of a folder's files are stored, which syncing the files does not do. A no-op for a
/// folder that cannot be read.
void sync_folder(const std::filesystem::path& folder);

/// Renames a folder and syncs its new parent folder. Throws Error with the system's reason if the rename
/// fails.
void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to);

/// An exclusive lock on a file, which is created if it does not exist, by flock(2): other holders are
/// refused, in this process or in others, also on other machines if the filesystem supports that. It ends
/// with this object or with the process. On filesystems and systems without such locks, it locks nothing.
class FileLock {
 public:
  FileLock() = default;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() { release(); }
  /// Returns false if another holder has the lock. Throws Error with the system's reason if the file cannot
  /// be opened.
  bool acquire(const std::filesystem::path& path);
  void release();

 private:
  int file_ = -1;
};

#if CONVOY_DEFINITIONS
namespace detail {
/// Whether `path` exists and is not a regular file.
inline bool is_special(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored);
}
/// The file that `path` leads to: renaming to a link would replace the link. Throws Error for a circle of
/// links.
inline std::filesystem::path behind_links(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::path to = path;
  for (int links = 0; std::filesystem::is_symlink(to, ignored); ++links) {
    if (links == 40) fail(path.string(), " cannot be written: ", std::strerror(ELOOP));
    to = to.parent_path() / std::filesystem::read_symlink(to, ignored);
  }
  return to;
}
/// The temporary file for `path`. A long name does not become longer: filesystems allow 255 bytes.
inline std::filesystem::path beside(const std::filesystem::path& path) {
  std::string name = path.filename().string();
  if (name.size() > 250) name.resize(name.size() - 5);
  return path.parent_path() / (name + ".part");
}
}  // namespace detail

CONVOY_FUNCTION std::string read_file(const std::filesystem::path& path) {
  std::string text;
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  int reason = file == nullptr ? errno : 0;
  if (file != nullptr) {
    char part[1 << 16];
    while (const std::size_t count = std::fread(part, 1, sizeof part, file)) text.append(part, count);
    if (std::ferror(file) != 0) reason = errno;
    std::fclose(file);
  }
  if (reason != 0) fail(path.string(), " cannot be read: ", std::strerror(reason));
  return text;
}

CONVOY_FUNCTION void write_file(const std::filesystem::path& path, std::string_view text) {
  write_file(path, 1, [&](std::size_t) { return text; });
}

CONVOY_FUNCTION void expect_writable(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    fail(path.string(), " cannot be written: ", std::strerror(EISDIR));
  if (detail::is_special(path)) return;  // opening a pipe already starts the write
  const std::filesystem::path beside = detail::beside(detail::behind_links(path));
  std::FILE* const file = std::fopen(beside.c_str(), "wb");
  if (file == nullptr) fail(path.string(), " cannot be written: ", std::strerror(errno));
  std::fclose(file);
  std::filesystem::remove(beside, ignored);
}

CONVOY_FUNCTION void write_file(const std::filesystem::path& path, std::size_t parts,
                                Call<std::string_view(std::size_t)> part) {
  std::error_code ignored;
  const bool special = detail::is_special(path);
  const std::filesystem::path target = special ? path : detail::behind_links(path);
  const std::filesystem::path beside = special ? path : detail::beside(target);
  std::FILE* const file = std::fopen(beside.c_str(), "wb");
  if (file == nullptr) fail(path.string(), " cannot be written: ", std::strerror(errno));
  if (std::filesystem::is_regular_file(target, ignored))
    std::filesystem::permissions(beside, std::filesystem::status(target, ignored).permissions(), ignored);
  int reason = 0;
  const auto expect = [&](bool done) {
    if (!done && reason == 0) reason = errno;
  };
  std::exception_ptr thrown;
  try {
    for (std::size_t i = 0; i < parts && reason == 0; ++i) {
      const std::string_view text = part(i);
      expect(std::fwrite(text.data(), 1, text.size(), file) == text.size());
    }
  } catch (...) {
    thrown = std::current_exception();
  }
  expect(std::fflush(file) == 0);
#if defined(__unix__)
  if (!special) expect(fsync(fileno(file)) == 0);
#endif
  expect(std::fclose(file) == 0);
  if (reason == 0 && !thrown) {
    if (special || std::rename(beside.c_str(), target.c_str()) == 0) return;
    reason = errno;
    // A mounted file cannot be replaced.
    const auto replace = std::filesystem::copy_options::overwrite_existing;
    if (reason == EBUSY && std::filesystem::copy_file(beside, target, replace, ignored)) reason = 0;
  }
  if (!special) std::filesystem::remove(beside, ignored);
  if (thrown) std::rethrow_exception(thrown);
  if (reason != 0) fail(path.string(), " cannot be written: ", std::strerror(reason));
}

CONVOY_FUNCTION bool FileLock::acquire([[maybe_unused]] const std::filesystem::path& path) {
#if defined(__unix__)
  if (file_ >= 0) return true;
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) fail(path.string(), " cannot be opened: ", std::strerror(errno));
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(file);
    return false;
  }
  file_ = file;
#endif
  return true;
}

CONVOY_FUNCTION void FileLock::release() {
#if defined(__unix__)
  if (file_ >= 0) close(file_);
#endif
  file_ = -1;
}

CONVOY_FUNCTION void sync_folder([[maybe_unused]] const std::filesystem::path& folder) {
#if defined(__unix__)
  const int open_folder = open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (open_folder < 0) return;
  fsync(open_folder);
  close(open_folder);
#endif
}

CONVOY_FUNCTION void rename_folder(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code error;
  std::filesystem::rename(from, to, error);
  if (error) fail(to.string(), " cannot be made: ", error.message());
  sync_folder(to / "..");  // not the path's parent: a path may be a bare name, or end in a slash
}
#endif

}  // namespace convoy
