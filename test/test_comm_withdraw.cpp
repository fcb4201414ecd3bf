// SANITIZE: address thread
// How a rank takes its memory back while others may be reading it: the protocol of transport/channels.hpp, on
// threads. (test_comm_faults.cpp tests it between processes, one of them stopped.)
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "temporary_folder.hpp"
#include <convoy/comm/transport/threads.hpp>
#if defined(__linux__)
#include <convoy/comm/transport/segments.hpp>
#endif

using namespace convoy;
using transport::Arrival;
using transport::Threads;

namespace {

constexpr int lane = 1;
constexpr std::size_t length = 1 << 16;

template <class Condition>
void wait_for(Condition met) {
  while (!met()) std::this_thread::yield();
}

template <class Endpoint>
Arrival wait_for_message(Endpoint& endpoint, typename Endpoint::Request& request, int peer) {
  endpoint.receive(request, peer, lane, nullptr, 0);
  Arrival arrival;
  wait_for([&] { return (arrival = endpoint.arrived(request)).data != nullptr; });
  return arrival;
}

// Threads whose memory can be closed.
struct Closable : transport::detail::ThreadWorld {
  using ThreadWorld::ThreadWorld;
  bool close_off() {
    closed = true;
    return true;
  }
  std::atomic<bool> closed{false};
};
struct Handle : transport::detail::Endpoint<Closable> {
  Handle(const std::shared_ptr<Closable>& world, int rank) : Endpoint(world, rank, world->open(rank)) {}
};

}  // namespace

TEST_CASE("memory is taken back when its reader is done with it, and nothing is read any more") {
  for (int round = 0; round < 50; ++round) {
    std::vector<int> memory(length, 1);
    std::atomic<bool> reading{false}, withdrawn{false};
    long total = 0;
    Arrival late{&late, 1};
    Threads::World(2).run([&](Threads endpoint) {
      Threads::Request first, second;
      if (endpoint.rank() == 0) {
        endpoint.send(first, 1, lane, memory.data(), memory.size() * sizeof(int));
        endpoint.send(second, 1, lane, memory.data(), 4);
        wait_for([&] { return reading.load(); });
        endpoint.withdraw("the test says so");
        memory.assign(length, 2);
        withdrawn = true;
      } else {
        const Arrival arrival = wait_for_message(endpoint, first, 0);
        reading = true;
        const auto* values = static_cast<const int*>(arrival.data);
        total = std::accumulate(values, values + length, 0L);
        endpoint.release(first);
        wait_for([&] { return withdrawn.load(); });
        endpoint.receive(second, 0, lane, nullptr, 0);
        late = endpoint.arrived(second);
        CHECK(std::string(endpoint.departed(0)) == "that rank has given up: the test says so");
      }
    });
    CHECK(total == length);
    CHECK(late.data == nullptr);
  }
}

TEST_CASE("two that read each other's memory and give up do not wait for each other") {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> both{0};
    Threads::World(2).run([&](Threads endpoint) {
      int value = endpoint.rank();
      Threads::Request request, receive;
      endpoint.send(request, 1 - value, lane, &value, sizeof value);
      wait_for_message(endpoint, receive, 1 - value);
      ++both;
      wait_for([&] { return both == 2; });
      endpoint.withdraw("the test says so");  // if this hangs, the watchdog ends the process
      ++both;
    });
    CHECK(both == 4);
  }
}

TEST_CASE(
    "two that read each other's memory in one exchange and give up another do not wait for each other") {
  std::atomic<int> both{0};
  Threads::World(2).run([&](Threads endpoint) {
    Threads other = endpoint.isolated();
    int value = endpoint.rank();
    Threads::Request first, second, receive, late;
    endpoint.send(first, 1 - value, lane, &value, sizeof value);
    endpoint.send(second, 1 - value, lane, &value, sizeof value);
    wait_for_message(endpoint, receive, 1 - value);
    ++both;
    wait_for([&] { return both == 2; });
    other.withdraw("the test says so");  // if this hangs, the watchdog ends the process
    endpoint.receive(late, 1 - value, lane, nullptr, 0);
    CHECK(endpoint.arrived(late).data == nullptr);
    ++both;
  });
  CHECK(both == 4);
}

TEST_CASE("nobody waits for a reader that has ended with a message in its hands") {
  std::atomic<int> ended{0};
  Threads::World(2).run([&](Threads endpoint) {
    int value = 0;
    Threads::Request request;
    if (endpoint.rank() == 0) {
      endpoint.send(request, 1, lane, &value, sizeof value);
      wait_for([&] { return !endpoint.departed(1).empty(); });
      endpoint.withdraw("the test says so");
    } else {
      wait_for_message(endpoint, request, 0);
    }
    ++ended;
  });
  CHECK(ended == 2);
}

TEST_CASE("where memory can be closed off, that is done with a reader who does not come to an end") {
  const auto world = std::make_shared<Closable>(2);
  std::atomic<bool> reading{false}, over{false};
  std::thread reader([&] {
    Handle endpoint(world, 1);
    Handle::Request request;
    wait_for_message(endpoint, request, 0);
    reading = true;
    wait_for([&] { return over.load(); });
    endpoint.release(request);
  });
  Handle endpoint(world, 0);
  Handle::Request request;
  int value = 0;
  endpoint.send(request, 1, lane, &value, sizeof value);
  wait_for([&] { return reading.load(); });
  CHECK_FALSE(world->closed);
  endpoint.withdraw("the test says so");
  CHECK(world->closed);
  over = true;
  reader.join();
}

#if defined(__linux__)
TEST_CASE("memory that holds files can be had, the system's and a control group's") {
  namespace fs = std::filesystem;
  const TemporaryFolder folder;
  const fs::path& root = folder.path;
  fs::create_directories(root / "proc");
  fs::create_directories(root / "sys/fs/cgroup");
  const auto write = [&](const char* file, const char* text) { std::ofstream(root / file) << text; };
  const auto available = [&] { return transport::detail::available_memory(root.string()); };
  CHECK(available() == ~std::uint64_t{0});
  write("proc/meminfo", "MemTotal: 8000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\n");
  CHECK(available() == 4000 * 1024);
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "1000000\n");
  CHECK(available() == 4000 * 1024);
  write("sys/fs/cgroup/memory.max", "1500000\n");
  CHECK(available() == 500'000);
  write("sys/fs/cgroup/memory.stat", "anon 70000\nfile 900000\ninactive_file 600000\nactive_file 200000\n");
  CHECK(available() == 1'300'000);
  write("sys/fs/cgroup/memory.current", "1600000\n");
  CHECK(available() == 700'000);
}
#endif
