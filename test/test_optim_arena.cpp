// ALONE
// Arenas: groups, dead taps, decisions before updates, ranges in other memory, state.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "optim_bound.hpp"
#include "optim_support.hpp"
#include <convoy/optim/any.hpp>

using namespace optim_test;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

double squares(const std::vector<float>& values, Range range) {
  double sum = 0;
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const auto value = static_cast<double>(values[static_cast<std::size_t>(i)]);
    sum += value * value;
  }
  return sum;
}

// By how much one step of SGD without momentum decreases each parameter, if all parameters and gradients
// are 1.
std::vector<float> moves(const Layout& layout, float weight_decay) {
  memory::Host space;
  auto made =
      arena<optim::Sgd>(space, optim::Sgd::Options{.momentum = 0, .weight_decay = weight_decay}, layout);
  std::vector<float> parameters(Layout::size, 1.0f), gradients(Layout::size, 1.0f);
  step(made, 1, 0.5f, 1.0f, parameters, gradients);
  for (float& p : parameters) p = 1 - p;
  return parameters;
}

}  // namespace

TEST_CASE("weights and their dead taps decay, biases only if all parameters do") {
  const auto usual = moves(Layout(), 0.5f);
  CHECK(usual[0] == 0.75f);    // a weight: lr (g + decay p)
  CHECK(usual[32] == 0.5f);    // a bias
  CHECK(usual[96] == 0.25f);   // a dead tap: lr decay p
  CHECK(usual[112] == 0.25f);  // another tensor's
  const auto all = moves(Layout({}, true), 0.5f);
  CHECK(all[32] == 0.75f);
  const auto none = moves(Layout(), 0);
  CHECK(none[0] == 0.5f);
  CHECK(none[96] == 0.0f);
}

TEST_CASE("groups scale the learning rate, change the weight decay and freeze parameters") {
  const auto moved = moves(Layout({{.match = "*.bias", .weight_decay = 1.0f},
                                   {.match = "first.*", .lr_scale = 0.5f, .weight_decay = 0.25f},
                                   {.match = "second.*", .frozen = true}}),
                           0.5f);
  CHECK(moved[0] == 0.25f * 1.25f);
  CHECK(moved[32] == 0.5f * 2);
  CHECK(moved[48] == 0.0f);
  CHECK(moved[96] == 0.25f * 0.25f);
  CHECK(moved[112] == 0.0f);
}

TEST_CASE("a group's weight decay is refused by a rule without one") {
  memory::Host space;
  const Layout layout({{.match = "*.weight", .weight_decay = 0.1f}});
  CHECK_THROWS_WITH_AS(
      arena<Plainest>(space, Plainest::Options{}, layout),
      "optimizer plainest has no weight decay, but a group of parameters asks for one of 0.1", ConfigError);
  const Layout frozen({{.match = "second.*", .frozen = true}});
  auto made = arena<Plainest>(space, Plainest::Options{}, frozen);
  CHECK(made.state_bytes() == 0);
  std::vector<float> parameters(Layout::size, 1.0f), gradients(Layout::size, 1.0f);
  step(made, 1, 0.5f, 1.0f, parameters, gradients);
  CHECK(parameters[0] == 0.5f);
  CHECK(parameters[48] == 1.0f);
}

TEST_CASE("dead taps have state only where they decay") {
  const Layout layout;
  memory::Host space;
  CHECK(arena<optim::Adam>(space, optim::Adam::Options{}, layout).state_bytes() == Layout::exchanged * 2 * 4);
  CHECK(arena<optim::Adam>(space, optim::Adam::Options{.weight_decay = 0.1f}, layout).state_bytes() ==
        (Layout::exchanged + 9) * 2 * 4);
}

TEST_CASE("dead taps decay on a rank for which servers update the rest, as on a rank that updates all") {
  const Layout layout;
  memory::Host space;
  const optim::Adam::Options options{.lr = 0.1f, .weight_decay = 0.1f};
  const optim::Guard guard{.skip_not_finite = true};
  auto whole = arena<optim::Adam>(space, options, layout, guard);
  auto worker = arena<optim::Adam>(space, options, layout, guard);
  auto a = random_arena(layout, 1), b = a;
  for (int number = 1; number <= 4; ++number) {
    auto gradients = random_arena(layout, 5, true);
    if (number == 2) gradients[50] = inf;  // the step is skipped
    step(whole, number, 0.1f, 1.0f, a, gradients);
    worker.decided(number == 2 ? Decision::skip : Decision::apply);
    worker.decay_dead(number, 0.1f, b.data());
  }
  CHECK(std::equal(a.begin() + 96, a.end(), b.begin() + 96));
  CHECK(whole.skipped() == 1);
  CHECK(worker.skipped() == 1);
  CHECK(b[96] != random_arena(layout, 1)[96]);
}

