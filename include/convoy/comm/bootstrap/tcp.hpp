// TcpBootstrap: the bootstrap for programs without MPI.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/socket.hpp>
#include <convoy/comm/bootstrap/world.hpp>
#include <convoy/comm/error.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

namespace detail {

/// The first message of a rank.
struct Hello {
  static constexpr std::uint64_t word = 0x796f766e6f632e01;  // differs in another byte order
  static constexpr std::uint32_t now = 1;
  std::uint64_t magic = word;
  std::uint32_t version = now;
  std::uint32_t size = 0, rank = 0, unused = 0;
  std::uint64_t job = 0;
};

enum class JoinReply : std::uint32_t { welcome, version, job, size, range, taken, missing };

/// The answer of rank 0.
struct Answer {
  std::uint64_t magic = Hello::word;
  std::uint32_t version = Hello::now;
  JoinReply reply = JoinReply::welcome;
  std::uint32_t size = 0;
  std::int32_t culprit = -1;  ///< the rank that is missing
};

enum class Kind : std::uint32_t { broadcast, all_gather, failed, gather };

/// The header of the bytes of a call.
struct Heading {
  std::uint64_t magic = Hello::word;
  Kind kind{};
  std::int32_t culprit = -1;  ///< of a failed call
  std::uint64_t sequence = 0, bytes = 0;
};

/// Sockets that listen at the addresses, as far as that is possible; `reason` is why an address is not among
/// them. Throws ConfigError if another program listens at one.
inline std::vector<Socket> listeners_at(const Addresses& found, int port, std::string& reason) {
  std::vector<Socket> open;
  for (const addrinfo* a = found.first; a != nullptr; a = a->ai_next) {
    if (found.repeats(*a)) continue;
    Socket one(::socket(a->ai_family, a->ai_socktype, a->ai_protocol));
    if (one) {
      one.set(SOL_SOCKET, SO_REUSEADDR, 1);
      if (a->ai_family == AF_INET6) one.set(IPPROTO_IPV6, IPV6_V6ONLY, 1);
      if (::bind(one.get(), a->ai_addr, a->ai_addrlen) == 0 && ::listen(one.get(), 1024) == 0) {
        open.push_back(std::move(one));
        continue;
      }
      if (errno == EADDRINUSE)
        fail<ConfigError>("bootstrap: rank 0 cannot listen at port ", port,
                          ", which another program uses; choose another MASTER_PORT");
    }
    reason = std::strerror(errno);
  }
  return open;
}

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}
template <class T>
std::span<std::byte> bytes_into(T& value) {
  return std::as_writable_bytes(std::span<T, 1>(&value, 1));
}

}  // namespace detail

/// A world over TCP: rank 0 listens, the others connect and keep their connections. All bytes go through rank
/// 0, so this is for a few bytes at the start and in each step. Every wait has a deadline. Throws CommError
/// if a rank is missing, gone or late, and ConfigError if ranks disagree about the world. Connections that do
/// not come from a rank are refused. There is no encryption and no authentication, so use it only in trusted
/// networks, like NCCL's own bootstrap.
class TcpBootstrap {
 public:
  /// The most bytes of one call, over all ranks.
  static constexpr std::size_t most_bytes = std::size_t{64} << 20;

