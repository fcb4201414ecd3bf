// SANITIZE: address thread
// Checked and Faulty: checksums against published ones, exchanges that are right or report what is wrong, and
// seeded faults that cause neither a hang nor an unreported wrong result.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include <convoy/comm/engine/link.hpp>
#include <convoy/comm/parameter_server/parameter_server.hpp>
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/comm/transport/checked.hpp>
#include <convoy/comm/transport/faulty.hpp>
#include <convoy/memory/pages.hpp>

using namespace convoy;
using transport::Checked;
using transport::Faults;
using transport::Faulty;
using transport::Threads;

namespace {

using Bad = Faulty<Threads, 7>;
using Guarded = Checked<Bad>;

/// Ranks reach only memory of this transport.
class Near : public Threads {
 public:
  struct Memory : std::pmr::memory_resource {
    std::vector<std::pair<std::uintptr_t, std::size_t>> blocks;
    std::size_t longest_elsewhere = 0;  // of the buffers that did not lie in this memory

    bool has(const void* data, std::size_t bytes) {
      const auto at = reinterpret_cast<std::uintptr_t>(data);
      for (const auto& [begin, size] : blocks)
        if (begin <= at && at + bytes <= begin + size) return true;
      longest_elsewhere = std::max(longest_elsewhere, bytes);
      return false;
    }

   private:
    void* do_allocate(std::size_t bytes, std::size_t align) override {
      void* data = memory::pages()->allocate(bytes, align);
      blocks.emplace_back(reinterpret_cast<std::uintptr_t>(data), bytes);
      return data;
    }
    void do_deallocate(void* data, std::size_t bytes, std::size_t align) override {
      std::erase(blocks, std::pair(reinterpret_cast<std::uintptr_t>(data), bytes));
      memory::pages()->deallocate(data, bytes, align);
    }
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  };

  Near(const Threads& endpoint, Memory& memory) : Threads(endpoint), memory_(&memory) {}
  Near isolated() const { return {Threads::isolated(), *memory_}; }
  std::pmr::memory_resource* memory() const { return memory_; }
  bool reaches(const void* data, std::size_t bytes) const { return memory_->has(data, bytes); }

 private:
  Memory* memory_;
};

struct Count {
  std::atomic<int> right{0}, named{0}, wrong{0}, silent{0};
};

/// One run: every rank ends with the right bits or with an error that names a rank.
template <class C, class Make>
void run(std::uint64_t number, const Faults& faults, Make make, Count& count) {
  const int ranks = 2 + static_cast<int>(number % 4);
  const std::int64_t size = 500 + static_cast<std::int64_t>(number * 37 % 2000);
  std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
  std::atomic<int> errors{0}, named{0};
  bool threw = false;
  try {
    Threads::World(ranks).run([&](Threads endpoint) {
      try {
        C exchange(make(Bad(endpoint, faults, true)),
                   {.deadline = Seconds(0.4), .segment_bytes = 256, .window = 2});
        results[static_cast<std::size_t>(endpoint.rank())] = oracle::train(exchange, size, 2, 3);
      } catch (const Error& error) {
        ++errors;
        named += oracle::names_culprit(error, ranks);
        throw;
      }
    });
  } catch (const Error&) {
    threw = true;
  }
  if (errors == 0) {
    bool same = !threw;
    const auto expected = oracle::trained(ranks, size, 2);
    for (const auto& result : results) {
      same = same && oracle::same_bits(result, results[0]) && result.size() == expected.size();
      for (std::size_t i = 0; same && i < result.size(); ++i)
        same = std::abs(result[i] - expected[i]) < 1e-3f;
    }
    ++(same ? count.right : count.wrong);
  } else {
    // A rank that is done may leave before it can learn of a late fault; every rank that fails names a rank.
    ++(named == errors && threw ? count.named : count.silent);
  }
}

}  // namespace

TEST_CASE("check values are those of CRC-32C") {
  CHECK(transport::crc32c("123456789", 9) == 0xe3069283u);
  CHECK(transport::crc32c("", 0) == 0);
  const std::vector<unsigned char> zeros(32, 0), ones(32, 0xff);
  CHECK(transport::crc32c(zeros.data(), 32) == 0x8a9136aau);
  CHECK(transport::crc32c(ones.data(), 32) == 0x62a8ab43u);
  std::vector<unsigned char> text(1000);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<unsigned char>(i * 31);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{7}, std::size_t{8}, std::size_t{9}, std::size_t{1000}})
    CHECK(transport::crc32c(text.data(), bytes) == ~transport::detail::crc_by_table(~0u, text.data(), bytes));
}

TEST_CASE("a checked exchange gives the bits of an unchecked one") {
  for (const int ranks : {1, 2, 3, 5})
    Threads::World(ranks).run([&](Threads endpoint) {
      comm::Ring<Checked<Threads>> ring(Checked<Threads>(endpoint),
                                        {.deadline = Seconds(20), .segment_bytes = 256, .window = 2});
      if (!oracle::same_bits(oracle::train(ring, 5'000, 3), oracle::trained(ranks, 5'000, 3)))
        throw std::logic_error("other bits");
      comm::AnyParameterServer served(Checked<Threads>(endpoint), {}, {.deadline = Seconds(20)});
      std::vector<float> values(100, 1.0f);
      served.all_reduce(std::span<float>(values), comm::sum);
      if (values[99] != static_cast<float>(ranks)) throw std::logic_error("another sum");
    });
}

