// Benchmark cases of collective operations on one buffer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "peer_buffers.hpp"
#include "policies.hpp"
#include "work.hpp"
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/memory/buffer.hpp>

namespace bench {

// --- buffers

/// What a rank's buffer holds everywhere. Rank 0's value is its own, as a broadcast needs. The values are
/// small, so that the sum over 100 ranks is exact in every type.
inline int value_of(int rank) { return rank == 0 ? 4 : 1 + rank % 3; }
inline int sum_over(int ranks) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += value_of(rank);
  return sum;
}
template <class E>
void fill(std::span<E> values, int rank) {
  std::fill(values.begin(), values.end(), static_cast<E>(static_cast<float>(value_of(rank))));
}
template <class E>
bool holds(std::span<const E> values, int expected) {
  const E value = static_cast<E>(static_cast<float>(expected));
  return std::all_of(values.begin(), values.end(), [&](E v) { return v == value; });
}
template <class E>
std::span<E> part(std::span<E> values, const convoy::Range& range) {
  return values.subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size()));
}

/// A comm and, in its memory, the buffers of one timed batch: several if they are short.
template <class C, class E>
struct Held {
  Held(C c, std::int64_t bytes)
      : comm(std::move(c)),
        count(static_cast<std::size_t>(bytes) / sizeof(E)),
        batch(static_cast<int>(std::clamp<std::int64_t>((256 << 10) / bytes, 1, 64))),
        values(count * static_cast<std::size_t>(batch), comm.memory()) {}
  std::span<E> at(int k) { return {values.data() + static_cast<std::size_t>(k) * count, count}; }

  C comm;
  std::size_t count;
  int batch;
  convoy::Buffer<E> values;
};

/// The peers' views of a buffer, which stays alive until all views are gone.
template <class T>
struct Look {
  template <class E>
  Look(std::shared_ptr<void> owner, const T& where, std::span<E> values)
      : buffer(std::move(owner)), peers(where, values.data(), values.size_bytes()) {}
  std::shared_ptr<void> buffer;
  PeerBuffers<T> peers;
};

/// busbw over algbw, if a buffer passes `passes` times from each of n ranks to all others; 1 for a broadcast,
/// whose buffer passes once from one rank.
inline double bus_of(int n, int passes) { return passes > 0 ? static_cast<double>(passes * (n - 1)) / n : 1; }

/// The work of `run(comm, span)`, whose result `right(span)` checks.
template <class C, class E>
Work collective(std::shared_ptr<Held<C, E>> held, int passes, auto run, auto right) {
  Work work;
  work.bytes = static_cast<std::int64_t>(held->count * sizeof(E));
  work.batch = held->batch;
  work.bus = bus_of(held->comm.size(), passes);
  work.refill = [=](int k) { fill(held->at(k), held->comm.rank()); };
  work.run = [=](int k) { run(held->comm, held->at(k)); };
  work.right = [=](int k) { return right(std::span<const E>(held->at(k))); };
  return work;
}

// --- all-reduce

template <class E, class T>
Work all_reduce(const Place<T>& place, const Policy& policy, std::int64_t bytes) {
  auto held = std::make_shared<Held<comm::Any, E>>(comm_of(policy, place), bytes);
  const auto count = static_cast<std::int64_t>(held->count);
  Work work = collective(
      held, 2, [](comm::Any& comm, std::span<E> values) { comm.all_reduce(values, comm::sum); },
      [n = place.size()](std::span<const E> values) { return holds(values, sum_over(n)); });
  if constexpr (T::in_place)
    if (combines_in_place<T>(policy)) {
      auto look = std::make_shared<Look<T>>(held, place.where, std::span<E>(held->values));
      work.bare = [=](int k) {
        look->peers.fold({k * count, (k + 1) * count}, comm::reduction<E>(comm::sum));
      };
      return work;
    }
  work.bound = place.seconds(network_bytes(policy.name, place.links, place.nodes, count, sizeof(E)));
  return work;
}

