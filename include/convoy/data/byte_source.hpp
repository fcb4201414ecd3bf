// ByteSource: the bytes of a file, plain or gzip, delivered in order and never more than were asked for.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>

#include <zlib.h>

#include <convoy/data/error.hpp>

namespace convoy::data {

/// Reads a file whose name ends in `.gz` through zlib and any other as it is. A file that is not what its
/// name says, a broken stream or a wrong checksum (RFC 1952) throws DataError. A caller reads as much as the
/// file's header claims, after it has checked the claim against `limit()`.
class ByteSource {
 public:
  explicit ByteSource(const std::filesystem::path& path)
      : path_(path.string()), gzip_(path.extension() == ".gz") {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) fail<DataError>("data: ", path_, " does not exist");
    if (!std::filesystem::is_regular_file(status)) fail<DataError>("data: ", path_, " is not a regular file");
    size_ = std::filesystem::file_size(path, error);
    if (error) fail<DataError>("data: ", path_, " has no readable size: ", error.message());
    file_.reset(std::fopen(path_.c_str(), "rb"));
    if (!file_)
      fail<DataError>("data: ", path_, " cannot be opened: ", std::generic_category().message(errno));

    refill();
    const bool magic = available_ >= 2 && input_[0] == 0x1f && input_[1] == 0x8b;
    if (gzip_ && !magic)
      fail<DataError>("data: ", path_,
                      " is not gzip although its name ends in .gz (it does not start with 1f 8b)");
    if (!gzip_ && magic) fail<DataError>("data: ", path_, " is gzip although its name does not end in .gz");
    if (gzip_) {
      // 15 bits of window; adding 16 makes zlib expect a gzip header and verify the trailer.
      if (inflateInit2(&stream_, 15 + 16) != Z_OK) fail<DataError>("data: zlib cannot start on ", path_);
      inflating_ = true;
    }
  }
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  ~ByteSource() {
    if (inflating_) inflateEnd(&stream_);
  }

  const std::string& path() const { return path_; }
  bool gzip() const { return gzip_; }
  /// The size of the file on disk.
  std::uint64_t file_size() const { return size_; }
  /// Upper bound on the bytes that the file holds: its size, times 1032 for gzip, which deflate cannot exceed
  /// (zlib's manual).
  std::uint64_t limit() const { return gzip_ ? size_ * 1032 : size_; }

  /// Fills `to` with the next bytes; returns how many there were, fewer only at the end of the data.
  std::size_t read(std::span<std::byte> to) {
    std::size_t done = 0;
    while (done < to.size()) {
      const std::size_t got = gzip_ ? inflate_some(to.subspan(done)) : copy_some(to.subspan(done));
      if (got == 0) break;
      done += got;
    }
    position_ += done;
    return done;
  }

  /// Throws DataError unless the data ends here, stream trailer and checksum included.
  void expect_end() {
    std::byte extra[1];
    if (read(extra) != 0)
      fail<DataError>("data: ", path_, " holds more than the ", position_ - 1, " bytes",
                      gzip_ ? " (inflated)" : "", " that were expected");
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  /// Reads the next piece of the file; `available_` is 0 at the end of the file.
  void refill() {
    next_ = 0;
    available_ = std::fread(input_.data(), 1, input_.size(), file_.get());
    if (available_ == 0 && std::ferror(file_.get()))
      fail<DataError>("data: ", path_, " cannot be read: ", std::generic_category().message(errno));
    consumed_ += available_;
  }

  std::size_t copy_some(std::span<std::byte> to) {
    if (available_ == 0) refill();
    const std::size_t n = std::min(to.size(), available_);
    if (n > 0) std::memcpy(to.data(), input_.data() + next_, n);
    next_ += n;
    available_ -= n;
    return n;
  }

  std::size_t inflate_some(std::span<std::byte> to) {
    constexpr std::size_t most = 1u << 30;  // zlib counts in unsigned int
    while (true) {
      if (available_ == 0) refill();
      if (ended_) {
        if (available_ == 0) return 0;
        // RFC 1952 lets members follow each other; anything else after the end is damage.
        if (input_[next_] != 0x1f || inflateReset(&stream_) != Z_OK)
          fail<DataError>("data: ", path_, " holds something that is not gzip after its end, at byte ",
                          consumed_ - available_);
        ended_ = false;
      }
      stream_.next_in = input_.data() + next_;
      stream_.avail_in = static_cast<uInt>(available_);
      stream_.next_out = reinterpret_cast<Bytef*>(to.data());
      const std::size_t room = std::min(to.size(), most);
      stream_.avail_out = static_cast<uInt>(room);
      const bool at_end = available_ == 0;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      next_ += available_ - stream_.avail_in;
      available_ = stream_.avail_in;
      const std::size_t got = room - stream_.avail_out;
      if (code == Z_STREAM_END) {
        ended_ = true;
      } else if (code == Z_BUF_ERROR || (code == Z_OK && at_end && got == 0)) {
        if (at_end)
          fail<DataError>("data: ", path_, " is truncated: its gzip stream does not end by byte ", size_,
                          ", the end of the file");
      } else if (code != Z_OK) {
        fail<DataError>("data: ", path_, " is damaged near byte ", consumed_ - available_, ": ",
                        stream_.msg != nullptr ? stream_.msg : "zlib gives no reason");
      }
      if (got > 0) return got;
    }
  }

  std::string path_;
  bool gzip_;
  std::uint64_t size_ = 0, position_ = 0, consumed_ = 0;
  std::unique_ptr<std::FILE, Close> file_;
  std::array<unsigned char, 1 << 16> input_;
  std::size_t next_ = 0, available_ = 0;
  z_stream stream_{};
  bool inflating_ = false, ended_ = false;
};

}  // namespace convoy::data
