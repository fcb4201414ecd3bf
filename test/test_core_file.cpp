// ALONE
// Files that are written completely or not at all.
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include "temporary_folder.hpp"
#include <convoy/core/file.hpp>

using namespace convoy;
namespace fs = std::filesystem;

namespace {

std::string content(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

fs::path synced;      // the last file or folder that was synced
std::string mounted;  // the name of a file that cannot be replaced

}  // namespace

extern "C" int fsync(int file) {
  std::error_code none;
  synced = fs::read_symlink("/proc/self/fd/" + std::to_string(file), none);
  return 0;
}

extern "C" int rename(const char* from, const char* to) noexcept {
  if (to != mounted) return renameat(AT_FDCWD, from, AT_FDCWD, to);
  errno = EBUSY;  // as for a mount point
  return -1;
}

TEST_CASE("a file is read whole, zeros and all, or refused with its path and the system's reason") {
  const TemporaryFolder scratch;
  const fs::path path = scratch.path / "bytes";
  std::string bytes(200'000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31);
  write_file(path, bytes);
  CHECK(read_file(path) == bytes);
  write_file(path, "");
  CHECK(read_file(path).empty());
  CHECK_THROWS_WITH_AS(
      read_file(scratch.path / "nowhere"),
      ((scratch.path / "nowhere").string() + " cannot be read: No such file or directory").c_str(), Error);
  CHECK_THROWS_WITH_AS(read_file(scratch.path),
                       (scratch.path.string() + " cannot be read: Is a directory").c_str(), Error);
}

TEST_CASE("a file is replaced whole, and nothing is left beside it") {
  const TemporaryFolder scratch;
  const fs::path path = scratch.path / "result.json";
  write_file(path, "first");
  write_file(path, "second");
  CHECK(content(path) == "second");
  CHECK(std::distance(fs::directory_iterator(scratch.path), {}) == 1);
}

TEST_CASE("a file that is made in parts is whole, or what was there stays") {
  const TemporaryFolder scratch;
  const fs::path path = scratch.path / "parts";
  std::string made;
  write_file(path, 3,
             [&](std::size_t i) -> std::string_view { return made = std::string(i + 1, 'x') + ","; });
  CHECK(content(path) == "x,xx,xxx,");
  CHECK_THROWS_WITH_AS(write_file(path, 3,
                                  [&](std::size_t i) -> std::string_view {
                                    if (i == 2) fail("part 2 cannot be made");
                                    return "y";
                                  }),
                       "part 2 cannot be made", Error);
  CHECK(content(path) == "x,xx,xxx,");
  CHECK(std::distance(fs::directory_iterator(scratch.path), {}) == 1);
}

TEST_CASE("what cannot be written is said with its path and the system's reason, and what was there stays") {
  const TemporaryFolder scratch;
  CHECK_THROWS_WITH_AS(
      write_file(scratch.path / "nowhere" / "x", "text"),
      ((scratch.path / "nowhere" / "x").string() + " cannot be written: No such file or directory").c_str(),
      Error);
  const fs::path folder = scratch.path / "folder";
  fs::create_directory(folder);
  CHECK_THROWS_AS(write_file(folder, "text"), Error);
  CHECK(fs::is_directory(folder));
}

TEST_CASE("whether a file can be written is known before, and changes nothing") {
  const TemporaryFolder scratch;
  const fs::path path = scratch.path / "result.json";
  expect_writable(path);
  CHECK(fs::is_empty(scratch.path));
  write_file(path, "first");
  expect_writable(path);
  CHECK(content(path) == "first");
  CHECK(std::distance(fs::directory_iterator(scratch.path), {}) == 1);
  CHECK_THROWS_WITH_AS(
      expect_writable(scratch.path / "nowhere" / "x"),
      ((scratch.path / "nowhere" / "x").string() + " cannot be written: No such file or directory").c_str(),
      Error);
}

TEST_CASE("a folder cannot be written, which is known before") {
  const TemporaryFolder scratch;
  CHECK_THROWS_WITH_AS(expect_writable(scratch.path),
                       (scratch.path.string() + " cannot be written: Is a directory").c_str(), Error);
}

TEST_CASE("a device is written where it is, and a full one is an error") {
  if (!fs::exists("/dev/full")) return;
  CHECK_THROWS_WITH_AS(write_file("/dev/full", "text"),
                       "/dev/full cannot be written: No space left on device", Error);
  CHECK(fs::is_character_file("/dev/full"));
  write_file("/dev/null", "text");
  CHECK(fs::is_character_file("/dev/null"));
}

TEST_CASE("a file that is mounted is written where it is") {
  const TemporaryFolder scratch;
  const fs::path path = scratch.path / "result.json";
  write_file(path, "a longer text");
  mounted = path.string();
  write_file(path, "text");
  CHECK(content(path) == "text");
  CHECK(std::distance(fs::directory_iterator(scratch.path), {}) == 1);
  // What throws while it is made leaves the old text.
  CHECK_THROWS_WITH_AS(
      write_file(path, 1, [](std::size_t) -> std::string_view { fail("it cannot be made"); }),
      "it cannot be made", Error);
  CHECK(content(path) == "text");
  mounted.clear();
}

TEST_CASE("a symbolic link stays, and the file that it leads to is written") {
  const TemporaryFolder scratch;
  const fs::path there = scratch.path / "there", link = scratch.path / "link",
                 behind = scratch.path / "behind";
  fs::create_directory(there);
  fs::create_symlink(fs::path("there") / "result.json", link);
  fs::create_symlink(link, behind);
  for (const std::string text : {"first", "second"}) {  // the file does not exist at first
    expect_writable(behind);
    write_file(behind, text);
    CHECK(fs::is_symlink(link));
    CHECK(fs::is_symlink(behind));
    CHECK(content(there / "result.json") == text);
    CHECK(std::distance(fs::directory_iterator(there), {}) == 1);
  }
  // Such a link is /dev/stdout; it must not become a file.
  const fs::path output = scratch.path / "output", self = scratch.path / "self";
  {
    std::ofstream file(output);
    file << "before";
  }
  const int descriptor = open(output.c_str(), O_WRONLY);
  REQUIRE(descriptor >= 0);
  fs::create_symlink("/proc/self/fd/" + std::to_string(descriptor), self);
  write_file(self, "text");
  close(descriptor);
  CHECK(fs::is_symlink(self));
  CHECK(content(output) == "text");
}

TEST_CASE("a circle of symbolic links cannot be written, and stays") {
  const TemporaryFolder scratch;
  const fs::path link = scratch.path / "link", back = scratch.path / "back";
  fs::create_symlink(back, link);
  fs::create_symlink(link, back);
  const std::string said = link.string() + " cannot be written: Too many levels of symbolic links";
  CHECK_THROWS_WITH_AS(expect_writable(link), said.c_str(), Error);
  CHECK_THROWS_WITH_AS(write_file(link, "text"), said.c_str(), Error);
  CHECK(fs::is_symlink(link));
  CHECK(fs::is_symlink(back));
}

TEST_CASE("a replaced file keeps its permissions") {
  const TemporaryFolder scratch;
  const fs::path path = scratch.path / "result.json";
  for (const fs::perms permissions : {fs::perms::owner_read | fs::perms::owner_write, fs::perms(0664)}) {
    write_file(path, "first");
    fs::permissions(path, permissions);
    write_file(path, "second");
    CHECK(content(path) == "second");
    CHECK(fs::status(path).permissions() == permissions);
  }
}

TEST_CASE("a name may be as long as the filesystem allows") {
  const TemporaryFolder scratch;
  for (const std::size_t length : {250, 251, 255}) {
    const fs::path path = scratch.path / std::string(length, 'n');
    expect_writable(path);
    write_file(path, "text");
    CHECK(content(path) == "text");
  }
  const fs::path longer = scratch.path / std::string(256, 'n');
  const std::string said = longer.string() + " cannot be written: File name too long";
  CHECK_THROWS_WITH_AS(expect_writable(longer), said.c_str(), Error);
  CHECK_THROWS_WITH_AS(write_file(longer, "text"), said.c_str(), Error);
  CHECK(std::distance(fs::directory_iterator(scratch.path), {}) == 3);
}

TEST_CASE("a file that is locked is locked by nobody else, until the holder releases it or ends") {
  const TemporaryFolder scratch;
  const fs::path path = scratch.path / "lock";
  FileLock first, second;
  CHECK(first.acquire(path));
  CHECK(first.acquire(path));
  CHECK(!second.acquire(path));
  first.release();
  CHECK(second.acquire(path));
  CHECK(!first.acquire(path));
  second.release();
  {
    FileLock third;
    CHECK(third.acquire(path));
  }
  CHECK(first.acquire(path));
  CHECK_THROWS_WITH_AS(
      second.acquire(scratch.path / "nowhere" / "lock"),
      ((scratch.path / "nowhere" / "lock").string() + " cannot be opened: No such file or directory").c_str(),
      Error);
}

TEST_CASE("a renamed folder's new parent is synced, however its path is written") {
  const TemporaryFolder scratch;
  const fs::path before = fs::current_path(), here = fs::canonical(scratch.path);
  fs::current_path(here);
  for (const fs::path& to : {fs::path("new"), fs::path("new/"), fs::path("./new"), here / "new"}) {
    CAPTURE(to.string());
    fs::create_directory("old");
    fs::remove_all("new");
    synced.clear();
    rename_folder("old", to);
    CHECK(fs::is_directory("new"));
    CHECK_FALSE(fs::exists("old"));
    CHECK(synced == here);
  }
  fs::current_path(before);
  CHECK_THROWS_AS(rename_folder(here / "none", here / "new"), Error);
}
