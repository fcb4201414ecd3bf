// Bootstrap: a few bytes between ranks before anything else connects them, such as the identity of an NCCL
// world and the names of hosts. TcpBootstrap needs nothing but sockets and what torchrun puts in the
// environment; comm/bootstrap_mpi.hpp carries the same bytes over MPI.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <convoy/comm/error.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>

namespace convoy::comm {

/// What carries bytes between the ranks of a world while nothing else does. All ranks make the same calls in
/// the same order, with the same sizes.
///
///   `broadcast(data)`         every rank ends with rank 0's bytes
///   `all_gather(mine, all)`   `all` is every rank's `mine`, in the order of ranks
template <class B>
concept Bootstrap = requires(B& b, const B& k, std::span<std::byte> data, std::span<const std::byte> mine) {
  { k.rank() } -> std::same_as<int>;
  { k.size() } -> std::same_as<int>;
  b.broadcast(data);
  b.all_gather(mine, data);
};

/// Who a rank is, and where rank 0 listens.
struct World {
  int rank = 0, size = 1;
  int local_rank = 0;  ///< among the ranks of this host: which GPU is this rank's
  std::string host = "localhost";
  int port = 29500;
  std::uint64_t job = 0;  ///< the same on all ranks; ranks of another job are refused
};

namespace detail {

inline std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0')
    fail<ConfigError>("bootstrap: the environment variable ", name,
                      " is missing; torchrun sets it for each rank");
  return value;
}

inline int number_in(const char* name, int least, int most) {
  const std::string_view text = variable(name);
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < least || value > most)
    fail<ConfigError>("bootstrap: the environment variable ", name, " is \"", text,
                      "\", which is not a whole number from ", least, " to ", most);
  return value;
}

}  // namespace detail

/// Whether a launcher has put a world in the environment.
inline bool environment_has_world() { return std::getenv("RANK") && std::getenv("WORLD_SIZE"); }

/// The world that torchrun describes by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. Where
/// torchrun says that a store of its own listens at MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), rank 0
/// listens at the next port. Throws ConfigError for a variable that is missing or malformed.
inline World world_of_environment() {
  constexpr int most_ranks = 1 << 20;
  World world;
  world.size = detail::number_in("WORLD_SIZE", 1, most_ranks);
  world.rank = detail::number_in("RANK", 0, world.size - 1);
  world.local_rank = detail::number_in("LOCAL_RANK", 0, world.size - 1);
  world.host = detail::variable("MASTER_ADDR");
  world.port = detail::number_in("MASTER_PORT", 1, 65534);
  if (const char* taken = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
      taken && std::string_view(taken) == "True")
    ++world.port;
  if (const char* run = std::getenv("TORCHELASTIC_RUN_ID")) world.job = hash_of(std::string_view(run));
  return world;
}

namespace detail {

/// A socket that closes with its owner. Move only.
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

/// Milliseconds to the deadline, at least one and at most `most`.
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
    else if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      return Moved::closed;
    else if (!ready_for(socket, POLLOUT, deadline))
      return Moved::late;
  }
  return Moved::all;
}

/// Counts the bytes that came in `got`.
inline Moved receive_all(const Socket& socket, std::span<std::byte> data, const Deadline& deadline,
                         std::size_t& got) {
  for (got = 0; got < data.size();) {
    const ssize_t n = ::recv(socket.get(), data.data() + got, data.size() - got, 0);
    if (n > 0)
      got += static_cast<std::size_t>(n);
    else if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
      return Moved::closed;
    else if (!ready_for(socket, POLLIN, deadline))
      return Moved::late;
  }
  return Moved::all;
}

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
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
};

/// What a rank says first.
struct Hello {
  static constexpr std::uint64_t word = 0x796f766e6f632e01;  // another byte order has another word
  static constexpr std::uint32_t now = 1;
  std::uint64_t magic = word;
  std::uint32_t version = now;
  std::uint32_t size = 0, rank = 0, unused = 0;
  std::uint64_t job = 0;
};

enum class Verdict : std::uint32_t { welcome, version, job, size, range, taken, missing };

/// What rank 0 answers.
struct Answer {
  std::uint64_t magic = Hello::word;
  std::uint32_t version = Hello::now;
  Verdict verdict = Verdict::welcome;
  std::uint32_t size = 0;
  std::int32_t culprit = -1;  ///< who is missing
};