TEST_CASE("updates of ranges in parts, with gradients in other memory, give the same bits") {
  const Layout layout;
  const optim::Adam::Options options{.lr = 0.1f, .weight_decay = 0.1f};
  memory::Host space;
  auto whole = arena<optim::Adam>(space, options, layout);
  auto parts = arena<optim::Adam>(space, options, layout);
  // A rank with a part of the state, as a server or the owner of a shard has.
  const std::vector<Range> mine = {{0, 32}, {48, 96}};
  parts.own(mine);
  CHECK(parts.state_bytes() == (32 + 48 + 9) * 2 * 4);
  auto a = random_arena(layout, 1), b = a;
  for (int number = 1; number <= 4; ++number) {
    const auto gradients = random_arena(layout, 10 + static_cast<std::uint64_t>(number), true);
    step(whole, number, 0.1f, 0.5f, a, gradients);
    for (const Range& range : {Range{64, 96}, Range{0, 16}, Range{16, 32}, Range{48, 64}}) {
      const std::vector<float> part_of(gradients.begin() + range.begin, gradients.begin() + range.end);
      parts.begin(number, 0.1f);
      parts.update(range, 0.5f, b.data() + range.begin, part_of.data());
    }
    parts.decay_dead(number, 0.1f, b.data());
  }
  for (std::int64_t i = 0; i < Layout::size; ++i)
    if (i < 32 || i >= 48) CHECK(a[static_cast<std::size_t>(i)] == b[static_cast<std::size_t>(i)]);
  CHECK_THROWS_WITH_AS(parts.update({32, 48}, 1.0f, b.data(), b.data()),
                       "the optimizer has no state for element 32 on this rank", Error);
}

TEST_CASE("a gradient whose norm over all parameters exceeds the limit is scaled down to the limit") {
  const Layout layout;
  memory::Host space;
  const auto gradients = random_arena(layout, 2, true);
  const float scale = 0.5f;
  const double norm = std::sqrt(squares(gradients, exchanged)) * static_cast<double>(scale);
  for (const float most : {0.01f, 1.0f, 1000.0f}) {
    CAPTURE(most);
    auto clipped = arena<optim::Sgd>(space, optim::Sgd::Options{.momentum = 0}, layout, {.max_norm = most});
    CHECK(clipped.decides());
    auto parameters = random_arena(layout, 1);
    const auto before = parameters;
    step(clipped, 1, 0.1f, scale, parameters, gradients);
    CHECK(clipped.verdict().norm == doctest::Approx(norm).epsilon(1e-12));
    const double factor = std::min(1.0, static_cast<double>(most) / (norm + 1e-6));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      CHECK(static_cast<double>(parameters[i]) ==
            doctest::Approx(static_cast<double>(before[i]) -
                            0.1 * factor * static_cast<double>(scale) * static_cast<double>(gradients[i]))
                .epsilon(1e-6));
    if (most == 1000.0f) {  // nothing to clip: the same bits as without a guard
      auto free = arena<optim::Sgd>(space, optim::Sgd::Options{.momentum = 0}, layout);
      CHECK(!free.decides());
      auto same = before;
      step(free, 1, 0.1f, scale, same, gradients);
      CHECK(same_bits(parameters, same));
    }
  }
}

TEST_CASE("frozen parameters do not count in the norm") {
  const Layout layout({{.match = "second.*", .frozen = true}});
  memory::Host space;
  auto made = arena<optim::Sgd>(space, optim::Sgd::Options{}, layout, {.max_norm = 1});
  auto parameters = random_arena(layout, 1);
  const auto gradients = random_arena(layout, 2, true);
  step(made, 1, 0.1f, 1.0f, parameters, gradients);
  CHECK(made.verdict().norm == doctest::Approx(std::sqrt(squares(gradients, {0, 48}))).epsilon(1e-12));
}

