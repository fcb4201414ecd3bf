// Optimizers on a GPU: what they compute on the host, step by step, and nothing in a step that is skipped.
// Run on processors by test_optim_device.cpp, and on a GPU by test_optim_gpu.cu.
#pragma once

#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "optim_support.hpp"
#include "skip.hpp"
#include <convoy/optim/device.cuh>
#include <convoy/optim/ema.hpp>
#include <convoy/optim/lookahead.hpp>

namespace optim_device {

using namespace optim_test;
using memory::Device;

/// What steps leave: the parameters, then the state.
struct Left {
  std::vector<float> parameters, state;
  std::int64_t skipped = 0;
  friend bool operator==(const Left&, const Left&) = default;
};

inline std::vector<float> gradients_of(const Layout& layout, int number) {
  auto gradients = random_arena(layout, 1 + static_cast<std::uint64_t>(number), true);
  if (number == 3) gradients[50] = std::numeric_limits<float>::infinity();
  return gradients;
}

template <class R>
Left on_device(const typename optim::Optimizer<R>::Options& options, const optim::Guard& guard) {
  const Layout layout;
  Device space;
  optim::Arena<R, Device> arena(space, options, layout.tensors, layout.groups.list, guard);
  arena.own({&exchanged, 1});
  const auto start = random_arena(layout, 1);
  const std::size_t bytes = start.size() * sizeof(float);
  memory::Array<float, Device> parameters(space, start.size()), gradients(space, start.size());
  space.write(parameters.data(), start.data(), bytes);
  for (int number = 1; number <= 5; ++number) {
    const auto given = gradients_of(layout, number);
    space.write(gradients.data(), given.data(), bytes);
    arena.begin(number, 0.1f);
    optim::Bound<R, Device> bound(arena, parameters.data(), gradients.data());
    for (bool deciding = bound.decides(); deciding;) {
      bound.arrived(exchanged, 0.5f);
      deciding = bound.decide() == Decision::again;
    }
    // One part begins where no vector does.
    for (const Range& part : {Range{0, 33}, Range{33, 64}, Range{64, 96}}) bound.update(part, 0.5f);
    arena.decay_dead(number, 0.1f, parameters.data());
  }
  Left left{std::vector<float>(start.size()), {}, arena.skipped()};
  space.read(left.parameters.data(), parameters.data(), bytes);
  arena.visit_state([&](std::string_view, Range, const float* values, std::int64_t count) {
    const std::size_t before = left.state.size();
    left.state.resize(before + static_cast<std::size_t>(count));
    space.read(left.state.data() + before, values, static_cast<std::size_t>(count) * sizeof(float));
  });
  return left;
}

template <class R>
Left on_host(const typename R::Options& options, const optim::Guard& guard) {
  const Layout layout;
  memory::Host space;
  auto made = arena<R>(space, options, layout, guard);
  auto parameters = random_arena(layout, 1);
  for (int number = 1; number <= 5; ++number)
    step(made, number, 0.1f, 0.5f, parameters, gradients_of(layout, number));
  return {parameters, all_state(made), made.skipped()};
}

inline void close(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(2e-6));
}

template <class R>
constexpr bool registered = [] {
  bool found = false;
  optim::Rules::for_each(
      [&]<class Listed>(std::type_identity<Listed>) { found = found || std::is_same_v<Listed, R>; });
  return found;
}();

template <class R>
void check(const typename R::Options& options) {
  CAPTURE(R::name);
  for (const float most : {0.0f, 1.0f}) {
    CAPTURE(most);
    const optim::Guard guard{.max_norm = most, .skip_not_finite = true};
    const Left here = on_host<R>(options, guard), there = on_device<R>(options, guard);
    close(there.parameters, here.parameters);
    close(there.state, here.state);
    CHECK(there.skipped == 1);
    CHECK(here.skipped == 1);
    CHECK(on_device<R>(options, guard) == there);
    if constexpr (registered<R>) CHECK(on_device<optim::Any>(options, guard) == there);
  }
}

TEST_CASE("decorated rules compute on a GPU what they compute on the host") {
  if (device::count() == 0) SKIP("there is no GPU here");
  check<optim::Ema<optim::Lamb>>({.rule = {.weight_decay = 0.1f}, .keep = 0.9f});
  check<optim::Lookahead<optim::AdamW>>({.rule = {.weight_decay = 0.1f}, .every = 2});
}

TEST_CASE("rules compute on a GPU what they compute on the host") {
  if (device::count() == 0) SKIP("there is no GPU here");
  check<optim::Sgd>({.weight_decay = 0.1f});
  check<optim::Adam>({.weight_decay = 0.1f});
  check<optim::AdamW>({.weight_decay = 0.1f});
  check<optim::Lars>({.weight_decay = 0.1f});
  check<optim::Lamb>({.weight_decay = 0.1f});
}

TEST_CASE("sums of squares of directions are those of a sum on the host, over many blocks") {
  if (device::count() == 0) SKIP("there is no GPU here");
  constexpr std::int64_t n = 70'001;
  const optim::ArenaTensor tensor{{0, n}, {}, 0};
  const optim::Group group;
  const Range whole{0, n};
  std::vector<float> parameters(n), gradients(n);
  Philox random(9);
  for (float& p : parameters) p = random.normal();
  for (float& g : gradients) g = random.normal();
  const auto sums = [&]<class S>(S& space) {
    optim::Arena<optim::Lamb, S> arena(space, {.weight_decay = 0.1f}, {&tensor, 1}, {&group, 1});
    arena.own({&whole, 1});
    memory::Array<float, S> p(space, n), g(space, n);
    space.write(p.data(), parameters.data(), n * sizeof(float));
    space.write(g.data(), gradients.data(), n * sizeof(float));
    arena.begin(1, 0.1f);
    arena.arrived(whole, 1.0f, p.data(), g.data());
    std::vector<double> found(arena.partial().size());
    space.read(found.data(), arena.partial().data(), arena.partial().size_bytes());
    return found;
  };
  Device far;
  memory::Host near;
  const auto there = sums(far), here = sums(near);
  REQUIRE(there.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) CHECK(there[i] == doctest::Approx(here[i]).epsilon(1e-6));
  CHECK(here[0] > n / 2.0);
}

}  // namespace optim_device