enum class Kind : std::uint32_t { broadcast, all_gather, failed };

/// What goes before the bytes of a call.
struct Heading {
  std::uint64_t magic = Hello::word;
  Kind kind{};
  std::int32_t culprit = -1;  ///< of a failed one
  std::uint64_t sequence = 0, bytes = 0;
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}
template <class T>
std::span<std::byte> bytes_into(T& value) {
  return std::as_writable_bytes(std::span<T, 1>(&value, 1));
}

}  // namespace detail

/// A world over TCP: rank 0 listens, the others connect and keep their connections. For a few bytes at the
/// start: all goes through rank 0. Every wait has a deadline. Throws CommError where a rank is missing, gone
/// or late, and ConfigError where ranks do not mean the same world. Connections that are no rank's are
/// refused. Nothing is encrypted and nobody authenticated: for networks whose members are trusted, as NCCL's
/// own.
class TcpBootstrap {
 public:
  /// Of one call.
  static constexpr std::size_t most_bytes = std::size_t{64} << 20;

  /// Returns when all ranks have come.
  explicit TcpBootstrap(World world, Seconds deadline = Seconds(60))
      : world_(std::move(world)), limit_(deadline) {
    if (world_.size < 1 || world_.rank < 0 || world_.rank >= world_.size)
      fail<ConfigError>("bootstrap: there is no rank ", world_.rank, " in a world of ", world_.size);
    if (world_.port < 1 || world_.port > 65535)
      fail<ConfigError>("bootstrap: there is no port ", world_.port);
    if (world_.size == 1) return;
    if (world_.rank == 0)
      gather_ranks();
    else
      join();
  }

  int rank() const { return world_.rank; }
  int size() const { return world_.size; }
  const World& world() const { return world_; }

  /// Every rank ends with rank 0's bytes.
  void broadcast(std::span<std::byte> data) {
    const Call call = begin(detail::Kind::broadcast, data.size());
    if (rank() == 0)
      for (int r = 1; r < size(); ++r) send(call, r, data);
    else
      receive(call, 0, data);
  }