TEST_CASE("a turned bit is found and its sender named; without a check it is refused") {
  CHECK_THROWS_AS(Bad(Threads{}, {.corrupt = 0.1}), ConfigError);
  std::string said;
  try {
    Threads::World(2).run([&](Threads endpoint) {
      Guarded checked(Bad(endpoint, {.corrupt = endpoint.rank() == 1 ? 1.0 : 0.0}, true));
      comm::Ring<Guarded> ring(checked, {.deadline = Seconds(20)});
      std::vector<float> values(100, 1.0f);
      ring.all_reduce(std::span<float>(values), comm::sum);
    });
  } catch (const CommError& error) {
    said = error.what();
  }
  CAPTURE(said);
  CHECK(said.find("from rank 0") != std::string::npos);
}

TEST_CASE("some of the ranks are a world of their own, over a transport of any type") {
  std::atomic<int> right{0};
  Threads::World(4).run([&](Threads endpoint) {
    const transport::Any world{Checked<Threads>(endpoint)};
    // Out of order, so that a rank's number in its group differs from its other numbers.
    const bool even = endpoint.rank() % 2 == 0;
    const transport::Any group = world.group(even ? std::vector<int>{2, 0} : std::vector<int>{3, 1});
    right += group.size() == 2 && group.rank() == (endpoint.rank() < 2 ? 1 : 0);
    comm::AnyAllReduce exchange(group, comm::Schedules::of<schedule::Ring>(), {.deadline = Seconds(20)});
    std::vector<float> values(1000, static_cast<float>(endpoint.rank()));
    exchange.all_reduce(std::span<float>(values), comm::sum);
    right += values == std::vector<float>(1000, even ? 2.0f : 4.0f);
    // A handle returns the transport that it was made from, and no other type.
    right += world.get<Checked<Threads>>() != nullptr && world.get<Threads>() == nullptr;
  });
  CHECK(right == 12);
  const transport::Any alone{Threads{}};
  CHECK_THROWS_WITH_AS(alone.group({0, 7}), "a group names rank 7 in a world of 1", ConfigError);
  CHECK_THROWS_WITH_AS(alone.group({}), "rank 0 is not in its own group", ConfigError);
}

TEST_CASE("a link is measured with messages that peers read in place") {
  std::size_t longest[2] = {};
  Threads::World(2).run([&](const Threads& endpoint) {
    Near::Memory memory;
    comm::measure_link(Near(endpoint, memory), 0, 1, {.deadline = Seconds(20)});
    longest[endpoint.rank()] = memory.longest_elsewhere;
  });
  // All but the figures themselves, which are broadcast.
  CHECK(longest[0] <= sizeof(schedule::CostModel));
  CHECK(longest[1] <= sizeof(schedule::CostModel));
}

TEST_CASE("what goes wrong on a link that is measured is told with the ranks of its world") {
  std::string said[2];
  CHECK_THROWS_AS(Threads::World(4).run([&](Threads endpoint) {
    const Bad bad(endpoint, {.truncate = endpoint.rank() == 3 ? 1.0 : 0.0});
    try {
      comm::measure_link(bad, 2, 3, {.deadline = Seconds(5)});
    } catch (const CommError& error) {
      if (endpoint.rank() > 1) said[endpoint.rank() - 2] = error.what();
      throw;
    }
  }),
                  CommError);
  CHECK(said[0].find("rank 2: echo: that rank has ") == 0);
  CHECK(said[0].find("(peer rank 3,") != std::string::npos);
  CHECK(said[1].find("rank 3: echo: rank 2 sent 63 bytes where rank 3 expects 64 (peer rank 2,") == 0);
}

TEST_CASE("200 seeded runs end right or with an error that names a rank, and none hangs") {
  Count count;
  std::atomic<std::uint64_t> next{0};
  const auto worker = [&] {
    for (;;) {
      const std::uint64_t n = next++;
      if (n >= 200) return;
      Faults faults{.delay = 0.05, .run = static_cast<std::uint32_t>(n)};
      const double rate = n % 8 == 0 ? 0 : 0.002 * static_cast<double>(1 + n % 5);
      (n % 4 == 0   ? faults.drop
       : n % 4 == 1 ? faults.truncate
       : n % 4 == 2 ? faults.corrupt
                    : faults.fail) = rate;
      const auto guard = [](const Bad& bad) { return Guarded(bad); };
      switch (n % 5) {
        case 0:
          run<comm::Ring<Guarded>>(n, faults, guard, count);
          break;
        case 1:
          run<comm::HalvingDoubling<Guarded>>(n, faults, guard, count);
          break;
        case 2:
          run<comm::Tree<Guarded>>(n, faults, guard, count);
          break;
        case 3:
          run<comm::Sharded<comm::Ring<Guarded>>>(n, faults, guard, count);
          break;
        default:
          run<comm::Reproducible<comm::Ring<Guarded>>>(n, faults, guard, count);
          break;
      }
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back(worker);
  for (std::thread& thread : threads) thread.join();
  MESSAGE(count.right.load() << " right, " << count.named.load() << " reported");
  CHECK(count.wrong == 0);
  CHECK(count.silent == 0);
  CHECK(count.right > 10);
  CHECK(count.named > 10);
  CHECK(count.right + count.named == 200);
}
