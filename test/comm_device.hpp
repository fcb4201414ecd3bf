// Exchanges of arenas in a stream-ordered space: ranks are threads, which compute gradients in the stream and
// check the final parameters. Including sources define the space (device_test::TestSpace).
#pragma once

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "comm_decide.hpp"
#include "rank_table.hpp"
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/space.hpp>

namespace device_test {

using namespace convoy;
using rank_table::AtTable, rank_table::Table;

// Each rank constructs a space and a C (from `more` too) and calls `body`. Returns the ranks' error messages;
// empty if there were none.
template <class C, class... More>
std::vector<std::string> run(int ranks, const std::function<void(C&, TestSpace&)>& body,
                             const typename C::Options& options = {}, const More&... more) {
  return rank_table::run(ranks, [&](const AtTable& bootstrap) {
    TestSpace space;
    C comm(bootstrap, options, more...);
    body(comm, space);
    space.synchronize();
  });
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
inline void all_well(const std::vector<std::string>& sentences) {
  for (const std::string& sentence : sentences) CHECK(sentence == "");
}

// Enqueues `work` on the stream.
template <class F>
void later(TestSpace& space, F work) {
  device::check(emulation::run_on(space.stream(), work), "do work");
}

struct Arenas {
  TestSpace& space;
  memory::Array<float, TestSpace> gradients, parameters;
  std::vector<Range> buckets;
  std::vector<Range> whole = {};
  Arenas(TestSpace& where, std::int64_t count) : Arenas(where, count, oracle::buckets(count), {}) {}
  Arenas(TestSpace& where, std::int64_t count, const std::vector<Range>& cut_into,
         const std::vector<Range>& kept_whole)
      : space(where),
        gradients(where, static_cast<std::size_t>(count)),
        parameters(where, static_cast<std::size_t>(count)),
        buckets(cut_into),
        whole(kept_whole) {
    later(space, [p = parameters.data(), count] {
      for (std::int64_t i = 0; i < count; ++i) p[i] = static_cast<float>(i % 100);
    });
  }
  comm::Layout layout() {
    return {.gradients = {gradients.data(), gradients.size()},
            .parameters = {parameters.data(), parameters.size()},
            .buckets = buckets,
            .whole = whole,
            .space = &space};
  }
  // Bucket b's gradients become final in the computing stream.
  Ready compute(std::size_t b, int rank, int step) {
    later(space, [g = gradients.data(), r = buckets[b], rank, step] {
      for (auto i = r.begin; i < r.end; ++i) g[i] = decide::gradient(rank, i, step);
    });
    return space.mark();
  }
  std::vector<float> result() {
    std::vector<float> values(parameters.size());
    space.read(values.data(), parameters.data(), parameters.bytes());
    return values;
  }
};

// Captures a step with the gradients of step 0, whose sums are passed to `update`, as a graph.
template <class C, class F>
device::GraphExec graph_of_step(C& comm, Arenas& arenas, F&& update) {
  const cudaStream_t stream = arenas.space.stream();
  cudaGraph_t captured{};
  cudaGraphExec_t made{};
  device::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (std::size_t b = 0; b < arenas.buckets.size(); ++b)
    comm.begin(static_cast<int>(b), arenas.compute(b, comm.rank(), 0));
  comm.finish(update);
  device::check(cudaStreamEndCapture(stream, &captured), "capture");
  const cudaError_t status = cudaGraphInstantiate(&made, captured, 0);
  cudaGraphDestroy(captured);
  device::check(status, "make a graph");
  return device::GraphExec(made);
}

// parameters -= sum of gradients
inline std::vector<float> sums(int ranks, std::int64_t count, int steps) {
  std::vector<float> parameters(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] = static_cast<float>(i % 100);
  for (int step = 0; step < steps; ++step)
    for (std::int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < ranks; ++r) sum += decide::gradient(r, i, step);
      parameters[static_cast<std::size_t>(i)] -= sum;
    }
  return parameters;
}

template <class C>
std::vector<float> train(C& comm, Arenas& arenas, int steps, std::size_t unbegun = 0) {
  TestSpace& space = arenas.space;
  comm.open(comm::Fingerprint().add("model", "none"), arenas.layout());
  const std::vector<Range> mine = comm.updates(arenas.buckets);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t b = 0; b < arenas.buckets.size(); ++b) {
      const Ready ready = arenas.compute(b, comm.rank(), step);
      if (b >= unbegun) comm.begin(static_cast<int>(b), ready);
      comm.poll();
    }
    std::vector<Range> updated;
    comm.finish([&](Range range, float scale) {
      updated.push_back(range);
      later(space, [p = arenas.parameters.data(), g = arenas.gradients.data(), range, scale] {
        for (auto i = range.begin; i < range.end; ++i) p[i] -= scale * g[i];
      });
    });
    if (updated != mine) throw Error("updates out of order");
  }
  return arenas.result();
}
template <class C>
std::vector<float> train(C& comm, TestSpace& space, std::int64_t count, int steps, std::size_t unbegun = 0) {
  Arenas arenas(space, count);
  const comm::Closing closing(comm);
  return train(comm, arenas, steps, unbegun);
}

