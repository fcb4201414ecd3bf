// A rule that decides over the whole gradient (clipping by the global norm and skipping a step) on any Comm,
// and the result that all ranks must end with, bit for bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "comm_step.hpp"
#include <convoy/comm/comm.hpp>
#include <convoy/memory/buffer.hpp>

namespace decide {

inline constexpr double most_norm = 700;
inline constexpr int steps = 4;

// Small integers: every order of summation gives the same sums and squares.
inline float gradient(int rank, std::int64_t i, int step) {
  return static_cast<float>(static_cast<int>((i * 7 + rank * 31 + step * 13) % 61) - 30);
}

[[gnu::noinline]] inline float moved(float parameter, float gradient, float factor) {
  return parameter - factor * gradient;
}

// The decision on a step.
struct Verdict {
  std::set<int> skipped;  // the steps to skip
  int rounds = 1;         // rounds of sums before the decision, in each step
  double squares[1] = {0};
  float factor = 0;
  double before = 0;  // squares of the previous round
  int decided = 0, round = 0;
  std::int64_t arrived = 0, updated = 0;  // elements since the last decision

  bool decides() const { return true; }
  std::span<double> partial() { return squares; }
  convoy::Decision decide() {
    if (updated != 0) throw std::logic_error("a verdict in the middle of the updates");
    if (round > 0 && before != squares[0]) throw std::logic_error("another round saw other sums");
    if (++round < rounds) {
      before = std::exchange(squares[0], 0.0);
      arrived = 0;
      return convoy::Decision::again;
    }
    round = 0;
    const double norm = std::sqrt(squares[0]);
    factor = norm > most_norm ? static_cast<float>(most_norm / norm) : 1.0f;
    squares[0] = 0;
    const bool applied = !skipped.contains(decided++);
    if (!applied) factor = 0;
    return applied ? convoy::Decision::apply : convoy::Decision::skip;
  }
  void add(const float* gradients, std::int64_t count, float scale) {
    if (updated != 0 && updated != arrived) throw std::logic_error("sums arrived between updates");
    if (updated != 0) arrived = updated = 0;
    for (std::int64_t i = 0; i < count; ++i) squares[0] += std::pow(double{scale} * double{gradients[i]}, 2);
    arrived += count;
  }
  void apply(float* parameters, const float* gradients, std::int64_t count, float scale) {
    if (decided == 0) throw std::logic_error("an update without a verdict");
    for (std::int64_t i = 0; factor > 0 && i < count; ++i)
      parameters[i] = moved(parameters[i], scale * gradients[i], factor);
    updated += count;
    if (updated > arrived) throw std::logic_error("updates of what did not arrive");
  }
};

struct OnWorker : Verdict {
  std::span<float> parameters;
  std::span<const float> gradients;
  void arrived(convoy::Range r, float scale) { add(gradients.data() + r.begin, r.size(), scale); }
  void update(convoy::Range r, float scale) {
    apply(parameters.data() + r.begin, gradients.data() + r.begin, r.size(), scale);
  }
};

struct OnServer : Verdict {
  void arrived(const convoy::comm::ServerPart& p) { add(p.gradients, p.range.size(), p.scale); }
  void update(const convoy::comm::ServerPart& p) {
    apply(p.parameters, p.gradients, p.range.size(), p.scale);
  }
};

// The parameters of this rank after all steps; empty on a dedicated server rank.
template <convoy::comm::Comm C>
std::vector<float> train(C& comm, std::int64_t count, const std::set<int>& skipped = {1}, int rounds = 1) {
  convoy::Buffer<float> gradients(static_cast<std::size_t>(count), comm.memory());
  convoy::Buffer<float> parameters(static_cast<std::size_t>(count), comm.memory());
  const auto cuts = oracle::buckets(count);
  comm.open(convoy::comm::Fingerprint().add("model", "none"), {gradients, parameters, cuts});
  for (std::size_t i = 0; comm.rank() == 0 && i < parameters.size(); ++i)
    parameters[i] = static_cast<float>(i % 100);
  OnServer server;
  server.skipped = skipped;
  server.rounds = rounds;
  comm.serve(server);
  if (comm.role() == convoy::comm::Role::server) return {};
  comm.broadcast(std::span<float>(parameters), 0);
  OnWorker worker;
  worker.skipped = skipped;
  worker.rounds = rounds;
  worker.parameters = parameters;
  worker.gradients = gradients;
  for (int step = 0; step < steps; ++step) {
    for (std::size_t b = 0; b < cuts.size(); ++b) {
      for (auto i = cuts[b].begin; i < cuts[b].end; ++i)
        gradients[static_cast<std::size_t>(i)] = gradient(comm.rank(), i, step);
      comm.begin(static_cast<int>(b));
      for (int k = 0; k < 5; ++k) comm.poll();
    }
    comm.finish(worker);
    if (!comm.has_servers() && worker.decided != step + 1) throw std::logic_error("not one verdict a step");
  }
  comm.dismiss();
  return {parameters.begin(), parameters.end()};
}

inline std::vector<float> trained(int workers, std::int64_t count, const std::set<int>& skipped = {1}) {
  std::vector<float> parameters(static_cast<std::size_t>(count)), sum(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
  for (int step = 0; step < steps; ++step) {
    double squares = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      float& s = sum[static_cast<std::size_t>(i)];
      s = 0;
      for (int r = 0; r < workers; ++r) s += gradient(r, i, step);
      squares += double{s} * double{s};
    }
    if (skipped.contains(step)) continue;
    const double norm = std::sqrt(squares);
    const float factor = norm > most_norm ? static_cast<float>(most_norm / norm) : 1.0f;
    for (std::size_t i = 0; i < sum.size(); ++i) parameters[i] = moved(parameters[i], sum[i], factor);
  }
  return parameters;
}

}  // namespace decide