  /// `all` becomes every rank's `mine`, in the order of ranks.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    if (all.size() != mine.size() * static_cast<std::size_t>(size()))
      fail<ConfigError>("bootstrap: an all-gather of ", mine.size(), " bytes over ", size(),
                        " ranks does not give ", all.size(), " bytes");
    const Call call = begin(detail::Kind::all_gather, mine.size());
    const auto part = [&](int r) {
      return all.subspan(static_cast<std::size_t>(r) * mine.size(), mine.size());
    };
    if (!mine.empty()) std::memcpy(part(rank()).data(), mine.data(), mine.size());
    if (rank() != 0) {
      send(call, 0, mine);
      return receive(call, 0, all);
    }
    for (int r = 1; r < size(); ++r) receive(call, r, part(r));
    for (int r = 1; r < size(); ++r) send(call, r, all);
  }

  /// Returns when all ranks have called it.
  void barrier() { all_gather({}, {}); }

 private:
  using Socket = detail::Socket;

  // A rank that waits for rank 0 gives rank 0 the time to say whom rank 0 waits for.
  Deadline deadline() const { return Deadline(rank() == 0 ? limit_ : limit_ + std::min(limit_, Seconds(5))); }
  std::string place() const { return concat(world_.host, ":", world_.port); }
  std::string joining() const { return concat("joining a world of ", size(), " ranks at ", place()); }
  std::size_t index(int r) const { return static_cast<std::size_t>(r); }

  // --- Coming together.

  struct Guest {  // who has connected and not yet said who it is
    Socket socket;
    detail::Hello hello;
    std::size_t got = 0;
    Deadline patience;
  };

  static bool loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
  }

  // Rank 0 may know the name of its own host by another address than the others do, so rank 0 listens at all
  // of its addresses, unless the ranks are all on this host.
  std::vector<Socket> listen() const {
    const bool here = loopback(world_.host);
    const detail::Addresses found(here ? world_.host.c_str() : nullptr, world_.port, !here);
    std::vector<Socket> open;
    std::string reason = found.code != 0 ? gai_strerror(found.code) : "there is no address";
    for (const addrinfo* a = found.first; a != nullptr; a = a->ai_next) {
      Socket one(::socket(a->ai_family, a->ai_socktype, a->ai_protocol));
      if (one) {
        one.set(SOL_SOCKET, SO_REUSEADDR, 1);
        if (a->ai_family == AF_INET6) one.set(IPPROTO_IPV6, IPV6_V6ONLY, 1);
        if (::bind(one.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(one.get(), 1024) == 0) {
          open.push_back(std::move(one));
          continue;
        }
        if (errno == EADDRINUSE)
          fail<ConfigError>("bootstrap: rank 0 cannot listen at port ", world_.port,
                            ", which another program uses; choose another MASTER_PORT");
      }
      reason = std::strerror(errno);
    }
    if (open.empty()) fail<ConfigError>("bootstrap: rank 0 cannot listen at ", place(), ": ", reason);
    return open;
  }

  void gather_ranks() {
    const Deadline deadline = this->deadline();
    const std::vector<Socket> listeners = listen();
    peers_.resize(index(size()));
    std::vector<Guest> guests;
    std::string refused;  // why the last one was
    std::vector<pollfd> waits;
    int joined = 1;
    while (joined < size()) {
      if (deadline.expired()) return give_up_on_missing(deadline, refused);
      waits.clear();
      for (const Socket& s : listeners) waits.push_back({s.get(), POLLIN, 0});
      for (const Guest& g : guests) waits.push_back({g.socket.get(), POLLIN, 0});
      for (const Socket& s : peers_)
        if (s) waits.push_back({s.get(), POLLIN, 0});
      if (::poll(waits.data(), static_cast<nfds_t>(waits.size()), detail::milliseconds_left(deadline, 100)) <
          0)
        continue;
      // A rank says nothing before it is welcomed: it has gone, and another process may take its place.
      for (Socket& s : peers_)
        if (s && !still_there(s)) {
          s.close();
          --joined;
        }
      for (std::size_t i = 0; i < guests.size();)
        if (listen_to(guests[i], joined, refused))
          ++i;
        else
          guests.erase(guests.begin() + static_cast<std::ptrdiff_t>(i));
      for (const Socket& s : listeners) accept(s, guests);
    }
    for (int r = 1; r < size(); ++r)
      if (send_all(peers_[index(r)], detail::bytes_of(answer(detail::Verdict::welcome)), deadline) !=
          detail::Moved::all)
        throw CommError({.rank = 0, .peer = r, .operation = joining(), .elapsed = deadline.elapsed()},
                        "the connection was closed");
  }

  static bool still_there(const Socket& socket) {
    std::byte any{};
    return ::recv(socket.get(), &any, 1, 0) < 0 &&
           (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  }

  // Silent strangers wait for `patience`; where there are very many, those that came first go first.
  void accept(const Socket& listener, std::vector<Guest>& guests) const {
    constexpr double patience = 5;
    constexpr std::size_t most = 256;
    while (true) {
      Socket one(::accept(listener.get(), nullptr, nullptr));
      if (!one) return;
      one.set(IPPROTO_TCP, TCP_NODELAY, 1);
      if (guests.size() >= most + index(size())) guests.erase(guests.begin());
      guests.push_back({std::move(one), {}, 0, Deadline(std::max(limit_ / 4, Seconds(patience)))});
    }
  }

  detail::Answer answer(detail::Verdict verdict, int culprit = -1) const {
    return {.verdict = verdict, .size = static_cast<std::uint32_t>(size()), .culprit = culprit};
  }

  // Whether the guest is still one: neither a rank, nor refused, nor gone.
  bool listen_to(Guest& guest, int& joined, std::string& refused) {
    const auto hello = detail::bytes_into(guest.hello).subspan(guest.got);
    const ssize_t n = ::recv(guest.socket.get(), hello.data(), hello.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
      return !guest.patience.expired();
    if (n <= 0) return false;
    guest.got += static_cast<std::size_t>(n);
    const detail::Hello& h = guest.hello;
    if (guest.got >= sizeof h.magic && h.magic != detail::Hello::word) {
      refused = "was no rank of convoy's";
      return false;
    }
    if (guest.got < sizeof h) return true;
    if (h.rank < peers_.size() && peers_[h.rank] && !still_there(peers_[h.rank])) {
      peers_[h.rank].close();
      --joined;
    }
    const auto verdict = h.version != detail::Hello::now                ? detail::Verdict::version
                         : h.job != world_.job                          ? detail::Verdict::job
                         : h.size != static_cast<std::uint32_t>(size()) ? detail::Verdict::size
                         : h.rank < 1 || h.rank >= h.size               ? detail::Verdict::range
                         : peers_[h.rank]                               ? detail::Verdict::taken
                                                                        : detail::Verdict::welcome;
    if (verdict == detail::Verdict::welcome) {
      peers_[h.rank] = std::move(guest.socket);
      ++joined;
      return false;
    }
    refused = concat("said that it was rank ", h.rank, " of ", h.size,
                     verdict == detail::Verdict::taken     ? ", which was there already"
                     : verdict == detail::Verdict::job     ? " of another job"
                     : verdict == detail::Verdict::version ? " of another version"
                                                           : "");
    tell(guest.socket, detail::bytes_of(answer(verdict)));
    return false;
  }

  void give_up_on_missing(const Deadline& deadline, const std::string& refused) {
    std::string names;
    int first = -1, count = 0;
    for (int r = 1; r < size(); ++r) {
      if (peers_[index(r)]) continue;
      if (first < 0) first = r;
      if (++count <= 8) names += concat(names.empty() ? "" : ", ", r);
    }
    if (count > 8) names += concat(" and ", count - 8, " more");
    for (const Socket& s : peers_)
      if (s) tell(s, detail::bytes_of(answer(detail::Verdict::missing, first)));
    throw CommError({.rank = 0, .operation = joining(), .elapsed = deadline.elapsed(), .culprit = first},
                    concat(count > 1 ? "ranks " : "rank ", names, " did not come within ", limit_.count(),
                           " s", refused.empty() ? "" : "; the last that was refused ", refused));
  }

  // Without waiting: what fits into an empty socket, or to whom it may concern.
  static void tell(const Socket& socket, std::span<const std::byte> data) {
    static_cast<void>(::send(socket.get(), data.data(), data.size(), MSG_NOSIGNAL));
  }

  void join() {
    const Deadline deadline = this->deadline();
    std::string reason = "it did not answer";
    for (int nap = 10;; nap = std::min(2 * nap, 250)) {
      const detail::Addresses found(world_.host.c_str(), world_.port, false);
      if (found.code != 0) reason = gai_strerror(found.code);
      for (const addrinfo* a = found.first; a != nullptr; a = a->ai_next)
        if (Socket one = connect(*a, deadline, reason); one && greet(one, deadline, reason)) {
          peers_.resize(1);
          peers_[0] = std::move(one);
          return;
        }
      if (deadline.expired())
        throw CommError({.rank = rank(), .operation = joining(), .elapsed = deadline.elapsed(), .culprit = 0},
                        concat("rank 0 could not be reached within ", limit_.count(), " s (", reason, ")"));
      std::this_thread::sleep_for(
          std::chrono::milliseconds(std::min(nap, detail::milliseconds_left(deadline, nap))));
    }
  }

  Socket connect(const addrinfo& to, const Deadline& deadline, std::string& reason) const {
    Socket one(::socket(to.ai_family, to.ai_socktype, to.ai_protocol));
    if (!one) {
      reason = std::strerror(errno);
      return {};
    }
    one.set(IPPROTO_TCP, TCP_NODELAY, 1);
    int code = ::connect(one.get(), to.ai_addr, to.ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS || code == EINTR) {
      const double left = Seconds(deadline.end() - Clock::now()).count();
      socklen_t length = sizeof code;
      if (!ready_for(one, POLLOUT, Deadline(Seconds(std::min(3.0, left)))))
        code = ETIMEDOUT;
      else
        getsockopt(one.get(), SOL_SOCKET, SO_ERROR, &code, &length);
    }
    if (code == 0 && to_itself(one)) code = ECONNREFUSED;
    if (code == 0) return one;
    reason = std::strerror(code);
    return {};
  }

  // Where nobody listens at a port that is given out to clients, a client may be given that port and meet
  // itself.
  static bool to_itself(const Socket& socket) {
    sockaddr_storage mine{}, other{};
    socklen_t mine_length = sizeof mine, other_length = sizeof other;
    return getsockname(socket.get(), reinterpret_cast<sockaddr*>(&mine), &mine_length) == 0 &&
           getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other), &other_length) == 0 &&
           mine_length == other_length && std::memcmp(&mine, &other, mine_length) == 0;
  }

  // Whether rank 0 has welcomed this rank. False: it may do so in another connection.
  bool greet(const Socket& socket, const Deadline& deadline, std::string& reason) const {
    const detail::Hello hello{.size = static_cast<std::uint32_t>(size()),
                              .rank = static_cast<std::uint32_t>(rank()),
                              .job = world_.job};
    detail::Answer answer;
    answer.magic = 0;
    std::size_t got = 0;
    detail::Moved moved = send_all(socket, detail::bytes_of(hello), deadline);
    if (moved == detail::Moved::all) moved = receive_all(socket, detail::bytes_into(answer), deadline, got);
    if (got >= sizeof answer.magic && answer.magic != detail::Hello::word)
      fail<ConfigError>("rank ", rank(), ": bootstrap: what listens at ", place(), " is not convoy's rank 0");
    if (moved != detail::Moved::all) {
      reason = moved == detail::Moved::late ? "not all ranks have come" : "the connection was closed";
      return false;
    }
    switch (answer.verdict) {
      case detail::Verdict::welcome:
        return true;
      case detail::Verdict::missing:
        throw CommError({.rank = rank(),
                         .operation = joining(),
                         .elapsed = deadline.elapsed(),
                         .culprit = answer.culprit},
                        concat("rank 0 says that rank ", answer.culprit, " did not come in time"));
      case detail::Verdict::taken:
        fail<ConfigError>("rank ", rank(), ": bootstrap: rank 0 at ", place(), " has another rank ", rank(),
                          " already");
      case detail::Verdict::version:
        fail<ConfigError>("rank ", rank(), ": bootstrap: rank 0 at ", place(), " speaks version ",
                          answer.version, ", this rank ", detail::Hello::now);
      case detail::Verdict::job:
        fail<ConfigError>("rank ", rank(), ": bootstrap: rank 0 at ", place(), " is of another job");
      default:
        fail<ConfigError>("rank ", rank(), ": bootstrap: rank 0 at ", place(), " is of a world of ",
                          answer.size, " ranks, this rank of ", size());
    }
  }

  // --- Calls.

  struct Call {
    detail::Kind kind;
    std::uint64_t sequence;
    std::size_t bytes;  // of each rank
    Deadline deadline;
  };

  static std::string_view name_of(detail::Kind kind) {
    return kind == detail::Kind::broadcast ? "broadcast of the bootstrap" : "all-gather of the bootstrap";
  }

  Call begin(detail::Kind kind, std::size_t bytes) {
    if (bytes * (kind == detail::Kind::broadcast ? 1 : index(size())) > most_bytes)
      fail<ConfigError>("rank ", rank(), ": ", name_of(kind), ": ", bytes, " bytes for each rank; at most ",
                        most_bytes, " go at a time");
    if (broken_) fail<ConfigError>("rank ", rank(), ": ", name_of(kind), ": an earlier call has failed");
    return {kind, sequence_++, bytes, deadline()};
  }

  // Rank 0 tells the others, so that all name the same culprit.
  [[noreturn]] void lose(const Call& call, int peer, int culprit, std::size_t bytes,
                         std::string_view reason) {
    broken_ = true;
    if (rank() == 0) {
      const detail::Heading failed{
          .kind = detail::Kind::failed, .culprit = culprit, .sequence = call.sequence};
      for (int r = 1; r < size(); ++r)
        if (r != culprit && peers_[index(r)]) tell(peers_[index(r)], detail::bytes_of(failed));
    }
    peers_.clear();
    throw CommError({.rank = rank(),
                     .peer = peer,
                     .operation = std::string(name_of(call.kind)),
                     .sequence = call.sequence,
                     .bytes = bytes,
                     .elapsed = call.deadline.elapsed(),
                     .culprit = culprit},
                    reason);
  }
  void check(const Call& call, int peer, detail::Moved moved, std::size_t bytes) {
    if (moved == detail::Moved::late) lose(call, peer, peer, bytes, "it is late");
    if (moved == detail::Moved::closed) lose(call, peer, peer, bytes, "the connection was closed");
  }

  void send(const Call& call, int peer, std::span<const std::byte> data) {
    const detail::Heading heading{.kind = call.kind, .sequence = call.sequence, .bytes = data.size()};
    const Socket& socket = peers_[index(peer)];
    check(call, peer, send_all(socket, detail::bytes_of(heading), call.deadline), data.size());
    check(call, peer, send_all(socket, data, call.deadline), data.size());
  }

  void receive(const Call& call, int peer, std::span<std::byte> data) {
    const Socket& socket = peers_[index(peer)];
    detail::Heading heading;
    std::size_t got = 0;
    check(call, peer, receive_all(socket, detail::bytes_into(heading), call.deadline, got), data.size());
    if (heading.magic != detail::Hello::word)
      lose(call, peer, peer, data.size(), "something else came than a message of the bootstrap");
    if (heading.kind == detail::Kind::failed)
      lose(call, peer, heading.culprit, data.size(),
           concat("rank 0 says that rank ", heading.culprit, " is gone, late, or does something else"));
    if (heading.kind != call.kind || heading.sequence != call.sequence || heading.bytes != data.size())
      lose(call, peer, peer, data.size(),
           concat("the other rank is at a ", name_of(heading.kind), ", message ", heading.sequence, " of ",
                  heading.bytes, " bytes"));
    check(call, peer, receive_all(socket, data, call.deadline, got), data.size());
  }

  World world_;
  Seconds limit_;
  std::vector<Socket> peers_;  // of rank 0: by rank; of another: rank 0
  std::uint64_t sequence_ = 0;
  bool broken_ = false;
};

