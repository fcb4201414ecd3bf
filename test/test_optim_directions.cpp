// SANITIZE: none
// ALONE
// Rules that use the norms of tensors and of the directions of their updates: dead taps, skipped steps, and
// every way to exchange gradients.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "optim_bound.hpp"
#include "optim_support.hpp"
#include <convoy/comm/policy/hierarchical.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/optim/any.hpp>
#include <convoy/optim/lamb.hpp>
#include <convoy/optim/lars.hpp>

using namespace optim_test;
using transport::Threads;

namespace {

constexpr optim::Guard clipping{.max_norm = 1, .skip_not_finite = true};
constexpr optim::Lamb::Options lamb{.lr = 0.1f, .weight_decay = 0.1f};

double squares(const std::vector<double>& values, Range range) {
  double sum = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i)
    sum += values[static_cast<std::size_t>(i)] * values[static_cast<std::size_t>(i)];
  return sum;
}

std::vector<double> wide(const std::vector<float>& values) { return {values.begin(), values.end()}; }

}  // namespace

TEST_CASE("dead taps count in the norm of a direction, and move at the rate of their tensor") {
  const Layout layout;
  memory::Host space;
  for (const float most : {0.0f, 1.0f}) {
    CAPTURE(most);
    auto made = arena<optim::Lamb>(space, lamb, layout, {.max_norm = most});
    auto parameters = random_arena(layout, 1);
    const auto before = wide(parameters);
    const auto gradients = random_arena(layout, 2, true);
    step(made, 1, 0.1f, 1.0f, parameters, gradients);
    const auto g = wide(gradients);
    const double factor = most > 0 ? 1 / (std::sqrt(squares(g, exchanged)) + 1e-6) : 1.0;
    for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
      const auto& tensor = layout.tensors[t];
      const double decay = t == 1 ? 0.0 : 0.1;  // the bias
      std::vector<double> d(before.size());
      for (std::size_t i = 0; i < d.size(); ++i) {
        // In the first step, the corrected moments are the gradient and its square.
        const double gradient = factor * g[i];
        d[i] = gradient / (std::abs(gradient) + 1e-6) + decay * before[i];
      }
      const auto norm = [&](const std::vector<double>& values) {
        return std::sqrt(squares(values, tensor.live) + squares(values, tensor.dead));
      };
      const double rate = 0.1 * norm(before) / norm(d);
      for (const Range& range : {tensor.live, tensor.dead})
        for (std::int64_t i = range.begin; i < range.end; ++i) {
          const auto at = static_cast<std::size_t>(i);
          CHECK(static_cast<double>(parameters[at]) ==
                doctest::Approx(before[at] - rate * d[at]).epsilon(1e-5));
        }
    }
  }
}

TEST_CASE("a skipped step changes neither parameters nor moments, and does not count as a step of LAMB") {
  const Layout layout;
  memory::Host space;
  for (const optim::Guard& guard : {clipping, optim::Guard{.skip_not_finite = true}}) {
    auto skips = arena<optim::Lamb>(space, lamb, layout, guard);
    auto never = arena<optim::Lamb>(space, lamb, layout, guard);
    auto a = random_arena(layout, 1), b = a;
    for (int number = 1; number <= 6; ++number) {
      auto gradients = random_arena(layout, 20 + static_cast<std::uint64_t>(number), true);
      if (number % 3 == 0) {
        const auto before = a, state = all_state(skips);
        gradients[50] = std::numeric_limits<float>::infinity();
        step(skips, number, 0.1f, 1.0f, a, gradients);
        CHECK(same_bits(a, before));
        CHECK(same_bits(all_state(skips), state));
      } else {
        step(skips, number, 0.1f, 1.0f, a, gradients);
        step(never, number - number / 3, 0.1f, 1.0f, b, gradients);
      }
    }
    CHECK(skips.skipped() == 2);
    CHECK(same_bits(a, b));
    CHECK(same_bits(all_state(skips), all_state(never)));
  }
}

