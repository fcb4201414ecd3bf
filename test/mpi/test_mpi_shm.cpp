// RANKS: 2 4
// SANITIZE: address
// Shared memory between processes: messages, Direct, the bits of the other algorithms, memory that peers
// reach and memory that they do not, and the two levels over Shm and Mpi.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../comm_step.hpp"
#include <convoy/comm/policy/halves.hpp>
#include <convoy/comm/policy/hierarchical_mpi.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/tensors/nonblocking.hpp>

using namespace convoy;
using transport::Shm;

namespace {

static_assert(comm::Comm<comm::Hierarchical<comm::Direct<Shm>, comm::Ring<transport::Mpi>>>);

const comm::Options small{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};

// Pieces of shared memory that this process has mapped.
int mapped() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:convoy") != std::string::npos;
  return count;
}

}  // namespace

TEST_CASE("memory of the node is aligned, reachable, and reused") {
  Shm shm(MPI_COMM_WORLD);
  std::pmr::memory_resource* memory = shm.memory();
  for (std::size_t bytes :
       {std::size_t{1}, std::size_t{64}, std::size_t{5000}, std::size_t{1} << 20, std::size_t{3} << 20}) {
    void* at = memory->allocate(bytes, 64);
    CHECK(reinterpret_cast<std::uintptr_t>(at) % 64 == 0);
    CHECK(shm.reaches(at, bytes));
    CHECK_FALSE(shm.reaches(static_cast<std::byte*>(at) + bytes, std::size_t{1} << 30));
    memory->deallocate(at, bytes, 64);
  }
  std::vector<float> mine(1000);
  CHECK_FALSE(shm.reaches(mine.data(), 4000));
  CHECK_THROWS_AS(Buffer<std::byte>(std::size_t{1} << 45, memory), Error);
}

TEST_CASE("exchanges keep no files open") {
  const auto files = [] {
    const std::filesystem::directory_iterator open("/proc/self/fd");
    return std::distance(begin(open), end(open));
  };
  const Shm shm(MPI_COMM_WORLD);
  const auto before = files();
  std::vector<Shm> spaces;
  for (int i = 0; i < 10; ++i) spaces.push_back(shm.isolated());
  CHECK(files() == before);
  comm::Ring<Shm> ring(spaces.back(), small);
  i32 ranks[] = {1};
  ring.all_reduce(std::span<i32>(ranks), comm::sum);
  CHECK(ranks[0] == shm.size());
}

TEST_CASE("exchanges made one after another use the same message space, and none of its old messages") {
  const Shm world(MPI_COMM_WORLD);
  int first = 0;
  for (int round = 0; round < 20; ++round) {
    if (round == 1) first = mapped();
    Shm unheard = world.isolated();
    Shm::Request request;
    const int next = (unheard.rank() + 1) % unheard.size();
    for (int message = 0; message < 3; ++message) REQUIRE(unheard.post(request, next, &round, sizeof round));
    if (round % 2 == 0) unheard = world.isolated();
    comm::Ring<Shm> ring(unheard, small);
    std::vector<i32> values(1000, round);
    ring.all_reduce(std::span<i32>(values), comm::sum);
    CHECK(values == std::vector<i32>(1000, round * ring.size()));
  }
  CHECK(first > 0);
  CHECK(mapped() == first);
}

TEST_CASE("a message space is not reused while a rank still has it") {
  const Shm world(MPI_COMM_WORLD);
  std::optional<Shm> mine = world.isolated();
  const int last = world.size() - 1;
  const i32 sent = 17;
  Shm::Request request;
  if (world.rank() == 0) REQUIRE(mine->post(request, last, &sent, sizeof sent));
  if (world.rank() != last) mine.reset();
  comm::Ring<Shm> ring(world, small);
  i32 value = 1;
  ring.all_reduce(std::span<i32>(&value, 1), comm::sum);
  CHECK(value == world.size());
  if (world.rank() != last) return;
  mine->receive(request, 0, 0, nullptr, 0);
  const transport::Arrival arrival = mine->arrived(request);
  REQUIRE(arrival.data != nullptr);
  CHECK(*static_cast<const i32*>(arrival.data) == sent);
  mine->release(request);
}

TEST_CASE("as much memory can be allocated in the end as there are numbers for at a time, and more") {
  const Shm shm(MPI_COMM_WORLD);
  constexpr std::size_t large = 1 << 17;  // more than is kept for the next allocation
  for (int i = 0; i < 5000; ++i) {
    void* at = shm.memory()->allocate(large, 64);
    if (i % 1000 == 0) CHECK(shm.reaches(at, large));
    shm.memory()->deallocate(at, large, 64);
  }
}