static_assert(Bootstrap<TcpBootstrap>);

/// Any bootstrap, and parts of its world: what a policy keeps.
class AnyBootstrap {
 public:
  template <Bootstrap B>
  requires(!std::same_as<std::remove_cvref_t<B>, AnyBootstrap>) AnyBootstrap(B bootstrap)
      : held_(std::make_shared<Held<B>>(std::move(bootstrap))), rank_(held_->rank()) {
    members_.resize(static_cast<std::size_t>(held_->size()));
    for (std::size_t r = 0; r < members_.size(); ++r) members_[r] = static_cast<int>(r);
  }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  /// Every rank ends with the bytes of the group's rank 0. The ranks of all groups call it together, with the
  /// same sizes.
  void broadcast(std::span<std::byte> data) {
    if (size() == held_->size()) return held_->broadcast(data);
    std::vector<std::byte> all(data.size() * static_cast<std::size_t>(size()));
    all_gather(data, all);
    if (!data.empty()) std::memcpy(data.data(), all.data(), data.size());
  }
  /// The ranks of all groups call it together, with the same sizes.
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    if (size() == held_->size()) return held_->all_gather(mine, all);
    std::vector<std::byte> world(mine.size() * static_cast<std::size_t>(held_->size()));
    held_->all_gather(mine, world);
    for (std::size_t i = 0; i < members_.size() && !mine.empty(); ++i)
      std::memcpy(all.data() + i * mine.size(),
                  world.data() + static_cast<std::size_t>(members_[i]) * mine.size(), mine.size());
  }
  /// Rank i of the group is rank `members[i]` of this one.
  AnyBootstrap group(const std::vector<int>& members) const {
    AnyBootstrap part = *this;
    part.members_.clear();
    for (std::size_t i = 0; i < members.size(); ++i) {
      part.members_.push_back(members_[static_cast<std::size_t>(members[i])]);
      if (members[i] == rank_) part.rank_ = static_cast<int>(i);
    }
    return part;
  }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual void broadcast(std::span<std::byte> data) = 0;
    virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  };
  template <class B>
  struct Held final : Interface {
    explicit Held(B given) : it(std::move(given)) {}
    int rank() const override { return it.rank(); }
    int size() const override { return it.size(); }
    void broadcast(std::span<std::byte> data) override { it.broadcast(data); }
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
      it.all_gather(mine, all);
    }
    B it;
  };

  std::shared_ptr<Interface> held_;
  int rank_ = 0;
  std::vector<int> members_;  // of the whole world
};

static_assert(Bootstrap<AnyBootstrap>);

}  // namespace convoy::comm
