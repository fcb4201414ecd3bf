// Optimizers on a GPU give the host's results step by step, and change nothing in a skipped step. Run on the
// CPU by test_optim_device.cpp, and on a GPU by test_optim_gpu.cu.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "optim_bound.hpp"
#include "optim_support.hpp"
#include "skip.hpp"
#include <convoy/optim/device.cuh>
#include <convoy/optim/ema.hpp>
#include <convoy/optim/lookahead.hpp>

namespace optim_device {

using namespace optim_test;
using memory::Device;

/// The results of steps: the parameters and the state.
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
    // The second part does not begin at a multiple of a vector.
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

/// Tensors of random sizes, some smaller than a vector and some of several chunks, in groups of which one is
/// frozen; some have dead taps.
struct RandomLayout {
  std::vector<optim::ArenaTensor> tensors;
  std::vector<optim::Group> groups = {{}, {.weight_decay = 0.0f}, {.lr_scale = 0.5f}, {.frozen = true}};
  std::int64_t exchanged = 0, size = 0;

  explicit RandomLayout(std::uint64_t seed) {
    Philox random(seed);
    const auto whole = [&](double least, double most) {
      return static_cast<std::int64_t>(random.uniform(static_cast<float>(least), static_cast<float>(most)));
    };
    const auto slot = [](std::int64_t n) { return (n + 15) / 16 * 16; };
    const auto count = whole(1, 12);
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t n = whole(0, 3) < 1 ? whole(2000, 9000) : whole(1, 70);
      tensors.push_back({{exchanged, exchanged + n}, {}, static_cast<int>(whole(0, 4))});
      exchanged = slot(exchanged + n);
    }
    size = exchanged;
    for (optim::ArenaTensor& tensor : tensors) {
      if (whole(0, 2) < 1) continue;
      tensor.dead = {size, size + whole(1, 3000)};
      size = slot(tensor.dead.end);
    }
  }
  std::vector<float> random_values(std::uint64_t seed) const {
    Philox random(12, seed);
    std::vector<float> values(static_cast<std::size_t>(size));
    for (const optim::ArenaTensor& tensor : tensors)
      for (const Range& range : {tensor.live, tensor.dead})
        for (std::int64_t i = range.begin; i < range.end; ++i)
          values[static_cast<std::size_t>(i)] = random.normal();
    return values;
  }
  /// Cuts the exchanged part at random; parts may be empty.
  std::vector<Range> cut(std::uint64_t seed) const {
    Philox random(13, seed);
    std::vector<std::int64_t> ends = {exchanged};
    for (int i = 0; i < 4; ++i)
      ends.push_back(static_cast<std::int64_t>(random.uniform(0, static_cast<float>(exchanged))));
    std::sort(ends.begin(), ends.end());
    std::vector<Range> parts;
    for (const std::int64_t end : ends) parts.push_back({parts.empty() ? 0 : parts.back().end, end});
    return parts;
  }
};

/// Three steps in a space. `copy`, if given, has a 16-bit number for each parameter.
template <class R, class S>
Left steps_over(S& space, const RandomLayout& layout, const optim::Guard& guard, std::uint64_t seed,
                const memory::WorkingCopy& copy = {}) {
  typename R::Options options;
  if constexpr (requires { options.weight_decay; }) options.weight_decay = 0.1f;
  optim::Arena<R, S> arena(space, options, layout.tensors, layout.groups, guard);
  const Range whole{0, layout.exchanged};
  arena.own({&whole, 1});
  const auto start = layout.random_values(1);
  memory::Array<float, S> parameters(space, start.size()), gradients(space, start.size());
  space.write(parameters.data(), start.data(), parameters.bytes());
  for (int number = 1; number <= 3; ++number) {
    const auto given = layout.random_values(static_cast<std::uint64_t>(number) + 5);
    space.write(gradients.data(), given.data(), gradients.bytes());
    arena.begin(number, 0.1f);
    const auto parts = layout.cut(seed + static_cast<std::uint64_t>(number));
    for (bool deciding = arena.decides(); deciding;) {
      for (const Range& part : parts)
        arena.arrived(part, 0.5f, parameters.data() + part.begin, gradients.data() + part.begin);
      deciding = arena.decide(parameters.data()) == Decision::again;
    }
    for (const Range& part : parts) {
      memory::WorkingCopy of_part = copy;
      if (copy.at != nullptr) of_part.at = static_cast<std::uint16_t*>(copy.at) + part.begin;
      arena.update(part, 0.5f, parameters.data() + part.begin, gradients.data() + part.begin, of_part);
    }
    arena.decay_dead(number, 0.1f, parameters.data());
  }
  Left left{std::vector<float>(start.size()), {}, arena.skipped()};
  space.read(left.parameters.data(), parameters.data(), parameters.bytes());
  arena.visit_state([&](std::string_view, Range, const float* values, std::int64_t count) {
    const std::size_t before = left.state.size();
    left.state.resize(before + static_cast<std::size_t>(count));
    space.read(left.state.data() + before, values, static_cast<std::size_t>(count) * sizeof(float));
  });
  return left;
}

/// Checks that the copy holds each updated parameter and is unchanged elsewhere.
template <class T>
void check_copy(const RandomLayout& layout, const std::vector<float>& parameters,
                const std::vector<std::uint16_t>& copy) {
  std::vector<char> updated(parameters.size());
  for (const optim::ArenaTensor& tensor : layout.tensors)
    if (!layout.groups[static_cast<std::size_t>(tensor.group)].frozen)
      std::fill(updated.begin() + tensor.live.begin, updated.begin() + (tensor.live.end + 15) / 16 * 16,
                char{1});
  int wrong = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    wrong += copy[i] != (updated[i] != 0 ? T(parameters[i]).bits : std::uint16_t{0xffff});
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("ranges of many tensors are updated as on the host, and so is their copy in 16 bits", R,
                   optim::Sgd, optim::Adam, optim::Lars, optim::Lamb) {
  if (device::count() == 0) SKIP("there is no GPU here");
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    const RandomLayout layout(seed);
    const optim::Guard guard{.max_norm = seed % 2 == 0 ? 1.0f : 0.0f, .skip_not_finite = seed % 4 == 1};
    memory::Host near;
    Device far;
    const Left here = steps_over<R>(near, layout, guard, seed);
    const Left there = steps_over<R>(far, layout, guard, seed);
    close(there.parameters, here.parameters);
    close(there.state, here.state);
    for (const DType type : {DType::bf16, DType::f16}) {
      std::vector<std::uint16_t> copied(static_cast<std::size_t>(layout.size), 0xffff);
      memory::Array<std::uint16_t, Device> copy(far, copied.size());
      far.write(copy.data(), copied.data(), copy.bytes());
      CHECK(steps_over<R>(far, layout, guard, seed, {copy.data(), type}) == there);
      far.read(copied.data(), copy.data(), copy.bytes());
      if (type == DType::bf16)
        check_copy<bf16>(layout, there.parameters, copied);
      else
        check_copy<f16>(layout, there.parameters, copied);
    }
  }
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
