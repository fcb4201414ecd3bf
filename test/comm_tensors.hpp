// A user's tensors, and ranks as threads that exchange them.
#pragma once

#include <cstddef>
#include <vector>

#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/comm/transport/threads.hpp>
#include <convoy/core/error.hpp>

namespace comm_tensors {

using namespace convoy;
using Ring = comm::Nonblocking<comm::Ring<transport::Threads>>;

inline const comm::Options options{.deadline = Seconds(20), .segment_bytes = 256, .window = 2};

template <class Body>
void on_threads(int ranks, Body&& body) {
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) { body(endpoint); });
}

inline std::vector<comm::NamedSpan> named(std::vector<std::vector<float>>& tensors) {
  std::vector<comm::NamedSpan> all;
  for (std::size_t t = 0; t < tensors.size(); ++t) all.emplace_back(concat("tensor ", t), tensors[t]);
  return all;
}

}  // namespace comm_tensors