TEST_CASE("norms of the same ranges are the same bits, whatever the number of threads") {
  constexpr std::int64_t n = 1 << 18;
  const std::vector<optim::ArenaTensor> tensors = {{{0, n / 2 - 3}, {}, 0}, {{n / 2, n}, {}, 0}};
  const optim::Group group;
  std::vector<float> gradients(n), parameters(n);
  Philox random(9);
  for (float& g : gradients) g = random.normal();
  double first = 0;
  for (const int threads : {1, 2, 3}) {
    memory::Host space(std::pmr::new_delete_resource(), threads);
    optim::Arena<optim::Sgd> made(space, {}, tensors, {&group, 1}, {.max_norm = 1});
    made.begin(1, 0.1f);
    for (std::int64_t at = 0; at < n; at += n / 4)
      made.arrived({at, at + n / 4}, 1.0f / 3, parameters.data() + at, gradients.data() + at);
    if (threads == 1) first = made.partial()[0];
    CHECK(made.partial()[0] == first);
    CHECK(made.decide(parameters.data()) == Decision::apply);
    CHECK(made.verdict().norm == std::sqrt(first));
  }
  CHECK(first == doctest::Approx(squares(gradients, {0, n}) / 9).epsilon(1e-6));
}

TEST_CASE("a step whose gradient is not finite changes nothing, and does not count as a step of Adam") {
  const Layout layout;
  for (const float poison : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
    memory::Host space;
    const optim::Adam::Options options{.lr = 0.1f, .weight_decay = 0.1f};
    const optim::Guard guard{.max_norm = 1, .skip_not_finite = true};
    auto skips = arena<optim::Adam>(space, options, layout, guard);
    auto never = arena<optim::Adam>(space, options, layout, guard);
    auto a = random_arena(layout, 1), b = a;
    int applied = 0;
    for (int number = 1; number <= 5; ++number) {
      auto gradients = random_arena(layout, 20 + static_cast<std::uint64_t>(number), true);
      if (number == 2 || number == 4) {
        const auto before = a, state = all_state(skips);
        gradients[50] = poison;
        step(skips, number, 0.1f, 1.0f, a, gradients);
        CHECK(skips.verdict().apply == 0);
        CHECK(same_bits(a, before));
        CHECK(same_bits(all_state(skips), state));
      } else {
        step(skips, number, 0.1f, 1.0f, a, gradients);
        step(never, ++applied, 0.1f, 1.0f, b, gradients);
        CHECK(skips.verdict().apply == 1);
      }
    }
    CHECK(skips.skipped() == 2);
    CHECK(never.skipped() == 0);
    CHECK(same_bits(a, b));
    CHECK(same_bits(all_state(skips), all_state(never)));
    // A resumed run gets the number of skipped steps along with the slots.
    auto resumed = arena<optim::Adam>(space, options, layout, guard);
    resumed.set_skipped(skips.skipped());
    std::vector<float> state = all_state(skips);
    const float* from = state.data();
    resumed.visit_state([&](std::string_view, Range, float* values, std::int64_t count) {
      std::copy_n(from, count, values);
      from += count;
    });
    const auto gradients = random_arena(layout, 30, true);
    auto c = a;
    step(skips, 6, 0.1f, 1.0f, a, gradients);
    step(resumed, 6, 0.1f, 1.0f, c, gradients);
    CHECK(same_bits(a, c));
  }
}

TEST_CASE("an exchange is told which steps are skipped") {
  const Layout layout;
  memory::Host space;
  auto skips =
      arena<optim::Adam>(space, optim::Adam::Options{}, layout, optim::Guard{.skip_not_finite = true});
  auto parameters = random_arena(layout, 1), gradients = random_arena(layout, 2, true);
  optim::Bound<optim::Adam> bound(skips, parameters.data(), gradients.data());
  const float sound = gradients[50];
  for (const float g : {sound, inf, sound}) {
    gradients[50] = g;
    skips.begin(1, 0.1f);
    bound.arrived(exchanged, 1.0f);
    CHECK(bound.decide() == (g == inf ? Decision::skip : Decision::apply));
  }
}

TEST_CASE("without skip_not_finite, gradients that are not finite are applied, as in PyTorch") {
  const Layout layout;
  memory::Host space;
  auto made = arena<optim::Sgd>(space, optim::Sgd::Options{.momentum = 0}, layout, {.max_norm = 1});
  auto parameters = random_arena(layout, 1);
  auto gradients = random_arena(layout, 2, true);
  gradients[3] = inf;  // the factor is 1 / inf: 0 for all other gradients
  const auto before = parameters;
  step(made, 1, 0.1f, 1.0f, parameters, gradients);
  CHECK(std::isnan(parameters[3]));
  CHECK(parameters[4] == before[4]);
}

