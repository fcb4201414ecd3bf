// RANKS: 2 3
// A user's own tensors, handles and groups between processes: over Mpi, and over Shm inside and outside its
// memory.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "../allocations.hpp"
#include "../comm_oracle.hpp"
#include <convoy/comm/policy/hierarchical_mpi.hpp>
#include <convoy/comm/policy/native.hpp>
#include <convoy/comm/tensors/broadcast.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/comm/tensors/groups.hpp>
#include <convoy/comm/transport/mpi.hpp>
#include <convoy/comm/transport/shm.hpp>

using namespace convoy;
using comm::GradientBuckets;
using comm::Handle;
using comm::NamedSpan;
using transport::Group;
using transport::Mpi;
using transport::Shm;

namespace {

const comm::Options options{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};

template <class T>
T world() {
  if constexpr (std::is_same_v<T, Shm>)
    return Shm(MPI_COMM_WORLD, Seconds(20));
  else
    return Mpi(MPI_COMM_WORLD, Seconds(20));
}

template <class A>
struct TransportOf;
template <class S, class T>
struct TransportOf<comm::AllReduce<comm::Algorithm<S, T>, true>> {
  using type = T;
};

// Small whole numbers, whose sums are exact.
float value(int rank, int step, std::size_t tensor, std::size_t i) {
  return static_cast<float>(
      (static_cast<std::size_t>(rank + 1) * (tensor + 3) + static_cast<std::size_t>(step) + i) % 12);
}
float sum_of(int ranks, int step, std::size_t tensor, std::size_t i) {
  float sum = 0;
  for (int r = 0; r < ranks; ++r) sum += value(r, step, tensor, i);
  return sum;
}

}  // namespace

TEST_CASE_TEMPLATE("tensors are exchanged inside the exchange's memory, outside it, and scattered", A,
                   comm::Ring<Mpi>, comm::Direct<Shm>) {
  comm::Nonblocking<A> exchange(world<typename TransportOf<A>::type>(), options);
  const int rank = exchange.rank(), ranks = exchange.size();
  Buffer<float> inside(900, exchange.memory());
  std::vector<float> beside(900), scattered[3];
  for (auto& s : scattered) s.resize(300);
  // A bucket of three adjacent tensors inside, one of three adjacent ones outside, one of three scattered
  // ones, and one of the rest.
  std::vector<std::span<float>> spans;
  for (std::size_t k = 0; k < 3; ++k) spans.push_back(std::span<float>(inside).subspan(300 * k, 300));
  for (std::size_t k = 0; k < 3; ++k) spans.push_back(std::span<float>(beside).subspan(300 * k, 300));
  for (auto& s : scattered) spans.push_back(s);
  std::vector<float> tiny(1), none;
  spans.push_back(tiny);
  spans.push_back(none);
  std::vector<NamedSpan> named;
  for (std::size_t t = 0; t < spans.size(); ++t)
    named.emplace_back(concat("tensor ", t), std::span<float>(spans[t]));
  GradientBuckets gradients(exchange, named,
                            {.op = comm::Op::sum, .first_bytes = 3600, .bucket_bytes = 3600});
  REQUIRE(gradients.buckets().size() == 4);
  CHECK_FALSE(gradients.packed(0));
  CHECK_FALSE(gradients.packed(1));
  CHECK(gradients.packed(2));

  bool right = true;
  long warm = 0;
  for (int step = 0; step < 30; ++step) {
    if (step == 10) warm = allocations.load();
    for (std::size_t k = 0; k < spans.size(); ++k) {
      // Ranks are ready in different orders.
      const std::size_t t = (k + static_cast<std::size_t>(rank * 3 + step)) % spans.size();
      for (std::size_t i = 0; i < spans[t].size(); ++i) spans[t][i] = value(rank, step, t, i);
      gradients.ready(static_cast<int>(t));
    }
    gradients.wait();
    for (std::size_t t = 0; t < spans.size(); ++t)
      for (std::size_t i = 0; i < spans[t].size(); ++i)
        right = right && spans[t][i] == sum_of(ranks, step, t, i);
  }
  CHECK(right);
  // Over Shm a rank that waits long opens a file now and then, to see whether its peer's process is alive.
  if (std::is_same_v<A, comm::Ring<Mpi>>) CHECK(allocations.load() - warm == 0);
}

