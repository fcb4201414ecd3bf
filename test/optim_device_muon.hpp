// Muon on a GPU gives the host's results, over matrices of many shapes. Run on the CPU by
// test_optim_device.cpp, and on a GPU by test_optim_gpu.cu.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "optim_device.hpp"
#include <convoy/optim/muon.hpp>

namespace optim_device {

/// Wide, tall and square matrices of odd sizes, of single rows and columns and of several blocks; two of them
/// have dead taps. Also a bias, a table that its group treats elementwise, and a frozen matrix.
struct Matrices {
  std::vector<optim::ArenaTensor> tensors;
  std::vector<optim::Group> groups = {
      {}, {.weight_decay = 0.0f}, {.lr_scale = 0.5f}, {.frozen = true}, {.by_element = true}};
  std::vector<Range> parts;  // received and updated together
  std::int64_t exchanged = 0, size = 0;

  Matrices() {
    struct Given {
      std::int64_t rows, columns, dead;
      int group;
    };
    for (const Given& g : {Given{7, 30, 0, 0},
                           {33, 9, 3, 0},
                           {0, 13, 0, 1},
                           {16, 16, 0, 2},
                           {13, 13, 0, 0},
                           {5, 8, 0, 4},
                           {1, 37, 0, 0},
                           {29, 1, 2, 2},
                           {96, 160, 0, 0},
                           {6, 6, 0, 3},
                           {150, 70, 0, 0}}) {
      optim::ArenaTensor tensor{
          {exchanged, exchanged + std::max<std::int64_t>(g.rows, 1) * g.columns}, {}, g.group};
      tensor.rows = g.rows;
      tensors.push_back(tensor);
      dead_.push_back(g.rows * g.dead);
      const std::int64_t end = slot(tensor.live.end);
      if (tensors.size() % 3 == 1)
        parts.push_back({exchanged, end});
      else
        parts.back().end = end;
      exchanged = end;
    }
    size = exchanged;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (dead_[t] == 0) continue;
      tensors[t].dead = {size, size + dead_[t]};
      size = slot(tensors[t].dead.end);
    }
  }

  std::vector<float> random_values(std::uint64_t seed) const {
    Philox random(14, seed);
    std::vector<float> values(static_cast<std::size_t>(size));
    for (const optim::ArenaTensor& tensor : tensors)
      for (const Range& range : {tensor.live, tensor.dead})
        for (std::int64_t i = range.begin; i < range.end; ++i)
          values[static_cast<std::size_t>(i)] = random.normal();
    return values;
  }

  static std::int64_t slot(std::int64_t n) { return (n + 15) / 16 * 16; }

 private:
  std::vector<std::int64_t> dead_;
};

/// How the steps over matrices run.
struct Course {
  int steps = 5;
  optim::Guard guard = {.max_norm = 60, .skip_not_finite = true};
  int infinite = 3;        ///< the step whose gradient contains an infinity; 0: none
  std::int64_t shift = 0;  ///< of all arrays, in elements, from a vector boundary
  bool graph = false;      ///< whether all but `begin` is captured once and replayed
  memory::WorkingCopy copy = {};
};

/// Enqueues the work of a step, or captures the first step as a graph and launches that for each step.
class Replayed {
 public:
  template <class Work>
  void run(Device& space, bool captures, Work&& work) {
    if (!captures) return work();
    if (graph_.get() == nullptr) {
      cudaGraph_t captured{};
      device::check(cudaStreamBeginCapture(space.stream(), cudaStreamCaptureModeThreadLocal), "capture");
      work();
      device::check(cudaStreamEndCapture(space.stream(), &captured), "capture");
      cudaGraphExec_t made{};
      device::check(cudaGraphInstantiate(&made, captured, 0), "make a graph");
      cudaGraphDestroy(captured);
      graph_ = device::GraphExec(made);
    }
    device::check(cudaGraphLaunch(graph_.get(), space.stream()), "start a graph");
  }
  template <class Work>
  void run(memory::Host&, bool, Work&& work) {
    work();
  }

 private:
  device::GraphExec graph_;
};

