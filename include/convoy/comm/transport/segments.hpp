// Segments: memory of one process that other processes can map. Each allocation is an anonymous file
// (memfd_create) that the others open through /proc. Unlike an MPI window or a file in /dev/shm, such a file
// needs no collective call, is not limited by a container's 64 MiB of /dev/shm, and vanishes with the
// process.
#pragma once

#if !defined(__linux__)
#error \
    "convoy: transport::Shm needs Linux (memfd_create, futex); use transport::Mpi or transport::Threads here"
#endif

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <convoy/core/error.hpp>
#endif

namespace convoy::transport::detail {

/// Bytes that a process may still allocate: what the system has available, or less if the process's control
/// group has a limit. Allocating more would get some process killed instead of failing. The group's page
/// cache counts as available, as it does for the system: reading a data set fills the cache up to the limit.
/// `root` is the directory that holds /proc and /sys.
std::uint64_t available_memory(const std::string& root = "");

/// A mapping of shared memory, unmapped by the destructor.
class Mapping {
 public:
  Mapping() = default;
  /// New zeroed memory of this process, fully allocated: a lack of memory throws Error here instead of
  /// raising a signal later.
  static Mapping make(std::size_t bytes, const char* what);
  /// Memory of another process, by its descriptor number in that process.
  static Mapping open(long pid, int fd, std::size_t bytes, const char* what);
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  /// Closes the descriptor once all others have mapped the memory; nobody can open it afterwards.
  void close_file();

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  int fd() const { return fd_; }

  /// Gives this process a copy at the same addresses: this process and those that have the memory mapped no
  /// longer see each other's writes. Each page is copied by an atomic write to it, so that concurrent writes
  /// are harmless. False if copying is impossible.
  bool copy_on_write();

 private:
  void map(std::size_t bytes, const char* what);

  int fd_ = -1;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// What the other ranks must know of a segment; lies in memory that all see. `state` holds how many segments
/// have had this number, and below it the descriptor plus 1, or 0 if the segment has been released.
struct SegmentRecord {
  std::atomic<std::uint64_t> state{0};
  std::atomic<std::uint64_t> bytes{0};

