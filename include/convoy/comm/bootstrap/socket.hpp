// Non-blocking sockets: every wait has a deadline.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <convoy/core/clock.hpp>

namespace convoy::comm::detail {

/// Owns a socket and closes it. Move only.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int handle) : handle_(handle) {
    if (handle_ < 0) return;
    fcntl(handle_, F_SETFD, FD_CLOEXEC);
    fcntl(handle_, F_SETFL, fcntl(handle_, F_GETFL) | O_NONBLOCK);
  }
  Socket(Socket&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Socket() {
    if (handle_ >= 0) ::close(handle_);
  }
  int get() const { return handle_; }
  explicit operator bool() const { return handle_ >= 0; }
  void close() { *this = Socket(); }
  void set(int level, int option, int value) const {
    setsockopt(handle_, level, option, &value, sizeof value);
  }

 private:
  int handle_ = -1;
};

/// Milliseconds until the deadline, at least one and at most `most`.
inline int milliseconds_left(const Deadline& deadline, int most) {
  const double left = Seconds(deadline.end() - Clock::now()).count() * 1000;
  return left < 1 ? 1 : left > most ? most : static_cast<int>(left);
}

/// Whether the socket became ready for `events` before the deadline.
inline bool ready_for(const Socket& socket, short events, const Deadline& deadline) {
  do {
    pollfd one{socket.get(), events, 0};
    if (::poll(&one, 1, milliseconds_left(deadline, 1000)) > 0) return true;
  } while (!deadline.expired());
  return false;
}

enum class Moved { all, late, closed };

inline Moved send_all(const Socket& socket, std::span<const std::byte> data, const Deadline& deadline) {
  while (!data.empty()) {
    const ssize_t n = ::send(socket.get(), data.data(), data.size(), MSG_NOSIGNAL);
    if (n > 0)
      data = data.subspan(static_cast<std::size_t>(n));
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
      return Moved::closed;
    else if (!ready_for(socket, POLLOUT, deadline))
      return Moved::late;
  }
  return Moved::all;
}

/// Sets `got` to the number of received bytes.
inline Moved receive_all(const Socket& socket, std::span<std::byte> data, const Deadline& deadline,
                         std::size_t& got) {
  for (got = 0; got < data.size();) {
    const ssize_t n = ::recv(socket.get(), data.data() + got, data.size() - got, 0);
    if (n > 0)
      got += static_cast<std::size_t>(n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
      return Moved::closed;
    else if (!ready_for(socket, POLLIN, deadline))
      return Moved::late;
  }
  return Moved::all;
}

/// The socket addresses of a host name and a port.
struct Addresses {
  addrinfo* first = nullptr;
  int code = 0;
  Addresses(const char* host, int port, bool passive) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    code = getaddrinfo(host, std::to_string(port).c_str(), &hints, &first);
    if (code != 0) first = nullptr;
  }
  /// Whether an earlier address of the list is the same: /etc/hosts may give a name in several lines.
  bool repeats(const addrinfo& address) const {
    for (const addrinfo* earlier = first; earlier != &address; earlier = earlier->ai_next)
      if (earlier->ai_addrlen == address.ai_addrlen &&
          std::memcmp(earlier->ai_addr, address.ai_addr, address.ai_addrlen) == 0)
        return true;
    return false;
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

}  // namespace convoy::comm::detail