TEST_CASE("handles over mpi give the ring's bits, and the other collectives theirs") {
  comm::Nonblocking<comm::Ring<Mpi>> exchange(world<Mpi>(), options);
  const int rank = exchange.rank(), ranks = exchange.size();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<bf16>> spans;
    std::vector<Handle> handles;
    for (int k = 0; k < 10; ++k)
      spans.push_back(oracle::input<bf16>(rank, 500 * k + 1, static_cast<std::uint64_t>(k)));
    for (int k = 0; k < 10; ++k)
      handles.push_back(
          exchange.all_reduce_async(std::span<bf16>(spans[static_cast<std::size_t>(k)]), comm::mean, k));
    std::vector<i32> numbers(50, rank);
    Handle sent = exchange.broadcast_async(std::span<i32>(numbers), 1);
    std::vector<float> blocks(1000, -1.0f);
    const Range own = exchange.own(1000, DType::f32);
    for (auto i = own.begin; i < own.end; ++i) blocks[static_cast<std::size_t>(i)] = static_cast<float>(rank);
    exchange.all_gather_async(std::span<float>(blocks)).wait();
    bool right = true;
    for (int r = 0; r < ranks; ++r) {
      const Range its = share(1000, r, ranks, schedule::grain_of(4));
      for (auto i = its.begin; i < its.end; ++i)
        right = right && blocks[static_cast<std::size_t>(i)] == static_cast<float>(r);
    }
    Handle scattered = exchange.reduce_scatter_async(std::span<float>(blocks), comm::sum);
    scattered.wait();
    for (auto i = own.begin; i < own.end; ++i)
      right = right && blocks[static_cast<std::size_t>(i)] == static_cast<float>(rank * ranks);
    sent.wait();
    right = right && numbers == std::vector<i32>(50, 1);
    for (int k = 9; k >= 0; --k) {
      handles[static_cast<std::size_t>(k)].wait();
      right = right && oracle::same_bits(spans[static_cast<std::size_t>(k)],
                                         oracle::ring<bf16>(ranks, 500 * k + 1, static_cast<std::uint64_t>(k),
                                                            comm::Op::mean));
    }
    CHECK(right);
  }
  CHECK(comm::all_gather(exchange, 10 + rank).back() == 9 + ranks);
}

TEST_CASE_TEMPLATE("groups of processes sum at the same time as the world", T, Mpi, Shm) {
  const T all = world<T>();
  const int rank = all.rank(), ranks = all.size();
  comm::Nonblocking<comm::Ring<T>> whole(all, options);
  // The last rank alone, the others in reverse.
  const auto part = comm::split(all, rank == ranks - 1, -rank, options);
  comm::Nonblocking<comm::Ring<Group<T>>> group(part, options);
  CHECK(group.size() == (rank == ranks - 1 ? 1 : ranks - 1));
  CHECK(group.rank() == (rank == ranks - 1 ? 0 : ranks - 2 - rank));
  std::vector<int> listed;
  for (int r = 0; r < ranks - 1; ++r) listed.push_back(r);
  const auto by_list = comm::group(all, rank == ranks - 1 ? std::vector<int>{rank} : listed, options);
  comm::Nonblocking<comm::Tree<Group<T>>> same(by_list, options);
  bool right = true;
  for (int round = 0; round < 20; ++round) {
    Buffer<float> a(3000, group.memory()), c(3000, same.memory());
    std::vector<float> b(3000, 1.0f);
    std::fill(a.begin(), a.end(), static_cast<float>(rank));
    std::fill(c.begin(), c.end(), 1.0f);
    Handle one = group.all_reduce_async(std::span<float>(a), comm::sum);
    Handle two = whole.all_reduce_async(std::span<float>(b), comm::sum);
    Handle three = same.all_reduce_async(std::span<float>(c), comm::sum);
    three.wait();
    two.wait();
    one.wait();
    const int others = (ranks - 1) * (ranks - 2) / 2;
    right = right && a[2999] == static_cast<float>(rank == ranks - 1 ? rank : others) &&
            b[0] == static_cast<float>(ranks) && c[0] == static_cast<float>(group.size());
  }
  CHECK(right);

  std::string said;
  try {
    comm::group(all, std::vector<int>{0}, options);
  } catch (const ConfigError& e) {
    said = e.what();
  }
  CHECK(said == "rank 1 is not in the group that it lists: 0");
}