  static constexpr std::uint64_t count(std::uint64_t state) { return state >> 32; }
  static constexpr int fd(std::uint64_t state) { return static_cast<int>(state & 0xffff'ffff) - 1; }
  void announce(int fd, std::uint64_t size) {
    bytes.store(size, std::memory_order_relaxed);
    state.store((count(state) + 1) << 32 | static_cast<std::uint32_t>(fd + 1), std::memory_order_release);
  }
  void retract() { state.store(count(state) << 32, std::memory_order_release); }
};
/// At a time, in one process.
inline constexpr int most_segments = 4096;

/// An address in some rank's segments, as one number.
struct SegmentAddress {
  static constexpr int offset_bits = 48;
  static constexpr std::uint64_t of(int segment, std::uint64_t offset) {
    return (static_cast<std::uint64_t>(segment) << offset_bits) | offset;
  }
  static constexpr int segment(std::uint64_t place) { return static_cast<int>(place >> offset_bits); }
  static constexpr std::uint64_t offset(std::uint64_t place) {
    return place & ((std::uint64_t{1} << offset_bits) - 1);
  }
};

/// A memory resource with one segment for each allocation, announced in `records`.
class Segments : public std::pmr::memory_resource {
 public:
  explicit Segments(SegmentRecord* records) : records_(records) {}

  /// Takes all memory out of the others' reach; what they have mapped stays theirs. False if there is no
  /// memory for copies (nothing is done then), or if copying fails.
  bool close_off();

  /// The place of `bytes` bytes at `data`; false if they do not lie in one segment.
  bool find(const void* data, std::size_t bytes, std::uint64_t& place) const {
    const auto* at = static_cast<const std::byte*>(data);
    for (std::size_t i = 0; i < segments_.size(); ++i) {
      const std::byte* begin = segments_[i].data();
      if (begin == nullptr || at < begin || at + bytes > begin + segments_[i].size()) continue;
      place = SegmentAddress::of(static_cast<int>(i), static_cast<std::uint64_t>(at - begin));
      return true;
    }
    return false;
  }

 private:
  CONVOY_FUNCTION void* do_allocate(std::size_t bytes, std::size_t) override;
  CONVOY_FUNCTION void do_deallocate(void* data, std::size_t, std::size_t) override;
  CONVOY_FUNCTION bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  SegmentRecord* records_;
  std::vector<Mapping> segments_;
};

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION std::uint64_t available_memory(const std::string& root) {
  const auto number_after = [&](const char* file, std::string_view key) {
    std::ifstream in(root + file);
    std::uint64_t number = 0;
    for (std::string word; in >> word;)
      if (word == key) return in >> number ? std::optional(number) : std::nullopt;
    return std::optional<std::uint64_t>();
  };
  std::uint64_t available = ~std::uint64_t{0};
  if (const auto kib = number_after("/proc/meminfo", "MemAvailable:")) available = *kib * 1024;
  std::uint64_t limit = 0, used = 0;
  std::ifstream most(root + "/sys/fs/cgroup/memory.max"), now(root + "/sys/fs/cgroup/memory.current");
  if (!(most >> limit && now >> used)) return available;
  for (const char* cache : {"inactive_file", "active_file"})
    used -= std::min(used, number_after("/sys/fs/cgroup/memory.stat", cache).value_or(0));
  return std::min(available, limit > used ? limit - used : 0);
}

CONVOY_FUNCTION Mapping Mapping::make(std::size_t bytes, const char* what) {
  Mapping m;
  if (const std::uint64_t left = available_memory(); bytes > left)
    fail("shm: there is no memory for ", bytes, " bytes of ", what, ": ", left, " bytes are available");
  m.fd_ = memfd_create("convoy", MFD_CLOEXEC);
  if (m.fd_ < 0) fail("shm: no shared memory can be made: ", std::strerror(errno));
  int code = ftruncate(m.fd_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  // In pieces, because a signal interrupts the call and undoes its work.
  constexpr std::size_t piece = std::size_t{16} << 20;
  for (std::size_t at = 0; code == 0 && at < bytes;) {
    const std::size_t length = std::min(piece, bytes - at);
    code = posix_fallocate(m.fd_, static_cast<off_t>(at), static_cast<off_t>(length));
    if (code == 0) at += length;
    if (code == EINTR) code = 0;
  }
  if (code != 0) fail("shm: there is no memory for ", bytes, " bytes of ", what, ": ", std::strerror(code));
  m.map(bytes, what);
  return m;
}

CONVOY_FUNCTION Mapping Mapping::open(long pid, int fd, std::size_t bytes, const char* what) {
  Mapping m;
  const std::string path = concat("/proc/", pid, "/fd/", fd);
  m.fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (m.fd_ < 0)
    fail("shm: ", what, " of process ", pid, " cannot be opened (", path, ": ", std::strerror(errno),
         "); ranks need the same user and the same /proc, else use transport::Mpi");
  if (lseek(m.fd_, 0, SEEK_END) < static_cast<off_t>(bytes))
    fail("shm: ", what, " of process ", pid, " is shorter than the ", bytes, " bytes that were announced");
  m.map(bytes, what);
  m.close_file();
  return m;
}

CONVOY_FUNCTION Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
  close_file();
}

CONVOY_FUNCTION void Mapping::close_file() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

CONVOY_FUNCTION bool Mapping::copy_on_write() {
  if (mmap(data_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd_, 0) == MAP_FAILED)
    return false;
  for (std::size_t at = 0; at < bytes_; at += 4096)
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(data_ + at), 0, __ATOMIC_RELAXED);
  return true;
}

CONVOY_FUNCTION void Mapping::map(std::size_t bytes, const char* what) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) fail("shm: ", bytes, " bytes of ", what, " cannot be mapped: ", std::strerror(errno));
  madvise(at, bytes, MADV_HUGEPAGE);  // effective where the system has huge pages for shared memory
  data_ = static_cast<std::byte*>(at);
  bytes_ = bytes;
}

CONVOY_FUNCTION bool Segments::close_off() {
  std::uint64_t bytes = 0;
  for (const Mapping& m : segments_) bytes += m.size();
  if (bytes > available_memory()) return false;
  return std::all_of(segments_.begin(), segments_.end(),
                     [](Mapping& m) { return m.data() == nullptr || m.copy_on_write(); });
}

CONVOY_FUNCTION void* Segments::do_allocate(std::size_t bytes, std::size_t) {
  auto unused = std::find_if(segments_.begin(), segments_.end(),
                             [](const Mapping& segment) { return segment.data() == nullptr; });
  if (unused == segments_.end()) {
    if (segments_.size() == static_cast<std::size_t>(most_segments))
      fail("shm: there are ", most_segments, " allocations of shared memory, and there can be no more");
    unused = segments_.emplace(unused);
  }
  const std::size_t pages = (bytes + 4095) / 4096 * 4096;
  *unused = Mapping::make(pages, "an arena");
  records_[unused - segments_.begin()].announce(unused->fd(), pages);
  return unused->data();
}

CONVOY_FUNCTION void Segments::do_deallocate(void* data, std::size_t, std::size_t) {
  for (std::size_t i = 0; i < segments_.size(); ++i)
    if (segments_[i].data() == data) {
      records_[i].retract();
      segments_[i] = {};
      return;
    }
}
#endif

}  // namespace convoy::transport::detail