/// The loads and stores of `direct`, without synchronization.
template <class E, class T>
Work bare(const Place<T>& place, std::int64_t bytes) {
  Work work = all_reduce<E>(place, all_reducing("direct"), bytes);
  work.run = std::exchange(work.bare, nullptr);
  work.right = nullptr;
  work.loose = true;
  return work;
}

// --- reduce-scatter, all-gather and broadcast, of a C that offers them on spans of the user

template <class C, class E, class T>
void add_operation(std::vector<Case>& cases, const Place<T>& place, std::string name, std::int64_t bytes,
                   int passes, double bound, auto run, auto right) {
  cases.push_back({std::move(name), [=, &place] {
                     auto held = std::make_shared<Held<C, E>>(C(place.where, place.options), bytes);
                     Work work = collective(std::move(held), passes, run, right);
                     work.bound = bound;
                     return work;
                   }});
}

/// Seconds of the busiest link; 0 if ranks share memory.
template <class E, class T>
double bound_of(const Place<T>& place, const auto& schedule, std::int64_t bytes) {
  constexpr std::int64_t size = sizeof(E);
  return T::in_place ? 0 : place.seconds(busiest(schedule, place.links, bytes / size, size));
}

/// `sums`: the elements whose sums a reduce-scatter leaves on this rank. `block(r)`: what an all-gather has
/// from rank r.
template <class C, class E, class T>
void add_halves(std::vector<Case>& cases, const Place<T>& place, const std::string& tail, std::int64_t bytes,
                convoy::Range sums, auto block) {
  const int n = place.size();
  add_operation<C, E>(
      cases, place, "reduce_scatter/" + tail, bytes, 1,
      bound_of<E>(place, convoy::schedule::RingReduceScatter{1}, bytes),
      [](C& comm, std::span<E> v) { comm.reduce_scatter(v, comm::sum); },
      [=](std::span<const E> v) { return holds(part(v, sums), sum_over(n)); });
  add_operation<C, E>(
      cases, place, "all_gather/" + tail, bytes, 1,
      bound_of<E>(place, convoy::schedule::RingAllGather{1}, bytes),
      [](C& comm, std::span<E> v) { comm.all_gather(v); },
      [=](std::span<const E> v) {
        bool right = true;
        for (int r = 0; r < n; ++r) right = right && holds(part(v, block(r)), value_of(r));
        return right;
      });
}

template <class C, class E, class T>
void add_broadcast(std::vector<Case>& cases, const Place<T>& place, const std::string& tail,
                   std::int64_t bytes) {
  add_operation<C, E>(
      cases, place, "broadcast/" + tail, bytes, 0,
      bound_of<E>(place, convoy::schedule::Broadcast{1, 0}, bytes),
      [](C& comm, std::span<E> v) { comm.broadcast(v, 0); },
      [](std::span<const E> v) { return holds(v, value_of(0)); });
}

// --- all cases of one size

template <class E, class T>
void add_collectives(std::vector<Case>& cases, const Place<T>& place, const std::string& type,
                     std::int64_t bytes) {
  const std::string tail = concat('/', T::name, '/', type, '/', bytes);
  constexpr bool mpi_has = !std::is_same_v<E, convoy::bf16> && !std::is_same_v<E, convoy::f16>;
  for (const Policy& policy : policies)
    if (policy.all_reduces && has<T>(policy.name) && (mpi_has || policy.name != "native"))
      cases.push_back({concat("all_reduce/", policy.name, tail),
                       [=, &place] { return all_reduce<E>(place, policy, bytes); }});
  constexpr std::int64_t size = sizeof(E);
  const auto block = [count = bytes / size, n = place.size()](int rank) {
    return convoy::share(count, rank, n, convoy::schedule::grain_of(size));
  };
  const convoy::Range sums = block(place.rank());
  add_halves<comm::Ring<T>, E>(cases, place, "ring" + tail, bytes, sums, block);
  if constexpr (T::in_place) {
    add_halves<comm::Direct<T>, E>(cases, place, "direct" + tail, bytes, sums, block);
    cases.push_back({"bound/direct" + tail, [=, &place] { return bare<E>(place, bytes); }});
  }
  add_broadcast<comm::Ring<T>, E>(cases, place, "ring" + tail, bytes);
}

}  // namespace bench