TEST_CASE("a rule with directions chosen at run time computes the same bits, and a step allocates nothing") {
  const Layout layout;
  memory::Host space;
  auto fixed = arena<optim::Lamb>(space, lamb, layout, clipping);
  auto chosen = arena<optim::Any>(space, lamb, layout, clipping);
  auto a = random_arena(layout, 1), b = a;
  std::vector<std::vector<float>> gradients;
  for (std::uint64_t number = 1; number <= 5; ++number)
    gradients.push_back(random_arena(layout, 1 + number, true));
  const long before = allocations;
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    step(fixed, static_cast<std::int64_t>(t) + 1, 0.1f, 1.0f, a, gradients[t]);
    step(chosen, static_cast<std::int64_t>(t) + 1, 0.1f, 1.0f, b, gradients[t]);
  }
  CHECK(allocations == before);
  CHECK(before > 0);
  CHECK(same_bits(a, b));
}

TEST_CASE("norms of directions are the same bits whatever the number of threads") {
  constexpr std::int64_t n = 1 << 20;
  const std::vector<optim::ArenaTensor> tensors = {{{0, n / 3}, {}, 0}, {{n / 2, n}, {}, 0}};
  const optim::Group group;
  std::vector<float> gradients(n), parameters(n);
  Philox random(9);
  for (float& g : gradients) g = random.normal();
  for (float& p : parameters) p = random.normal();
  std::vector<double> first;
  for (const int threads : {1, 2, 3}) {
    memory::Host space(std::pmr::new_delete_resource(), threads);
    optim::Arena<optim::Lamb> made(space, lamb, tensors, {&group, 1});
    const Range whole{0, n};
    made.own({&whole, 1});
    made.begin(1, 0.1f);
    made.arrived(whole, 0.5f, parameters.data(), gradients.data());
    const std::vector<double> sums(made.partial().begin(), made.partial().end());
    if (threads == 1) first = sums;
    CHECK(sums == first);
  }
  CHECK(first[2] > n / 4);
}