template <class R, class S>
Left steps_of_matrices(S& space, const typename optim::Optimizer<R>::Options& options, const Course& course) {
  const Matrices all;
  optim::Arena<R, S> arena(space, options, all.tensors, all.groups, course.guard);
  const Range whole{0, all.exchanged};
  arena.own({&whole, 1});
  const auto start = all.random_values(1);
  const std::size_t shift = static_cast<std::size_t>(course.shift), bytes = start.size() * sizeof(float);
  memory::Array<float, S> p(space, start.size() + shift), g(space, start.size() + shift);
  float *const parameters = p.data() + shift, *const gradients = g.data() + shift;
  space.write(parameters, start.data(), bytes);
  Replayed replayed;
  for (int number = 1; number <= course.steps; ++number) {
    auto given = all.random_values(1 + static_cast<std::uint64_t>(number));
    if (number == course.infinite) given[70] = std::numeric_limits<float>::infinity();
    space.write(gradients, given.data(), bytes);
    const float lr = 0.05f / static_cast<float>(1 + number % 3);
    arena.begin(number, lr);
    replayed.run(space, course.graph, [&] {
      if (arena.decides()) {
        for (const Range& part : all.parts)
          arena.arrived(part, 0.5f, parameters + part.begin, gradients + part.begin);
        CHECK(arena.decide(parameters) == Decision::apply);
      }
      for (const Range& part : all.parts) {
        memory::WorkingCopy copy = course.copy;
        if (copy.at != nullptr) copy.at = static_cast<std::uint16_t*>(copy.at) + part.begin;
        arena.update(part, 0.5f, parameters + part.begin, gradients + part.begin, copy);
      }
      arena.decay_dead(number, lr, parameters);
    });
  }
  Left left{std::vector<float>(start.size()), {}, arena.skipped()};
  space.read(left.parameters.data(), parameters, bytes);
  arena.visit_state([&](std::string_view, Range, const float* values, std::int64_t count) {
    const std::size_t before = left.state.size();
    left.state.resize(before + static_cast<std::size_t>(count));
    space.read(left.state.data() + before, values, static_cast<std::size_t>(count) * sizeof(float));
  });
  return left;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double off = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    largest = off <= largest ? largest : off;  // a NaN stays
  }
  return largest;
}

inline constexpr optim::Muon::Options muon{.weight_decay = 0.2f, .rest = 0.3f, .epsilon = 1e-3f};

TEST_CASE("Muon computes on a GPU what it computes on the host") {
  if (device::count() == 0) SKIP("there is no GPU here");
  for (const bool nesterov : {true, false})
    for (const bool match : {true, false})
      for (const Course& course : {Course{}, Course{.guard = {}, .infinite = 0},
                                   Course{.guard = {.max_norm = 1e9f}, .infinite = 0}}) {
        CAPTURE(course.guard.max_norm);
        optim::Muon::Options options = muon;
        options.nesterov = nesterov;
        options.match_adamw = match;
        memory::Host near;
        Device far;
        const Left here = steps_of_matrices<optim::Muon>(near, options, course);
        const Left there = steps_of_matrices<optim::Muon>(far, options, course);
        CHECK(largest_difference(here.parameters, Matrices().random_values(1)) > 0.05);
        CHECK(largest_difference(there.parameters, here.parameters) < 2e-5);
        CHECK(largest_difference(there.state, here.state) < 1e-6);
        CHECK(there.skipped == (course.infinite > 0 ? 1 : 0));
        CHECK(steps_of_matrices<optim::Muon>(far, options, course) == there);
        CHECK(steps_of_matrices<optim::Any>(far, options, course) == there);
      }
}

TEST_CASE("Muon's steps leave the same bits wherever arrays begin, and captured as a graph") {
  if (device::count() == 0) SKIP("there is no GPU here");
  Device space;
  const Left expected = steps_of_matrices<optim::Muon>(space, muon, {});
  CHECK(steps_of_matrices<optim::Muon>(space, muon, {.shift = 1}) == expected);
  CHECK(steps_of_matrices<optim::Muon>(space, muon, {.graph = true}) == expected);
}

TEST_CASE("a step that Muon skips leaves no trace on a GPU") {
  if (device::count() == 0) SKIP("there is no GPU here");
  Device space;
  const Left before = steps_of_matrices<optim::Muon>(space, muon, {.steps = 4, .infinite = 0}),
             skipped = steps_of_matrices<optim::Muon>(space, muon, {.steps = 5, .infinite = 5});
  CHECK(skipped.parameters == before.parameters);
  CHECK(skipped.state == before.state);
  CHECK(skipped.skipped == 1);
  CHECK(steps_of_matrices<optim::Muon>(space, muon, {.steps = 5, .infinite = 0}).parameters !=
        before.parameters);
}