// A step that rank 1 leaves before its first exchange. Rank 1 waits until the 2 other ranks have noticed.
template <class C>
void go_without_rank_1(C& comm, TestSpace& space, std::atomic<int>& over) {
  Arenas arenas(space, 640);
  const comm::Closing closing(comm);
  comm.open(comm::Fingerprint(), arenas.layout());
  if (comm.rank() == 1) {
    while (over < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    throw Error("left");
  }
  struct Count {
    std::atomic<int>& over;
    ~Count() { ++over; }
  } count{over};
  for (int b = 0; b < 6; ++b) comm.begin(b, arenas.compute(static_cast<std::size_t>(b), comm.rank(), 0));
  comm.finish([](Range, float) {});
  space.synchronize();  // the host waits for the GPU and must not hang
  comm.poll();
}

// The decision rule of comm_decide.hpp, in the stream.
class Rule {
 public:
  Rule(Arenas& arenas, int skipped) : arenas_(arenas), state_(arenas.space, 3), skipped_(skipped) {}
  bool decides() const { return true; }
  std::span<double> partial() { return {state_.data(), 1}; }
  void arrived(Range r, float scale) {
    later(arenas_.space, [g = arenas_.gradients.data(), s = state_.data(), r, scale] {
      for (auto i = r.begin; i < r.end; ++i) s[0] += std::pow(double{scale} * double{g[i]}, 2);
    });
  }
  // Every other step takes two rounds.
  Decision decide() {
    if (++calls_ % 3 == 2) {
      later(arenas_.space, [s = state_.data()] { s[0] = 0; });
      return Decision::again;
    }
    later(arenas_.space, [s = state_.data(), skipped = skipped_] {
      const double norm = std::sqrt(s[0]);
      s[1] = norm > decide::most_norm ? static_cast<float>(decide::most_norm / norm) : 1.0f;
      if (s[2] == skipped) s[1] = 0;
      s[0] = 0;
      s[2] += 1;
    });
    return Decision::apply;
  }
  /// The factor of all gradients; 0 if the step is skipped. The host waits for it.
  double factor() {
    double read = 0;
    arenas_.space.read(&read, state_.data() + 1, sizeof read);
    return read;
  }
  void update(Range r, float scale) {
    later(arenas_.space,
          [p = arenas_.parameters.data(), g = arenas_.gradients.data(), s = state_.data(), r, scale] {
            for (auto i = r.begin; i < r.end && s[1] > 0; ++i)
              p[i] = decide::moved(p[i], scale * g[i], static_cast<float>(s[1]));
          });
  }

 private:
  Arenas& arenas_;
  memory::Array<double, TestSpace> state_;  // squares, factor, steps so far
  int skipped_, calls_ = 0;
};

// Trains with the rule, and returns the parameters.
template <class C>
std::vector<float> train_by_rule(C& comm, TestSpace& space, std::int64_t count, int skipped) {
  Arenas arenas(space, count);
  const comm::Closing closing(comm);
  comm.open(comm::Fingerprint(), arenas.layout());
  Rule rule(arenas, skipped);
  for (int step = 0; step < decide::steps; ++step) {
    for (std::size_t b = 0; b < arenas.buckets.size(); ++b)
      comm.begin(static_cast<int>(b), arenas.compute(b, comm.rank(), step));
    comm.finish(rule);
  }
  return arenas.result();
}

// Appends the events of the exchange to `events`, which outlives it.
template <class C>
void observe(C& comm, std::vector<comm::ExchangeEvent>& events) {
  comm.observe({[](void* all, const comm::ExchangeEvent& event) {
                  static_cast<std::vector<comm::ExchangeEvent>*>(all)->push_back(event);
                },
                &events});
}

}  // namespace device_test