TEST_CASE_TEMPLATE("two levels and MPI_Allreduce carry tensors, too", C,
                   comm::Hierarchical<comm::Direct<Shm>, comm::Ring<Mpi>>, comm::Native) {
  C exchange(world<Mpi>());
  const int rank = exchange.rank(), ranks = exchange.size();
  std::vector<std::vector<float>> tensors(5, std::vector<float>(1000));
  std::vector<NamedSpan> named;
  for (std::size_t t = 0; t < tensors.size(); ++t) named.emplace_back(concat("tensor ", t), tensors[t]);
  GradientBuckets gradients(exchange, named,
                            {.first_bytes = 4000, .bucket_bytes = 8000, .find_unused = true});
  bool right = true;
  for (int step = 0; step < 5; ++step) {
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      const std::size_t t = (k + static_cast<std::size_t>(rank)) % tensors.size();
      for (std::size_t i = 0; i < tensors[t].size(); ++i) tensors[t][i] = value(rank, step, t, i);
      if (t != 4 || rank == 0) gradients.ready(static_cast<int>(t));
    }
    gradients.wait();
    for (std::size_t t = 0; t < tensors.size(); ++t)
      for (std::size_t i = 0; i < tensors[t].size(); ++i) {
        const float sum = t == 4 ? value(0, step, t, i) : sum_of(ranks, step, t, i);
        right = right && std::abs(tensors[t][i] - sum / static_cast<float>(ranks)) < 1e-5f;
      }
  }
  CHECK(right);
}

TEST_CASE("processes that register different tensors are told the difference") {
  comm::Nonblocking<comm::Ring<Mpi>> exchange(world<Mpi>(), options);
  std::vector<float> a(784), b(10);
  std::vector<NamedSpan> named{{"fc1.weight", a}, {"fc1.bias", b}};
  if (exchange.rank() == 1) named[1].count = 9;
  std::string said;
  try {
    GradientBuckets gradients(exchange, named);
  } catch (const ConfigError& e) {
    said = e.what();
  }
  CHECK(said == "rank 1 differs from rank 0 in gradient 1: 9 f32 of fc1.bias instead of 10 f32 of fc1.bias");
  // The exchange can still be used.
  named[1].count = 10;
  GradientBuckets gradients(exchange, named);
  for (float& v : b) v = static_cast<float>(exchange.rank());
  gradients.ready(1);
  gradients.ready(0);
  gradients.wait();
  CHECK(b[9] == static_cast<float>(exchange.size() - 1) / 2);
}

TEST_CASE("rank 0's parameters go to all processes") {
  comm::Nonblocking<comm::Ring<Mpi>> exchange(world<Mpi>(), options);
  std::vector<std::vector<float>> tensors(30, std::vector<float>(100, static_cast<float>(exchange.rank())));
  std::vector<NamedSpan> named;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (exchange.rank() == 0) tensors[t][7] = static_cast<float>(t);
    named.emplace_back(concat("tensor ", t), tensors[t]);
  }
  comm::broadcast(exchange, named);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    CHECK(tensors[t][7] == static_cast<float>(t));
    CHECK(tensors[t][99] == 0);
  }
}