TEST_CASE("memory that its owner has freed does not stay mapped elsewhere") {
  comm::Nonblocking<comm::Ring<Shm>> ring(Shm(MPI_COMM_WORLD), small);
  int first = 0;
  for (int round = 0; round < 10; ++round) {
    Buffer<float> values(1 << 20, ring.memory());
    values[0] = static_cast<float>(round + 1);
    ring.all_reduce(std::span<float>(values), comm::sum);
    CHECK(values[0] == static_cast<float>((round + 1) * ring.size()));
    if (round == 1) first = mapped();
  }
  CHECK(mapped() <= first);
}

TEST_CASE("a peer lives on when this process can open no more files") {
  Shm shm(MPI_COMM_WORLD);
  rlimit most{};
  getrlimit(RLIMIT_NOFILE, &most);
  const rlimit few{64, most.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  std::vector<int> open;
  for (int file = 0; (file = ::open("/dev/null", O_RDONLY)) >= 0;) open.push_back(file);
  std::string gone;
  for (int look = 0; look < 200 && gone.empty(); ++look) gone = shm.departed((shm.rank() + 1) % shm.size());
  for (const int file : open) ::close(file);
  setrlimit(RLIMIT_NOFILE, &most);
  CHECK(gone == "");
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE_TEMPLATE("all algorithms run over shared memory, with values inside and outside it", A,
                   comm::Ring<Shm>, comm::HalvingDoubling<Shm>, comm::Tree<Shm>, comm::Direct<Shm>,
                   comm::AllReduce<comm::Algorithm<comm::AutoSchedule, Shm>>,
                   comm::Sharded<comm::Direct<Shm>>, comm::Reproducible<comm::Ring<Shm>>) {
  const transport::Shm world(MPI_COMM_WORLD);
  A exchange(world, small);
  const int ranks = exchange.size();
  for (std::int64_t count : {0, 1, 17, 1000, 70'001}) {
    std::vector<double> expected(static_cast<std::size_t>(count));
    for (int r = 0; r < ranks; ++r) {
      const auto values = oracle::input<f64>(r, count, 4);
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += values[i];
    }
    const auto values = oracle::input<f64>(exchange.rank(), count, 4);
    const auto check = [&](std::span<double> into) {
      std::copy(values.begin(), values.end(), into.begin());
      exchange.all_reduce(into, comm::sum);
      double worst = 0;
      for (std::size_t i = 0; i < expected.size(); ++i)
        worst = std::max(worst, std::abs(into[i] - expected[i]));
      CHECK(worst < 1e-12);
    };
    std::vector<double> beside(static_cast<std::size_t>(count));
    check(beside);
    Buffer<double> inside(static_cast<std::size_t>(count), exchange.memory());
    check(inside);
  }
  const auto parameters = oracle::train(exchange, 20'003, 4);
  const auto expected = oracle::trained(ranks, 20'003, 4);
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(parameters[i]) - static_cast<double>(expected[i])));
  CHECK(worst < 1e-4);
}

TEST_CASE("a ring over shared memory gives the bits of a ring") {
  comm::Ring<Shm> exchange(Shm(MPI_COMM_WORLD), small);
  CHECK(oracle::same_bits(oracle::train(exchange, 10'000, 3), oracle::trained(exchange.size(), 10'000, 3)));
}

TEST_CASE_TEMPLATE("two levels, shared memory inside pretended nodes and MPI between them", Inside,
                   comm::Direct<Shm>, comm::Tree<Shm>) {
  const transport::Mpi world(MPI_COMM_WORLD);
  const int ranks = world.size();
  std::vector<std::vector<int>> shapes{{}, {}, {}};
  for (int r = 0; r < ranks; ++r) {
    shapes[0].push_back(0);
    shapes[1].push_back(r % 2);
    shapes[2].push_back(r == ranks - 1);
  }
  for (const auto& node_of : shapes) {
    comm::Hierarchical<Inside, comm::Ring<transport::Mpi>> exchange(world, comm::Nodes(node_of), small);
    const auto parameters = oracle::train(exchange, 20'003, 4);
    const auto expected = oracle::trained(ranks, 20'003, 4);
    double worst = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      worst =
          std::max(worst, std::abs(static_cast<double>(parameters[i]) - static_cast<double>(expected[i])));
    CHECK(worst < 1e-4);
    std::vector<float> mine{static_cast<float>(exchange.rank())};
    exchange.all_reduce(std::span<float>(mine), comm::sum);
    CHECK(mine[0] == static_cast<float>(ranks * (ranks - 1) / 2));
  }
  comm::Hierarchical<Inside, comm::Ring<transport::Mpi>> real(world);
  CHECK(real.nodes().count() == 1);
}