TEST_CASE("a rule may ask for the norms of each tensor, in which its dead taps count") {
  const Layout layout;
  memory::Host space;
  auto made = arena<Trusting>(space, Trusting::Options{}, layout, {.max_norm = 1});
  CHECK(made.decides());
  CHECK(made.partial().size() == 6);
  auto parameters = random_arena(layout, 1);
  const auto before = parameters;
  const auto gradients = random_arena(layout, 2, true);
  step(made, 1, 0.1f, 1.0f, parameters, gradients);
  const double factor = 1 / (std::sqrt(squares(gradients, exchanged)) + 1e-6);
  for (const auto& tensor : layout.tensors) {
    const double g = std::sqrt(squares(gradients, tensor.live)) * factor;
    const double p = std::sqrt(squares(before, tensor.live) + squares(before, tensor.dead));
    for (std::int64_t i = tensor.live.begin; i < tensor.live.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      CHECK(static_cast<double>(parameters[at]) ==
            doctest::Approx(static_cast<double>(before[at]) -
                            0.1 * p / g * factor * static_cast<double>(gradients[at]))
                .epsilon(1e-5));
    }
  }
}

TEST_CASE("ranks with parts of the gradient decide alike, from the sum of their partial results") {
  const Layout layout;
  memory::Host space;
  const auto before = random_arena(layout, 1), gradients = random_arena(layout, 2, true);
  auto alone = arena<Trusting>(space, Trusting::Options{}, layout, {.max_norm = 1});
  auto expected = before;
  step(alone, 1, 0.1f, 1.0f, expected, gradients);
  // Two ranks with a shard each; the cut is inside a tensor.
  const Range shards[] = {{0, 64}, {64, 96}};
  std::vector<optim::Arena<Trusting>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(arena<Trusting>(space, Trusting::Options{}, layout, {.max_norm = 1}));
  auto parameters = before;
  std::vector<double> sums(6);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    optim::Bound<Trusting> bound(ranks[rank], parameters.data(), gradients.data());
    CHECK(bound.decides());
    ranks[rank].begin(1, 0.1f);
    bound.arrived(shards[rank], 1.0f);
    for (std::size_t i = 0; i < 6; ++i) sums[i] += bound.partial()[i];
  }
  for (auto& rank : ranks) {
    optim::Bound<Trusting> bound(rank, parameters.data(), gradients.data());
    std::copy(sums.begin(), sums.end(), bound.partial().begin());
    CHECK(bound.decide() == Decision::apply);
  }
  for (std::size_t rank = 0; rank < 2; ++rank)
    optim::Bound<Trusting>(ranks[rank], parameters.data(), gradients.data()).update(shards[rank], 1.0f);
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(parameters[i] == doctest::Approx(expected[i]).epsilon(1e-6));
}

TEST_CASE("a step allocates nothing") {
  const Layout layout;
  const auto count = [&](auto made) {
    auto parameters = random_arena(layout, 1);
    const auto gradients = random_arena(layout, 2, true);
    const long before = allocations;
    for (int number = 1; number <= 3; ++number) step(made, number, 0.1f, 1.0f, parameters, gradients);
    return allocations - before;
  };
  memory::Host space;
  const optim::Guard guard{.max_norm = 1, .skip_not_finite = true};
  CHECK(allocations > 0);
  CHECK(count(arena<optim::Adam>(space, optim::Adam::Options{.weight_decay = 0.1f}, layout)) == 0);
  CHECK(count(arena<optim::Adam>(space, optim::Adam::Options{.weight_decay = 0.1f}, layout, guard)) == 0);
  CHECK(count(arena<optim::Any>(space, optim::Adam::Options{.weight_decay = 0.1f}, layout, guard)) == 0);
  CHECK(count(arena<Trusting>(space, Trusting::Options{}, layout, guard)) == 0);
}

TEST_CASE("invalid options are refused") {
  const Layout layout;
  memory::Host space;
  CHECK_THROWS_WITH_AS(arena<optim::Sgd>(space, optim::Sgd::Options{}, layout, {.max_norm = -1}),
                       "clipping: the largest norm must be a number of at least 0, not -1", ConfigError);
  CHECK_THROWS_WITH_AS(arena<optim::Sgd>(space, optim::Sgd::Options{}, layout,
                                         {.max_norm = std::numeric_limits<float>::quiet_NaN()}),
                       "clipping: the largest norm must be a number of at least 0, not nan", ConfigError);
  CHECK_THROWS_AS(arena<optim::Sgd>(space, optim::Sgd::Options{.lr = -1}, layout), ConfigError);
}