  /// Returns when all ranks are connected.
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
    const Call call = collect(detail::Kind::all_gather, mine, all);
    if (rank() != 0) return receive(call, 0, all);
    for (int r = 1; r < size(); ++r) send(call, r, all);
  }
  /// On rank 0 `all` becomes every rank's `mine`; on the others it is unchanged.
  void gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    collect(detail::Kind::gather, mine, all);
  }

  /// Returns when all ranks have called it.
  void barrier() { all_gather({}, {}); }

 private:
  using Socket = detail::Socket;

  // Other ranks wait longer than rank 0, so that rank 0 can tell them which rank is missing.
  Deadline deadline() const { return Deadline(rank() == 0 ? limit_ : limit_ + std::min(limit_, Seconds(5))); }
  std::string place() const { return concat(world_.host, ":", world_.port); }
  std::string joining() const { return concat("joining a world of ", size(), " ranks at ", place()); }
  std::size_t index(int r) const { return static_cast<std::size_t>(r); }

  // --- Connecting.

  struct Guest {  // a connection that has not yet identified itself
    Socket socket;
    detail::Hello hello;
    std::size_t got = 0;
    Deadline patience;
  };

  static bool loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
  }

  // The name of rank 0's host may resolve to another address there than on other hosts. So rank 0 listens at
  // all of its addresses, unless all ranks are on this host.
  std::vector<Socket> listen() const {
    const bool here = loopback(world_.host);
    const detail::Addresses found(here ? world_.host.c_str() : nullptr, world_.port, !here);
    std::string reason = found.code != 0 ? gai_strerror(found.code) : "there is no address";
    std::vector<Socket> open = detail::listeners_at(found, world_.port, reason);
    if (open.empty()) fail<ConfigError>("bootstrap: rank 0 cannot listen at ", place(), ": ", reason);
    return open;
  }

  void gather_ranks() {
    const Deadline deadline = this->deadline();
    const std::vector<Socket> listeners = listen();
    peers_.resize(index(size()));
    std::vector<Guest> guests;
    std::string refused;  // why the last refused guest was refused
    std::vector<pollfd> waits;
    int joined = 1;
    while (joined < size()) {
      if (deadline.expired()) return give_up_on_missing(deadline, refused);
      waits.clear();
      for (const Socket& s : listeners) waits.push_back({s.get(), POLLIN, 0});
      for (const Guest& g : guests) waits.push_back({g.socket.get(), POLLIN, 0});
      for (const Socket& s : peers_)
        if (s) waits.push_back({s.get(), POLLIN, 0});
      if (::poll(waits.data(), waits.size(), detail::milliseconds_left(deadline, 100)) < 0) continue;
      for (std::size_t i = 0; i < guests.size();)
        if (listen_to(guests[i], joined, refused))
          ++i;
        else
          guests.erase(guests.begin() + static_cast<std::ptrdiff_t>(i));
      // A rank that sends more before it is welcomed, or closes its connection, counts as gone; another
      // process may take its place. Checked after the guests, because one that has just joined may be gone.
      for (Socket& s : peers_)
        if (s && !still_there(s)) {
          s.close();
          --joined;
        }
      for (const Socket& s : listeners) accept(s, guests);
    }
    for (int r = 1; r < size(); ++r)
      if (send_all(peers_[index(r)], detail::bytes_of(answer(detail::JoinReply::welcome)), deadline) !=
          detail::Moved::all)
        throw CommError({.rank = 0, .peer = r, .operation = joining(), .elapsed = deadline.elapsed()},
                        "the connection was closed");
  }

  static bool still_there(const Socket& socket) {
    std::byte any{};
    return ::recv(socket.get(), &any, 1, 0) < 0 && (errno == EAGAIN || errno == EINTR);
  }

  // Silent guests are kept for at least `patience` seconds. If there are too many, the oldest is dropped.
  void accept(const Socket& listener, std::vector<Guest>& guests) const {
    constexpr double patience = 5;
    constexpr std::size_t most = 256;
    while (true) {
      Socket one(::accept(listener.get(), nullptr, nullptr));
      if (!one && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        fail<ConfigError>("rank 0 cannot accept the connections of ", size() - 1,
                          " ranks: ", std::strerror(errno),
                          "; it needs a file descriptor for each (ulimit -n)");
      if (!one) return;
      one.set(IPPROTO_TCP, TCP_NODELAY, 1);
      if (guests.size() >= most + index(size())) guests.erase(guests.begin());
      guests.push_back({std::move(one), {}, 0, Deadline(std::max(limit_ / 4, Seconds(patience)))});
    }
  }

  detail::Answer answer(detail::JoinReply reply, int culprit = -1) const {
    return {.reply = reply, .size = static_cast<std::uint32_t>(size()), .culprit = culprit};
  }

  // Whether the guest is still one: false once it is a rank, refused or gone.
  bool listen_to(Guest& guest, int& joined, std::string& refused) {
    const auto hello = detail::bytes_into(guest.hello).subspan(guest.got);
    const ssize_t n = ::recv(guest.socket.get(), hello.data(), hello.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return !guest.patience.expired();
    if (n <= 0) return false;
    guest.got += static_cast<std::size_t>(n);
    const detail::Hello& h = guest.hello;
    if (guest.got >= sizeof h.magic && h.magic != detail::Hello::word) {
      refused = "did not come from a convoy rank";
      return false;
    }
    if (guest.got < sizeof h) return true;
    if (h.rank < peers_.size() && peers_[h.rank] && !still_there(peers_[h.rank])) {
      peers_[h.rank].close();
      --joined;
    }
    const auto reply = h.version != detail::Hello::now                ? detail::JoinReply::version
                       : h.job != world_.job                          ? detail::JoinReply::job
                       : h.size != static_cast<std::uint32_t>(size()) ? detail::JoinReply::size
                       : h.rank < 1 || h.rank >= h.size               ? detail::JoinReply::range
                       : peers_[h.rank]                               ? detail::JoinReply::taken
                                                                      : detail::JoinReply::welcome;
    if (reply == detail::JoinReply::welcome) {
      peers_[h.rank] = std::move(guest.socket);
      ++joined;
      return false;
    }
    refused = concat("said that it was rank ", h.rank, " of ", h.size,
                     reply == detail::JoinReply::taken     ? ", which had already joined"
                     : reply == detail::JoinReply::job     ? " of another job"
                     : reply == detail::JoinReply::version ? " of another version"
                                                           : "");
    tell(guest.socket, detail::bytes_of(answer(reply)));
    return false;
  }

  void give_up_on_missing(const Deadline& deadline, const std::string& refused) {
    std::string names;
    int first = -1, count = 0;
    for (int r = 1; r < size(); ++r) {
      if (peers_[index(r)]) continue;
      if (first < 0) first = r;
      if (++count <= 8) append_item(names, concat(r));
    }
    if (count > 8) names += concat(" and ", count - 8, " more");
    for (const Socket& s : peers_)
      if (s) tell(s, detail::bytes_of(answer(detail::JoinReply::missing, first)));
    throw CommError({.rank = 0, .operation = joining(), .elapsed = deadline.elapsed(), .culprit = first},
                    concat(count > 1 ? "ranks " : "rank ", names, " did not come within ", limit_.count(),
                           " s", refused.empty() ? "" : "; the last connection that was refused ", refused));
  }

  // Sends a small message without waiting, to a peer whose connection is about to be closed.
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

  // If nobody listens at an ephemeral port, a client may be given that port as its own and connect to itself.
  static bool to_itself(const Socket& socket) {
    sockaddr_storage mine{}, other{};
    socklen_t mine_length = sizeof mine, other_length = sizeof other;
    return getsockname(socket.get(), reinterpret_cast<sockaddr*>(&mine), &mine_length) == 0 &&
           getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other), &other_length) == 0 &&
           mine_length == other_length && std::memcmp(&mine, &other, mine_length) == 0;
  }

  // Whether rank 0 has welcomed this rank. If not, another connection may succeed.
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
      fail<ConfigError>("rank ", rank(), ": bootstrap: the program that listens at ", place(),
                        " is not convoy's rank 0");
    if (moved != detail::Moved::all) {
      reason = moved == detail::Moved::late ? "not all ranks have come" : "the connection was closed";
      return false;
    }
    switch (answer.reply) {
      case detail::JoinReply::welcome:
        return true;
      case detail::JoinReply::missing:
        throw CommError({.rank = rank(),
                         .operation = joining(),
                         .elapsed = deadline.elapsed(),
                         .culprit = answer.culprit},
                        concat("rank 0 says that rank ", answer.culprit, " did not come in time"));
      case detail::JoinReply::taken:
        fail<ConfigError>("rank ", rank(), ": bootstrap: rank 0 at ", place(), " already has a rank ",
                          rank());
      case detail::JoinReply::version:
        fail<ConfigError>("rank ", rank(), ": bootstrap: rank 0 at ", place(), " speaks version ",
                          answer.version, " of the protocol, this rank version ", detail::Hello::now);
      case detail::JoinReply::job:
        fail<ConfigError>("rank ", rank(), ": bootstrap: rank 0 at ", place(), " belongs to another job");
      default:
        fail<ConfigError>("rank ", rank(), ": bootstrap: rank 0 at ", place(), " has a world of ",
                          answer.size, " ranks, this rank one of ", size());
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
    return kind == detail::Kind::broadcast    ? "broadcast of the bootstrap"
           : kind == detail::Kind::all_gather ? "all-gather of the bootstrap"
                                              : "gather of the bootstrap";
  }

  Call begin(detail::Kind kind, std::size_t bytes) {
    if (bytes * (kind == detail::Kind::broadcast ? 1 : index(size())) > most_bytes)
      fail<ConfigError>("rank ", rank(), ": ", name_of(kind), ": ", bytes,
                        " bytes for each rank; a call takes at most ", most_bytes);
    if (broken_) fail<ConfigError>("rank ", rank(), ": ", name_of(kind), ": an earlier call has failed");
    return {kind, sequence_++, bytes, deadline()};
  }

  // Rank 0 receives the bytes of all ranks.
  Call collect(detail::Kind kind, std::span<const std::byte> mine, std::span<std::byte> all) {
    if (all.size() != mine.size() * index(size()))
      fail<ConfigError>("bootstrap: to gather ", mine.size(), " bytes from each of ", size(),
                        " ranks does not give ", all.size(), " bytes");
    const Call call = begin(kind, mine.size());
    if (rank() != 0) {
      send(call, 0, mine);
      return call;
    }
    if (!mine.empty()) std::memcpy(all.data(), mine.data(), mine.size());
    for (int r = 1; r < size(); ++r) receive(call, r, all.subspan(index(r) * mine.size(), mine.size()));
    return call;
  }

  // Throws CommError. Rank 0 tells the others first, the culprit included, so that all name the same culprit.
  [[noreturn]] void lose(const Call& call, int peer, int culprit, std::size_t bytes,
                         std::string_view reason) {
    broken_ = true;
    if (rank() == 0) {
      const detail::Heading failed{
          .kind = detail::Kind::failed, .culprit = culprit, .sequence = call.sequence};
      for (int r = 1; r < size(); ++r)
        if (peers_[index(r)]) tell(peers_[index(r)], detail::bytes_of(failed));
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
    detail::Moved moved = send_all(socket, detail::bytes_of(heading), call.deadline);
    if (moved == detail::Moved::all) moved = send_all(socket, data, call.deadline);
    // Rank 0 says who is to blame before it closes the connection.
    if (moved == detail::Moved::closed && rank() != 0) receive(call, peer, {});
    check(call, peer, moved, data.size());
  }

  void receive(const Call& call, int peer, std::span<std::byte> data) {
    const Socket& socket = peers_[index(peer)];
    detail::Heading heading;
    std::size_t got = 0;
    check(call, peer, receive_all(socket, detail::bytes_into(heading), call.deadline, got), data.size());
    if (heading.magic != detail::Hello::word)
      lose(call, peer, peer, data.size(), "it sent something other than a message of the bootstrap");
    if (heading.kind == detail::Kind::failed)
      lose(call, peer, heading.culprit, data.size(),
           concat("rank 0 says that rank ", heading.culprit, " has left, is late, or makes another call"));
    if (heading.kind != call.kind || heading.sequence != call.sequence || heading.bytes != data.size())
      lose(call, peer, peer, data.size(),
           concat("the other rank is at a ", name_of(heading.kind), ", message ", heading.sequence, " of ",
                  heading.bytes, " bytes"));
    check(call, peer, receive_all(socket, data, call.deadline, got), data.size());
  }

  World world_;
  Seconds limit_;
  std::vector<Socket> peers_;  // on rank 0: by rank; on another rank: rank 0 alone
  std::uint64_t sequence_ = 0;
  bool broken_ = false;
};

static_assert(Bootstrap<TcpBootstrap>);

}  // namespace convoy::comm
