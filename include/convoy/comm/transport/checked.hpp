// Checked: sends a check value (CRC-32C) with every message, for links and memory that are not trusted.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/transport/decorator.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/error.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/pages.hpp>

namespace convoy::transport {

namespace detail {

inline constexpr auto crc_table = [] {
  std::array<std::array<std::uint32_t, 256>, 8> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = (c & 1u) != 0 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
    table[0][i] = c;
  }
  for (std::uint32_t i = 0; i < 256; ++i)
    for (std::size_t t = 1; t < 8; ++t)
      table[t][i] = table[0][table[t - 1][i] & 0xffu] ^ (table[t - 1][i] >> 8);
  return table;
}();

// Eight bytes at a time (Kounavis and Berry 2005).
inline std::uint32_t crc_by_table(std::uint32_t crc, const unsigned char* at, std::size_t bytes) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    std::uint64_t word = 0;
    for (int i = 7; i >= 0; --i) word = word << 8 | at[i];
    word ^= crc;
    crc = 0;
    for (std::size_t i = 0; i < 8; ++i) crc ^= crc_table[7 - i][word >> (8 * i) & 0xffu];
  }
  for (; bytes > 0; ++at, --bytes) crc = crc_table[0][(crc ^ *at) & 0xffu] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) inline std::uint32_t crc_by_instruction(std::uint32_t crc,
                                                                          const unsigned char* at,
                                                                          std::size_t bytes) {
  std::uint64_t c = crc;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    c = __builtin_ia32_crc32di(c, word);
  }
  crc = static_cast<std::uint32_t>(c);
  for (; bytes > 0; ++at, --bytes) crc = __builtin_ia32_crc32qi(crc, *at);
  return crc;
}
#endif

}  // namespace detail

/// CRC-32C (Castagnoli; RFC 3720, appendix B.4) of some bytes: 0xe3069283 for "123456789".
inline std::uint32_t crc32c(const void* data, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  static const bool instruction = __builtin_cpu_supports("sse4.2");
  if (instruction) return ~detail::crc_by_instruction(~0u, at, bytes);
#endif
  return ~detail::crc_by_table(~0u, at, bytes);
}

/// Sends the check value of each message behind it, as a message of its own, so that nothing is copied.
/// `arrived` throws Error, naming the sender, if the bytes do not match. Not for schedule::Direct, whose
/// receivers store into the sender's memory.
template <Transport T>
class Checked : public Decorator<T> {
  using Decorator<T>::inner_;

 public:
  static constexpr int capacity = T::capacity / 2;
  static constexpr bool checks = true;

  struct Request {
    typename T::Request body{}, trailer{};
    std::uint64_t sequence = 0;
    int peer = -1, lane = 0;
    std::uint16_t purpose = 0;
    std::size_t bytes = 0;  // that the receive expects
    bool half = false;      // the body is posted, the trailer not yet
    bool compared = false;
    std::uint64_t* check = nullptr;
    Arrival arrival{};
  };

  Checked() : Checked(T{}) {}
  explicit Checked(const T& inner) : Decorator<T>(inner), state_(std::make_shared<State>()) {}

  Checked isolated() const { return Checked(inner_.isolated()); }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    if (!request.half) {
      set_purpose(request.body, request.purpose);
      if (!inner_.send(request.body, peer, lane, data, bytes)) return false;
      request.half = true;
      request.check = state_->take(memory_resource());
      *request.check = crc32c(data, bytes);
      request.sequence = request.body.sequence / 2;
    }
    if (!inner_.send(request.trailer, peer, lane, request.check, sizeof *request.check)) return false;
    request.half = false;
    return true;
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
    request.peer = peer;
    request.lane = lane;
    request.bytes = bytes;
    request.compared = false;
    request.check = state_->take(memory_resource());
    set_purpose(request.body, request.purpose);
    inner_.receive(request.body, peer, lane, into, bytes);
    inner_.receive(request.trailer, peer, lane, request.check, sizeof *request.check);
    request.sequence = request.body.sequence / 2;
  }
  bool sent(Request& request) {
    if (request.half) return false;
    if (!inner_.sent(request.body) || !inner_.sent(request.trailer)) return false;
    give_back(request);
    return true;
  }
  Arrival arrived(Request& request) {
    if (request.compared) return request.arrival;
    const Arrival body = inner_.arrived(request.body);
    if (body.data == nullptr) return {};
    const std::uint16_t purpose = std::exchange(request.purpose, purpose_of(request.body, request.purpose));
    // The caller reports a wrong size or purpose. The bytes may not have been received, and the trailer may
    // never come.
    if (body.bytes != request.bytes || request.purpose != purpose) return body;
    const Arrival trailer = inner_.arrived(request.trailer);
    if (trailer.data == nullptr) return {};
    std::uint64_t expected = 0;
    const bool whole = trailer.bytes == sizeof expected;
    if (whole) std::memcpy(&expected, trailer.data, sizeof expected);
    if (!whole || crc32c(body.data, body.bytes) != expected)
      fail("the ", body.bytes, " bytes of message ", request.sequence, " from rank ", request.peer,
           " in lane ", request.lane, " do not have the check value that rank ", request.peer, " sent");
    request.compared = true;
    request.arrival = body;
    return body;
  }
  void release(Request& request) {
    inner_.release(request.body);
    inner_.release(request.trailer);
    give_back(request);
  }
  void cancel(Request& request) noexcept {
    inner_.cancel(request.body);
    if (!request.half) inner_.cancel(request.trailer);
    request.compared = false;
  }

 private:
  // Check values of messages in flight, in memory that peers can read.
  struct State {
    std::vector<Buffer<std::uint64_t>> blocks;
    std::vector<std::uint64_t*> free;
    std::uint64_t* take(std::pmr::memory_resource* memory) {
      if (free.empty()) {
        blocks.emplace_back(512, memory);
        for (std::uint64_t& value : blocks.back()) free.push_back(&value);
      }
      std::uint64_t* taken = free.back();
      free.pop_back();
      return taken;
    }
  };
  void give_back(Request& request) {
    if (request.check != nullptr) state_->free.push_back(std::exchange(request.check, nullptr));
  }
  std::pmr::memory_resource* memory_resource() {
    if constexpr (requires { inner_.memory(); })
      return inner_.memory();
    else
      return memory::pages();
  }

  std::shared_ptr<State> state_;
};

}  // namespace convoy::transport