TEST_CASE("Muon writes the copy in 16 bits of each parameter that it updates, and of no other") {
  if (device::count() == 0) SKIP("there is no GPU here");
  const Matrices all;
  Device space;
  const auto start = all.random_values(1);
  for (const DType type : {DType::bf16, DType::f16})
    for (const std::int64_t shift : {0, 1}) {
      std::vector<std::uint16_t> copied(start.size(), 0xffff);
      memory::Array<std::uint16_t, Device> copy(space, copied.size() + 1);
      space.write(copy.data() + shift, copied.data(), copied.size() * sizeof(std::uint16_t));
      const Left left =
          steps_of_matrices<optim::Muon>(space, muon, {.shift = shift, .copy = {copy.data() + shift, type}});
      space.read(copied.data(), copy.data() + shift, copied.size() * sizeof(std::uint16_t));
      int wrong = 0;
      for (const optim::ArenaTensor& tensor : all.tensors) {
        const bool frozen = all.groups[static_cast<std::size_t>(tensor.group)].frozen;
        for (std::int64_t i = tensor.live.begin; i < tensor.live.end; ++i) {
          const float p = left.parameters[static_cast<std::size_t>(i)];
          const auto bits = type == DType::bf16 ? bf16(p).bits : f16(p).bits;
          wrong += copied[static_cast<std::size_t>(i)] != (frozen ? std::uint16_t{0xffff} : bits);
        }
        for (std::int64_t i = tensor.dead.begin; i < tensor.dead.end; ++i)
          wrong += copied[static_cast<std::size_t>(i)] != 0xffff;
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("products of Muon are rounded to tf32 if the space allows it, and stay near") {
  if (device::count() == 0) SKIP("there is no GPU here");
  Device exact, rounding;
  rounding.set_reduced_products(true);
  const Left expected = steps_of_matrices<optim::Muon>(exact, muon, {}),
             seen = steps_of_matrices<optim::Muon>(rounding, muon, {});
  CHECK(seen.state == expected.state);
  const double off = largest_difference(seen.parameters, expected.parameters);
  CHECK(off > 0);
  CHECK(off < 0.01);
}

/// Matrices of two shapes in turns, of two groups, beside a bias.
struct Layers {
  std::vector<optim::ArenaTensor> tensors;
  std::vector<optim::Group> groups = {{}, {.lr_scale = 0.5f}};
  std::int64_t size = 0;
  explicit Layers(int count) {
    const auto add = [&](std::int64_t rows, std::int64_t columns, int group) {
      tensors.push_back({{size, size + std::max<std::int64_t>(rows, 1) * columns}, {}, group, rows});
      size = Matrices::slot(tensors.back().live.end);
    };
    for (int layer = 0; layer < count; ++layer) {
      add(9, 21, layer % 3 == 1 ? 1 : 0);
      add(0, 7, 0);
      add(21, 9, 0);
    }
  }
};

/// The parameters and their copy in bf16 after two steps, which update `together` tensors at a time.
inline std::pair<std::vector<float>, std::vector<std::uint16_t>> steps_of_layers(const Layers& all,
                                                                                 std::size_t together) {
  Device space;
  optim::Arena<optim::Muon, Device> arena(space, muon, all.tensors, all.groups);
  const Range whole{0, all.size};
  arena.own({&whole, 1});
  const auto count = static_cast<std::size_t>(all.size);
  Philox random(3, 4);
  std::vector<float> values(count);
  const memory::Array<float, Device> p(space, count), g(space, count);
  const memory::Array<std::uint16_t, Device> copy(space, count);
  for (int step = 0; step <= 2; ++step) {
    for (const optim::ArenaTensor& tensor : all.tensors)
      for (std::int64_t i = tensor.live.begin; i < tensor.live.end; ++i)
        values[static_cast<std::size_t>(i)] = random.normal();
    space.write((step == 0 ? p : g).data(), values.data(), p.bytes());
    if (step == 0) continue;
    arena.begin(step, 0.1f);
    for (std::size_t t = 0; t < all.tensors.size(); t += together) {
      const std::size_t next = std::min(t + together, all.tensors.size());
      const Range part{all.tensors[t].live.begin,
                       next < all.tensors.size() ? all.tensors[next].live.begin : all.size};
      arena.update(part, 0.5f, p.data() + part.begin, g.data() + part.begin,
                   {copy.data() + part.begin, DType::bf16});
    }
  }
  std::vector<std::uint16_t> copied(count);
  space.read(values.data(), p.data(), p.bytes());
  space.read(copied.data(), copy.data(), copy.bytes());
  return {values, copied};
}

TEST_CASE("matrices of one shape that are updated together get the bits of those updated one by one") {
  if (device::count() == 0) SKIP("there is no GPU here");
  const Layers all(5);
  const auto alone = steps_of_layers(all, 1);
  for (const std::size_t together : {std::size_t{4}, std::size_t{7}, all.tensors.size()}) {
    CAPTURE(together);
    CHECK(steps_of_layers(all, together) == alone);
  }
}

TEST_CASE("a matrix in panels is refused on a GPU") {
  if (device::count() == 0) SKIP("there is no GPU here");
  Device space;
  const optim::ArenaTensor tensor{{0, 96}, {}, 0, 8};
  const optim::Group group;
  optim::Arena<optim::Muon, Device> arena(space, {}, {&tensor, 1}, {&group, 1});
  const std::int64_t panel = 4;
  arena.set_panels({&panel, 1});
  CHECK_THROWS_WITH_AS(arena.own({&tensor.live, 1}),
                       "optimizer: a matrix of 8 x 12 is stored in panels of 4 rows, but on a GPU it must be "
                       "stored row by row",
                       ConfigError);
}

}  // namespace optim_device
