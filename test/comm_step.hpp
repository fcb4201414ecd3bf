// A few training steps without a model on any Comm, with gradients that every rank knows, and the parameters
// that they must give.
#pragma once

#include <stdexcept>
#include <vector>

#include "comm_oracle.hpp"
#include <convoy/comm/comm.hpp>
#include <convoy/memory/buffer.hpp>

namespace oracle {

// Cuts [0, count) into buckets of uneven sizes, one of them empty.
inline std::vector<convoy::Range> buckets(std::int64_t count) {
  std::vector<convoy::Range> all;
  const std::int64_t cuts[] = {0, count / 9, count / 9, count / 3, count / 2 + 7, count - 1, count};
  for (std::size_t i = 0; i + 1 < std::size(cuts); ++i) all.push_back({cuts[i], cuts[i + 1]});
  return all;
}

// Returns the parameters after `steps` steps of parameters -= gradient sum; checks the order of updates.
template <convoy::comm::Comm C>
std::vector<float> train(C& comm, std::int64_t count, int steps, int polls = 20) {
  convoy::Buffer<float> gradients(static_cast<std::size_t>(count), comm.memory());
  convoy::Buffer<float> parameters(static_cast<std::size_t>(count), comm.memory());
  const auto cuts = buckets(count);
  comm.open(convoy::comm::Fingerprint().add("model", "none"), {gradients, parameters, cuts});
  if (comm.rank() == 0)
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
  comm.broadcast(std::span<float>(parameters), 0);
  for (int step = 0; step < steps; ++step) {
    const auto mine = input<float>(comm.rank(), count, static_cast<std::uint64_t>(step));
    for (std::size_t b = 0; b < cuts.size(); ++b) {
      for (auto i = cuts[b].begin; i < cuts[b].end; ++i)
        gradients[static_cast<std::size_t>(i)] = mine[static_cast<std::size_t>(i)];
      comm.begin(static_cast<int>(b));
      for (int k = 0; k < polls; ++k) comm.poll();
    }
    std::size_t next = 0;
    const std::vector<convoy::Range> mine_to_update = comm.updates(cuts);
    comm.finish([&](convoy::Range range, float scale) {
      if (next >= mine_to_update.size() || !(range == mine_to_update[next]))
        throw std::logic_error("updates out of order");
      ++next;
      for (auto i = range.begin; i < range.end; ++i)
        parameters[static_cast<std::size_t>(i)] -= scale * gradients[static_cast<std::size_t>(i)];
    });
    if (next != mine_to_update.size()) throw std::logic_error("a bucket was not updated");
  }
  return {parameters.begin(), parameters.end()};
}

// Whether an observer of `comm` is told of every bucket of a step once.
template <convoy::comm::Comm C>
bool seen_once_a_step(C& comm, std::int64_t count) {
  using Event = convoy::comm::ExchangeEvent;
  constexpr int steps = 3;
  std::vector<Event> events;
  comm.observe(
      {[](void* to, const Event& e) { static_cast<std::vector<Event>*>(to)->push_back(e); }, &events});
  train(comm, count, steps);
  std::vector<int> seen(buckets(count).size());
  for (const Event& e : events) {
    if (e.end < e.begin) return false;
    ++seen.at(static_cast<std::size_t>(e.bucket));
  }
  return seen == std::vector<int>(seen.size(), steps);
}

// What train must give on a ring of `size` ranks, bit for bit.
inline std::vector<float> trained(int size, std::int64_t count, int steps) {
  std::vector<float> parameters(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
  for (int step = 0; step < steps; ++step) {
    std::vector<std::vector<float>> inputs;
    for (int r = 0; r < size; ++r) inputs.push_back(input<float>(r, count, static_cast<std::uint64_t>(step)));
    for (const convoy::Range& bucket : buckets(count))
      for (int block = 0; block < size; ++block) {
        const auto range = convoy::share(bucket.size(), block, size, 16);
        for (auto e = bucket.begin + range.begin; e < bucket.begin + range.end; ++e) {
          const auto i = static_cast<std::size_t>(e);
          float value = inputs[static_cast<std::size_t>((block + 1) % size)][i];
          for (int k = 2; k <= size; ++k)
            value = inputs[static_cast<std::size_t>((block + k) % size)][i] + value;
          parameters[i] -= value;
        }
      }
  }
  return parameters;
}

}  // namespace oracle
