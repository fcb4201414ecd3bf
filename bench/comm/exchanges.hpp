// Benchmark cases of whole exchanges: one step's gradient buckets of a model through a Comm.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "buckets.hpp"
#include "collectives.hpp"
#include "policies.hpp"
#include "work.hpp"

namespace bench {

/// A model's arenas in the memory of a comm, which has opened them.
struct Arenas {
  Arenas(comm::Any c, const ModelBuckets& model, bool updates)
      : comm(std::move(c)),
        buckets(model.ranges),
        matrices(model.matrices),
        gradients(static_cast<std::size_t>(model.elements()), comm.memory()),
        parameters(updates ? gradients.size() : 0, comm.memory()) {
    comm.open({}, {gradients, parameters, buckets, matrices});
  }
  Arenas(const Arenas&) = delete;
  Arenas& operator=(const Arenas&) = delete;

  void step() {
    for (int b = 0; b < static_cast<int>(buckets.size()); ++b) comm.begin(b);
    comm.finish([](convoy::Range, float) {});
  }
  std::span<const float> bucket(const convoy::Range& range) const {
    return {gradients.data() + range.begin, static_cast<std::size_t>(range.size())};
  }

  comm::Any comm;
  std::vector<convoy::Range> buckets;
  std::vector<comm::Matrix> matrices;
  convoy::Buffer<float> gradients, parameters;
};

/// Values distributed like gradients, for codecs: a few large and many small ones.
inline void scatter(std::span<float> values, int rank) {
  std::uint32_t state = 12345u + static_cast<std::uint32_t>(rank);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    const float uniform = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    value = uniform * uniform * uniform;
  }
}

template <class T>
Work exchange(const Place<T>& place, const Policy& policy, const ModelBuckets& model) {
  auto arenas = std::make_shared<Arenas>(comm_of(policy, place), model, policy.updates);
  const int n = place.size(), rank = place.rank();
  Work work;
  for (const convoy::Range& b : arenas->buckets) work.bytes += b.size() * 4;
  work.bus = bus_of(n, 2);
  work.refill = [=](int) { fill(std::span<float>(arenas->gradients), rank); };
  work.run = [=](int) { arenas->step(); };
  if (policy.exact)
    work.right = [=](int) {
      return std::all_of(arenas->buckets.begin(), arenas->buckets.end(),
                         [&](const convoy::Range& b) { return holds(arenas->bucket(b), sum_over(n)); });
    };
  if (policy.serves) {
    static constexpr auto update = [](const comm::ServerPart&) {};
    arenas->comm.serve(update);
    // A server serves only while it waits inside its own comm.
    work.run = [=](int) {
      arenas->step();
      arenas->comm.barrier();
    };
    work.end = [=] { arenas->comm.dismiss(); };
    work.bound = place.seconds(busiest_served(place.links, place.servers, model.elements(), 4));
    return work;
  }
  if (policy.codec != "none") {
    work.refill = [=](int) { scatter(arenas->gradients, rank); };
    // The traffic of one step gives the size of the encoded gradients.
    const std::int64_t before = arenas->comm.traffic().bytes;
    work.refill(0);
    work.run(0);
    if (place.links.count() == n) work.bound = place.seconds(arenas->comm.traffic().bytes - before);
    return work;
  }
  if constexpr (T::in_place)
    if (combines_in_place<T>(policy)) {
      auto look = std::make_shared<Look<T>>(arenas, place.where, std::span<float>(arenas->gradients));
      work.bare = [=](int) {
        for (const convoy::Range& b : arenas->buckets)
          look->peers.fold(b, comm::reduction<convoy::f32>(comm::sum));
      };
      return work;
    }
  for (const convoy::Range& b : arenas->buckets)
    work.bound += place.seconds(network_bytes(policy.comm, place.links, place.nodes, b.size(), 4));
  return work;
}

template <class T>
void add_exchanges(std::vector<Case>& cases, const Place<T>& place, const ModelBuckets& model) {
  for (const Policy& policy : policies)
    if (has<T>(policy.name))
      cases.push_back({concat("exchange/", policy.name, '/', T::name, '/', model.name),
                       [=, &place] { return exchange(place, policy, model); }});
}

}  // namespace bench
