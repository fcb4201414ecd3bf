// SANITIZE: address thread
// The bootstrap over TCP: ranks as threads and as processes, foreign connections, and ranks that never come,
// that leave, or that make different calls.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <convoy/comm/bootstrap/numbers.hpp>
#include <convoy/comm/bootstrap/tcp.hpp>

using namespace convoy;
using comm::TcpBootstrap;
using comm::detail::Socket;

namespace {

const char* const loopback[] = {"127.0.0.1", "::1", "localhost"};

sockaddr_in at(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

// A listener on a port chosen by the system.
struct Listener {
  Socket socket{::socket(AF_INET, SOCK_STREAM, 0)};
  int port = 0;
  Listener() {
    sockaddr_in address = at(0);
    socklen_t length = sizeof address;
    REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(socket.get(), 16) == 0);
    getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length);
    port = ntohs(address.sin_port);
  }
};
int free_port() { return Listener().port; }

bool has_ipv6() {
  const Socket one(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return one && ::bind(one.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

// A foreign connection, once somebody listens.
int knock(int port) {
  for (int i = 0; i < 2000; ++i) {
    const int one = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = at(port);
    if (::connect(one, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return one;
    ::close(one);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return -1;
}

template <class T>
void say(int socket, const T& value) {
  static_cast<void>(::send(socket, &value, sizeof value, MSG_NOSIGNAL));
}

// Returns each rank's error message; empty if there was none.
std::vector<std::string> run(int size, int port, Seconds limit,
                             const std::function<void(TcpBootstrap&)>& body,
                             const std::vector<int>& absent = {}, const char* host = "127.0.0.1",
                             std::vector<int>* culprits = nullptr) {
  std::vector<std::string> sentences(static_cast<std::size_t>(size));
  if (culprits != nullptr) culprits->assign(static_cast<std::size_t>(size), -2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    if (std::count(absent.begin(), absent.end(), rank) > 0) continue;
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      try {
        TcpBootstrap world({.rank = rank, .size = size, .host = host, .port = port}, limit);
        body(world);
      } catch (const CommError& error) {
        sentences[r] = error.what();
        if (culprits != nullptr) (*culprits)[r] = error.culprit;
      } catch (const Error& error) {
        sentences[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return sentences;
}

// Makes all calls several times; returns whether every byte was right.
bool works(TcpBootstrap& world) {
  bool right = true;
  for (int round = 0; round < 3; ++round)
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{128}, std::size_t{300000}}) {
      const auto value = [&](int rank) { return static_cast<std::byte>(17 * rank + round + 1); };
      std::vector<std::byte> data(bytes, value(world.rank()));
      world.broadcast(data);
      for (const std::byte b : data) right = right && b == value(0);
      const std::vector<std::byte> mine(bytes, value(world.rank()));
      std::vector<std::byte> all(bytes * static_cast<std::size_t>(world.size()));
      world.all_gather(mine, all);
      for (std::size_t i = 0; i < all.size(); ++i)
        right = right && all[i] == value(static_cast<int>(i / bytes));
      std::vector<std::byte> of_all(all.size());
      world.gather(mine, of_all);
      right = right && of_all == (world.rank() == 0 ? all : std::vector<std::byte>(all.size()));
      world.barrier();
    }
  return right;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("ranks as threads exchange bytes, by IPv4, IPv6 and by name") {
  for (const char* host : loopback) {
    if (std::string(host) == "::1" && !has_ipv6()) continue;
    for (const int size : {1, 2, 5}) {
      CAPTURE(host);
      CAPTURE(size);
      std::atomic<int> right = 0;
      const auto sentences = run(
          size, free_port(), Seconds(30), [&](TcpBootstrap& world) { right += works(world) ? 1 : 0; }, {},
          host);
      for (const std::string& sentence : sentences) CHECK(sentence == "");
      CHECK(right == size);
    }
  }
}

TEST_CASE("ranks as processes exchange bytes") {
  const int size = 4, port = free_port();
  std::vector<pid_t> processes;
  for (int rank = size - 1; rank >= 0; --rank) {
    const pid_t process = fork();
    REQUIRE(process >= 0);
    if (process == 0) {
      int code = 1;
      try {
        TcpBootstrap world({.rank = rank, .size = size, .host = "127.0.0.1", .port = port}, Seconds(30));
        code = works(world) ? 0 : 2;
      } catch (...) {
      }
      std::_Exit(code);
    }
    processes.push_back(process);
  }
  for (const pid_t process : processes) {
    int status = -1;
    REQUIRE(waitpid(process, &status, 0) == process);
    CHECK(status == 0);
  }
}

TEST_CASE("strangers are refused and harm nobody") {
  const int size = 3, port = free_port();
  std::vector<int> strangers;
  std::thread visitors([&] {
    using comm::detail::Hello;
    const auto visit = [&](auto&& talk) {
      strangers.push_back(knock(port));
      talk(strangers.back());
    };
    visit([](int) {});  // connects, sends nothing and stays
    visit([](int s) { say(s, std::array<char, 300>{'G', 'E', 'T', ' ', '/'}); });
    visit([](int s) { say(s, 'x'); });
    visit([](int s) { say(s, Hello{.size = 3, .rank = 7}); });
    visit([](int s) { say(s, Hello{.size = 0xffffffffu, .rank = 0xfffffffeu}); });
    visit([](int s) { say(s, Hello{.size = 3, .rank = 0}); });
    visit([](int s) { say(s, Hello{.size = 4, .rank = 1}); });
    visit([](int s) { say(s, Hello{.version = 99, .size = 3, .rank = 1}); });
    visit([](int s) { say(s, Hello{.size = 3, .rank = 1, .job = 5}); });
    for (int i = 0; i < 300; ++i) visit([](int) {});
    visit([](int s) {  // a rank that leaves before the others have come
      say(s, Hello{.size = 3, .rank = 1});
      ::close(s);
    });
    strangers.pop_back();
  });
  std::atomic<int> right = 0;
  const auto body = [&](TcpBootstrap& world) { right += works(world) ? 1 : 0; };
  std::vector<std::string> first;
  std::thread zero([&] { first = run(size, port, Seconds(60), body, {1, 2}); });
  visitors.join();
  const auto others = run(size, port, Seconds(60), body, {0});
  zero.join();
  CHECK(first[0] == "");
  CHECK(others[1] == "");
  CHECK(others[2] == "");
  CHECK(right == 3);
  for (const int stranger : strangers) ::close(stranger);
}

TEST_CASE("a rank that goes as it comes leaves its place to another") {
  const int port = free_port();
  std::atomic<int> right = 0;
  const auto body = [&](TcpBootstrap& world) { right += works(world) ? 1 : 0; };
  std::vector<std::string> first;
  std::thread zero([&] { first = run(2, port, Seconds(60), body, {1}); });
  const int gone = knock(port);
  const int held = 1;  // the message and the end of the connection arrive in one segment
  REQUIRE(::setsockopt(gone, IPPROTO_TCP, TCP_CORK, &held, sizeof held) == 0);
  say(gone, comm::detail::Hello{.size = 2, .rank = 1});
  ::close(gone);
  const auto others = run(2, port, Seconds(60), body, {0});
  zero.join();
  CHECK(first[0] == "");
  CHECK(others[1] == "");
  CHECK(right == 2);
}

TEST_CASE("a rank that never comes is named on all ranks") {
  std::vector<int> culprits;
  const auto sentences = run(
      4, free_port(), Seconds(1.5), [](TcpBootstrap&) {}, {2}, "127.0.0.1", &culprits);
  CAPTURE(sentences[0]);
  CHECK(contains(sentences[0], "rank 2 did not come within 1.5 s"));
  for (const int rank : {1, 3})
    CHECK(contains(sentences[static_cast<std::size_t>(rank)], "rank 2 did not come"));
  for (const int rank : {0, 1, 3}) CHECK(culprits[static_cast<std::size_t>(rank)] == 2);
}

TEST_CASE("all missing ranks are named, and who was refused") {
  const int port = free_port();
  std::thread stranger([&] {
    const int s = knock(port);
    say(s, comm::detail::Hello{.size = 5, .rank = 4});
    char answer = 0;
    while (::recv(s, &answer, 1, 0) > 0) continue;
    ::close(s);
  });
  const auto sentences = run(4, port, Seconds(1.5), [](TcpBootstrap&) {}, {1, 2, 3});
  stranger.join();
  CHECK(contains(sentences[0], "ranks 1, 2, 3 did not come within 1.5 s"));
  CHECK(contains(sentences[0], "said that it was rank 4 of 5"));
}

TEST_CASE("a world without rank 0 is given up") {
  std::vector<int> culprits;
  const int port = free_port();
  const auto sentences = run(
      2, port, Seconds(0.3), [](TcpBootstrap&) {}, {0}, "127.0.0.1", &culprits);
  CHECK(contains(sentences[1], "rank 0 could not be reached within 0.3 s"));
  CHECK(contains(sentences[1], concat("127.0.0.1:", port).c_str()));
  CHECK(culprits[1] == 0);
}

TEST_CASE("a host without an address is named") {
  const auto sentences = run(
      2, free_port(), Seconds(0.2), [](TcpBootstrap&) {}, {0}, "no.such.host.invalid");
  CHECK(contains(sentences[1], "no.such.host.invalid"));
}

TEST_CASE("ranks of different worlds do not meet") {
  const int port = free_port();
  std::vector<std::string> first, second;
  std::thread zero([&] { first = run(2, port, Seconds(2), [](TcpBootstrap&) {}, {1}); });
  second = run(3, port, Seconds(5), [](TcpBootstrap&) {}, {0, 2});
  zero.join();
  CHECK(contains(second[1], "has a world of 2 ranks, this rank one of 3"));
  CHECK(contains(first[0], "rank 1 did not come"));
}

TEST_CASE("a rank that is there twice is refused, and the first one goes on") {
  const int port = free_port();
  std::atomic<int> refused = 0, right = 0;
  std::vector<std::thread> threads;
  for (const int rank : {1, 1, 0})  // rank 2 joins once one of the two was refused
    threads.emplace_back([&, rank] {
      try {
        TcpBootstrap world({.rank = rank, .size = 3, .host = "127.0.0.1", .port = port}, Seconds(30));
        right += works(world) ? 1 : 0;
      } catch (const ConfigError& error) {
        refused += contains(error.what(), "already has a rank 1") ? 1 : 0;
      }
    });
  while (refused == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  TcpBootstrap world({.rank = 2, .size = 3, .host = "127.0.0.1", .port = port}, Seconds(30));
  right += works(world) ? 1 : 0;
  for (std::thread& thread : threads) thread.join();
  CHECK(refused == 1);
  CHECK(right == 3);
}

TEST_CASE("a port in use is named") {
  const Listener other;
  const auto sentences = run(2, other.port, Seconds(0.3), [](TcpBootstrap&) {}, {1});
  CHECK(contains(sentences[0], concat("cannot listen at port ", other.port).c_str()));
  CHECK(contains(sentences[0], "MASTER_PORT"));
}

TEST_CASE("an address that a name has twice is listened at once") {
  const int port = free_port();
  comm::detail::Addresses found("127.0.0.1", port, false), again("127.0.0.1", port, false);
  found.first->ai_next = std::exchange(again.first, nullptr);
  std::string reason;
  CHECK(comm::detail::listeners_at(found, port, reason).size() == 1);
  CHECK(reason == "");
}

TEST_CASE("a listener that is not rank 0 is told apart") {
  const Listener other;
  std::thread server([&] {
    comm::detail::ready_for(other.socket, POLLIN, Deadline(Seconds(10)));
    const int s = ::accept(other.socket.get(), nullptr, nullptr);
    say(s, std::array<char, 64>{'H', 'T', 'T', 'P'});
    ::close(s);
  });
  const auto sentences = run(2, other.port, Seconds(5), [](TcpBootstrap&) {}, {0});
  server.join();
  CHECK(contains(sentences[1], "is not convoy's rank 0"));
}

TEST_CASE("a rank that leaves is named on all ranks") {
  std::vector<int> culprits;
  const auto sentences = run(
      4, free_port(), Seconds(10),
      [](TcpBootstrap& world) {
        world.barrier();
        if (world.rank() == 2) return;
        world.barrier();
      },
      {}, "127.0.0.1", &culprits);
  CHECK(contains(sentences[0], "the connection was closed (peer rank 2"));
  CHECK(sentences[2] == "");
  for (const int rank : {0, 1, 3}) CHECK(culprits[static_cast<std::size_t>(rank)] == 2);
}

TEST_CASE("a rank that is late is named on all ranks") {
  std::vector<int> culprits;
  std::atomic<int> over = 0;
  const auto sentences = run(
      3, free_port(), Seconds(0.5),
      [&](TcpBootstrap& world) {
        if (world.rank() == 1) {
          while (over < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
          return;
        }
        try {
          world.barrier();
        } catch (...) {
          ++over;
          throw;
        }
      },
      {}, "127.0.0.1", &culprits);
  CHECK(contains(sentences[0], "it is late (peer rank 1"));
  CHECK(culprits[0] == 1);
  CHECK(culprits[2] == 1);
}

TEST_CASE("ranks that call after rank 0 has given up learn who was late, as does the late one") {
  std::vector<int> culprits;
  std::atomic<bool> over = false;
  run(
      3, free_port(), Seconds(0.5),
      [&](TcpBootstrap& world) {
        std::array<std::byte, 8> mine{};
        std::array<std::byte, 24> all{};
        while (world.rank() != 0 && !over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        try {
          world.all_gather(mine, all);
        } catch (...) {
          over = true;
          throw;
        }
      },
      {}, "127.0.0.1", &culprits);
  CHECK(culprits == std::vector{1, 1, 1});
}

TEST_CASE("a rank that does something else is told so") {
  const auto sentences = run(2, free_port(), Seconds(10), [](TcpBootstrap& world) {
    std::array<std::byte, 8> data{};
    if (world.rank() == 0)
      world.broadcast(data);
    else
      world.barrier();
  });
  CHECK(contains(sentences[1], "the other rank is at a broadcast of the bootstrap, message 0 of 8 bytes"));
}

TEST_CASE("sizes are checked before anything is sent") {
  TcpBootstrap alone({.rank = 0, .size = 1});
  std::vector<std::byte> large(TcpBootstrap::most_bytes + 1), few(3);
  CHECK_THROWS_AS(alone.broadcast(large), ConfigError);
  CHECK_THROWS_AS(alone.all_gather(few, large), ConfigError);
  CHECK_THROWS_AS(TcpBootstrap({.rank = 2, .size = 2}), ConfigError);
  CHECK_THROWS_AS(TcpBootstrap({.rank = 0, .size = 2, .port = 70000}), ConfigError);
}

TEST_CASE("groups of a world gather their own ranks' bytes") {
  std::atomic<int> right = 0;
  const auto sentences = run(5, free_port(), Seconds(30), [&](TcpBootstrap& world) {
    comm::AnyBootstrap all(std::move(world));
    const int me = all.rank();
    comm::AnyBootstrap part = all.group(me % 2 == 0 ? std::vector<int>{4, 0, 2} : std::vector<int>{1, 3});
    const auto mine = static_cast<std::byte>(me);
    std::vector<std::byte> got(static_cast<std::size_t>(part.size()));
    part.all_gather({&mine, 1}, got);
    bool good = me % 2 == 0 ? got == std::vector<std::byte>{std::byte{4}, std::byte{0}, std::byte{2}}
                            : got == std::vector<std::byte>{std::byte{1}, std::byte{3}};
    std::vector<std::byte> data{mine};
    part.broadcast(data);
    good = good && data[0] == static_cast<std::byte>(me % 2 == 0 ? 4 : 1);
    good = good && got[static_cast<std::size_t>(part.rank())] == mine;
    all.broadcast(data);
    std::vector<std::byte> of_part(got.size());
    part.gather({&mine, 1}, of_part);
    good = good && (part.rank() != 0 || of_part == got);
    right += good && data[0] == static_cast<std::byte>(4) ? 1 : 0;
  });
  for (const std::string& sentence : sentences) CHECK(sentence == "");
  CHECK(right == 5);
}

TEST_CASE("a group of all ranks may have an order of its own") {
  std::atomic<int> right = 0;
  const auto sentences = run(3, free_port(), Seconds(30), [&](TcpBootstrap& world) {
    comm::AnyBootstrap all(std::move(world));
    comm::AnyBootstrap turned = all.group({2, 0, 1});
    const auto mine = static_cast<std::byte>(all.rank());
    const std::vector<std::byte> expected{std::byte{2}, std::byte{0}, std::byte{1}};
    std::vector<std::byte> got(3), on_root(3), data{mine};
    turned.all_gather({&mine, 1}, got);
    turned.gather({&mine, 1}, on_root);
    turned.broadcast(data);
    const bool is_root = turned.rank() == 0;
    right += got == expected && data[0] == std::byte{2} && (!is_root || on_root == expected);
  });
  for (const std::string& sentence : sentences) CHECK(sentence == "");
  CHECK(right == 3);
}

TEST_CASE("groups of different sizes sum their own ranks' numbers, in several pieces") {
  std::atomic<int> right = 0;
  const auto sentences = run(4, free_port(), Seconds(5), [&](TcpBootstrap& world) {
    comm::AnyBootstrap all(std::move(world));
    const bool alone = all.rank() == 3;
    comm::AnyBootstrap part = all.group(alone ? std::vector<int>{3} : std::vector<int>{0, 1, 2});
    std::vector<float> values(100'000, static_cast<float>(1 + all.rank()));
    comm::all_reduce_numbers(part, values.data(), static_cast<std::int64_t>(values.size()),
                             comm::reduction<f32>(comm::mean));
    right += values == std::vector<float>(values.size(), alone ? 4.0f : 2.0f) ? 1 : 0;
  });
  for (const std::string& sentence : sentences) CHECK(sentence == "");
  CHECK(right == 4);
}