namespace {

constexpr int steps = 4;
constexpr std::int64_t size = 12'000;
const comm::Options quick{.deadline = Seconds(20), .segment_bytes = 4096, .window = 2};

// A large tensor that buckets and shards cut, a small one that does not decay, a frozen one, and another.
const std::vector<optim::ArenaTensor> tensors = {
    {{0, 7'003}, {}, 0}, {{7'008, 7'100}, {}, 1}, {{7'104, 9'000}, {}, 2}, {{9'008, 12'000}, {}, 0}};
const std::vector<optim::Group> groups = {{}, {.weight_decay = 0.0f}, {.frozen = true}};
const std::vector<Range> buckets = {{0, 2'000}, {2'000, 7'008}, {7'008, 12'000}};

float gradient(int rank, std::int64_t i, int number) {
  for (const auto& tensor : tensors)
    if (i >= tensor.live.begin && i < tensor.live.end)
      return static_cast<float>((i * 7 + rank * 31 + number * 13) % 61 - 30) / 64.0f;
  return 0;
}

std::vector<float> start() {
  std::vector<float> values(size);
  Philox random(3);
  for (const auto& tensor : tensors)
    for (auto i = tensor.live.begin; i < tensor.live.end; ++i)
      values[static_cast<std::size_t>(i)] = random.normal();
  return values;
}

template <class R>
struct OnServer {
  optim::Arena<R>* arena;
  bool anew = true;
  bool decides() const { return true; }
  void arrived(const comm::ServerPart& p) {
    if (anew) arena->begin(p.count, 0.01f);
    anew = false;
    arena->arrived(p.range, p.scale, p.parameters, p.gradients);
  }
  std::span<double> partial() { return arena->partial(); }
  Decision decide() {
    const Decision decision = arena->decide(nullptr);  // there are no dead taps
    anew = decision != Decision::again;
    return decision;
  }
  void update(const comm::ServerPart& p) { arena->update(p.range, p.scale, p.parameters, p.gradients); }
};

// The parameters of this rank after all steps; empty on a rank that only serves.
template <class R, comm::Comm C>
std::vector<float> train(C& comm, const typename R::Options& options, const optim::Guard& guard) {
  Buffer<float> gradients(size, comm.memory()), parameters(size, comm.memory());
  comm.open({}, {gradients, parameters, buckets});
  memory::Host space;
  optim::Arena<R> arena(space, options, tensors, groups, guard);
  arena.own(comm.updates(buckets));
  const auto begin = start();
  std::copy(begin.begin(), begin.end(), parameters.begin());
  OnServer<R> server{&arena};
  comm.serve(server);
  if (comm.role() == comm::Role::server) return {};
  optim::Bound<R> bound(arena, parameters.data(), gradients.data());
  for (int number = 1; number <= steps; ++number) {
    if (!comm.has_servers()) arena.begin(number, 0.01f);
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (auto i = buckets[b].begin; i < buckets[b].end; ++i)
        gradients[static_cast<std::size_t>(i)] = gradient(comm.rank(), i, number);
      comm.begin(static_cast<int>(b));
    }
    comm.finish(bound);
  }
  comm.dismiss();
  return {parameters.begin(), parameters.end()};
}

// The parameters after all steps of one rank that gets the sums of the workers' gradients.
template <class R>
std::vector<float> expected(int workers, const typename R::Options& options, const optim::Guard& guard) {
  memory::Host space;
  optim::Arena<R> arena(space, options, tensors, groups, guard);
  const Range whole{0, size};
  arena.own({&whole, 1});
  auto parameters = start();
  std::vector<float> sums(size);
  for (int number = 1; number <= steps; ++number) {
    for (std::int64_t i = 0; i < size; ++i) {
      sums[static_cast<std::size_t>(i)] = 0;
      for (int r = 0; r < workers; ++r) sums[static_cast<std::size_t>(i)] += gradient(r, i, number);
    }
    arena.begin(number, 0.01f);
    for (bool deciding = true; deciding;) {
      arena.arrived(whole, 1.0f, parameters.data(), sums.data());
      deciding = arena.decide(parameters.data()) == Decision::again;
    }
    arena.update(whole, 1.0f, parameters.data(), sums.data());
  }
  return parameters;
}

template <class R, class Make>
void check(int ranks, int workers, const Make& make) {
  const typename R::Options options{.lr = 0.01f, .weight_decay = 0.1f};
  for (const optim::Guard& guard : {optim::Guard{}, clipping}) {
    const auto right = expected<R>(workers, options, guard);
    CHECK(right != start());
    std::vector<std::vector<float>> got(static_cast<std::size_t>(ranks));
    Threads::World(ranks).run([&](Threads endpoint) {
      auto exchange = make(endpoint);
      got[static_cast<std::size_t>(endpoint.rank())] = train<R>(exchange, options, guard);
    });
    for (const auto& parameters : got) {
      if (parameters.empty()) continue;
      CHECK(same_bits(parameters, got[0]));
      float off = 0;
      for (std::size_t i = 0; i < right.size(); ++i) off = std::max(off, std::abs(parameters[i] - right[i]));
      CHECK(off < 2e-6f);  // shards add up their squares in another order
    }
    CHECK(got[0].size() == right.size());
  }
}

}  // namespace

TEST_CASE_TEMPLATE("every exchange provides what the norms of tensors need", R, optim::Lars, optim::Lamb) {
  check<R>(1, 1, [](Threads) { return comm::None{}; });
  check<R>(3, 3, [](Threads endpoint) { return comm::Ring<Threads>(endpoint, quick); });
  check<R>(3, 3, [](Threads endpoint) { return comm::Sharded<comm::Ring<Threads>>(endpoint, quick); });
  check<R>(4, 4, [](Threads endpoint) {
    return comm::Sharded<comm::Reproducible<comm::Ring<Threads>>>(endpoint, quick);
  });
  check<R>(3, 3, [](Threads endpoint) {
    return comm::Background<comm::Sharded<comm::Tree<Threads>>>(endpoint, quick);
  });
  for (const int servers : {1, 2})
    for (const comm::Placement placement : {comm::Placement::among, comm::Placement::beside})
      check<R>(placement == comm::Placement::among ? 3 : 3 + servers, 3, [&](Threads endpoint) {
        return comm::AnyParameterServer(endpoint, {{}, servers, placement}, quick);
      });
}
