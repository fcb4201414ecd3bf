// ALSO: CONVOY_ISA=baseline CONVOY_ISA=avx2
// Rules against their papers: a hundred updates of three tensors, by one rank and by ranks with shards, with
// one thread and with several, in vectors of every width.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "fixtures/fixtures.hpp"
#include "optim_support.hpp"
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/ema.hpp>
#include <convoy/optim/lamb.hpp>
#include <convoy/optim/lars.hpp>
#include <convoy/optim/lookahead.hpp>

using namespace optim_test;

namespace {

const fixtures::File& file() {
  static const fixtures::File read("rules.txt");
  return read;
}

float given(const std::string& name, const char* option) {
  return file().has(name + "/" + option) ? static_cast<float>(file()[name + "/" + option].scalar()) : 0.0f;
}

// The tensors of the file in the layout of an arena: aligned, with zeros between them.
struct Tensors {
  std::vector<optim::ArenaTensor> list;
  std::vector<optim::Group> groups{{}, {.weight_decay = 0.0f}};
  Range whole;

  Tensors() {
    for (const double elements : file()["sizes"].values) {
      const auto count = static_cast<std::int64_t>(elements);
      list.push_back({{whole.end, whole.end + count}, {}, list.empty() ? 0 : 1});
      whole.end += (count + 15) / 16 * 16;
    }
  }
  // An arena with vector number `at` of the file's `values`.
  std::vector<float> spread(const std::vector<double>& values, std::size_t at = 0) const {
    std::vector<float> arena(static_cast<std::size_t>(whole.end));
    const double* next = values.data() + at * file()["start"].values.size();
    for (const auto& tensor : list)
      for (auto i = tensor.live.begin; i < tensor.live.end; ++i)
        arena[static_cast<std::size_t>(i)] = static_cast<float>(*next++);
    return arena;
  }
};

// Trains with one rank per shard, with the calls and the sums of partial results of a sharded exchange.
// Returns the parameters after each update that the file records, and the moving averages in `average`.
template <class R>
std::vector<std::vector<float>> trained(const typename R::Options& options, const std::string& name,
                                        const std::vector<Range>& shards, int threads = 1,
                                        std::vector<float>* average = nullptr) {
  const Tensors tensors;
  const optim::Guard guard{.max_norm = given(name, "max_norm")};
  memory::Host space(std::pmr::new_delete_resource(), threads);
  std::vector<optim::Arena<R>> ranks;
  for (const Range& shard : shards) {
    ranks.emplace_back(space, options, tensors.list, tensors.groups, guard);
    ranks.back().own({&shard, 1});
  }
  auto parameters = tensors.spread(file()["start"].values);
  std::vector<std::vector<float>> seen;
  const auto steps = static_cast<std::size_t>(file()["gradients"].dims[0]);
  for (std::size_t t = 0; t < steps; ++t) {
    const auto gradients = tensors.spread(file()["gradients"].values, t);
    exchange(ranks, shards, static_cast<std::int64_t>(t + 1), optim::Optimizer<R>(options).facts().lr,
             parameters, gradients);
    for (const double shown : file()["seen"].values)
      if (shown == static_cast<double>(t + 1)) seen.push_back(parameters);
  }
  if (average != nullptr) {
    average->resize(parameters.size());
    for (auto& rank : ranks)
      rank.visit_state([&](std::string_view slot, Range range, const float* values, std::int64_t count) {
        if (slot == "ema") std::copy_n(values, count, average->begin() + range.begin);
      });
  }
  return seen;
}

// The largest difference, relative to the largest expected number.
double difference(const std::vector<float>& got, const std::vector<float>& expected) {
  double off = 0, most = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    off = std::max(off, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    most = std::max(most, std::abs(static_cast<double>(expected[i])));
  }
  return off / most;
}

double difference(const std::vector<std::vector<float>>& got, const std::string& name) {
  const Tensors tensors;
  double largest = 0;
  for (std::size_t t = 0; t < got.size(); ++t)
    largest = std::max(largest, difference(got[t], tensors.spread(file()[name + "/parameters"].values, t)));
  return largest;
}

const std::vector<Range> shards = {{0, 16}, {16, 48}, {48, 64}};  // the cuts are inside tensors

template <class R>
void check(const std::string& name, const typename R::Options& options) {
  CAPTURE(name);
  const auto whole = trained<R>(options, name, {{0, 64}});
  CHECK(whole.size() == file()["seen"].values.size());
  CHECK(difference(whole, name) < 1e-6);
  CHECK(difference(trained<R>(options, name, shards), name) < 1e-6);
  CHECK(trained<R>(options, name, {{0, 64}}, 3) == whole);
}

optim::AdamW::Options adamw(const std::string& name) {
  return {.lr = given(name, "lr"),
          .beta1 = given(name, "beta1"),
          .beta2 = given(name, "beta2"),
          .epsilon = given(name, "epsilon"),
          .weight_decay = given(name, "weight_decay")};
}

optim::Lamb::Options lamb(const std::string& name) {
  return {.lr = given(name, "lr"),
          .beta1 = given(name, "beta1"),
          .beta2 = given(name, "beta2"),
          .epsilon = given(name, "epsilon"),
          .weight_decay = given(name, "weight_decay"),
          .scale_all = given(name, "scale_all") != 0};
}

}  // namespace

TEST_CASE("AdamW computes what its paper says") {
  for (const std::string& name : file().cases("adamw")) check<optim::AdamW>(name, adamw(name));
}

TEST_CASE("LARS computes what its paper says") {
  for (const std::string& name : file().cases("lars"))
    check<optim::Lars>(name, {.lr = given(name, "lr"),
                              .momentum = given(name, "momentum"),
                              .weight_decay = given(name, "weight_decay"),
                              .trust = given(name, "trust"),
                              .scale_all = given(name, "scale_all") != 0});
}

TEST_CASE("LAMB computes what its paper says, with norms of the directions of whole tensors") {
  for (const std::string& name : file().cases("lamb")) check<optim::Lamb>(name, lamb(name));
}

TEST_CASE("Lookahead computes what its paper says") {
  check<optim::Lookahead<optim::AdamW>>("lookahead", {.rule = adamw("lookahead"),
                                                      .every = static_cast<int>(given("lookahead", "every")),
                                                      .pull = given("lookahead", "pull")});
}

TEST_CASE("a moving average follows the parameters of a rule, and the rule's bits are those without it") {
  using Averaged = optim::Ema<optim::Lamb>;
  const Averaged::Options options{.rule = lamb("ema"), .keep = given("ema", "keep")};
  check<Averaged>("ema", options);
  std::vector<float> average;
  const auto with = trained<Averaged>(options, "ema", shards, 1, &average);
  CHECK(difference(average, Tensors().spread(file()["ema/average"].values)) < 1e-6);
  CHECK(average != with.back());
  CHECK(with == trained<optim::Lamb>(options.rule, "ema", shards));
}

TEST_CASE("decorators are rules, with the options, state and norms of the rules that they decorate") {
  using Inner = optim::Lookahead<optim::Ema<optim::Lars>>;
  static_assert(optim::Rule<Inner> && optim::Optimizer<Inner>::per_tensor_norms());
  static_assert(!optim::Optimizer<Inner>::has_direction() &&
                optim::Optimizer<optim::Ema<optim::Lamb>>::has_direction());
  static_assert(optim::Rule<optim::Ema<Plainest>> && optim::Ema<Plainest>::slots == 1);
  const optim::Optimizer<Inner> both({.rule = {.rule = {.lr = 3, .weight_decay = 0.5f}}});
  CHECK(both.facts().name == "lookahead(ema(lars))");
  CHECK(both.facts().lr == 3.0f);
  CHECK(both.facts().weight_decay == 0.5f);
  CHECK(both.slot_name(0) == "momentum_buffer");
  CHECK(both.slot_name(1) == "ema");
  CHECK(both.slot_name(2) == "slow");
  std::string text;
  both.for_each_text("optimizer", [&](std::string_view name, const std::string& value, bool) {
    text.append(name).append("=").append(value).append(" ");
  });
  CHECK(text ==
        "optimizer=lookahead(ema(lars)) optimizer.rule.rule.lr=3 optimizer.rule.rule.momentum=0.9 "
        "optimizer.rule.rule.weight_decay=0.5 optimizer.rule.rule.trust=0.001 "
        "optimizer.rule.rule.scale_all=true optimizer.rule.keep=0.999 optimizer.every=5 "
        "optimizer.pull=0.5 ");
  CHECK_THROWS_WITH_AS(optim::Optimizer<Inner>({.every = 0}),
                       "optimizer lookahead(ema(lars)): every must be at least 1, not 0", ConfigError);
  CHECK_THROWS_WITH_AS(optim::Optimizer<optim::Ema<optim::Sgd>>({.keep = 1.5f}),
                       "optimizer ema(sgd): keep must be from 0 to 1, not 1.5", ConfigError);
  CHECK_THROWS_WITH_AS(optim::Optimizer<optim::Lars>({.trust = 0}),
                       "optimizer lars: the trust coefficient 0 is not positive", ConfigError);
  CHECK_THROWS_WITH_AS(optim::Optimizer<Inner>({.rule = {.rule = {.trust = -1}}}),
                       "optimizer lars: the trust coefficient -1 is not positive", ConfigError);
  using Average = optim::Ema<optim::Lookahead<optim::Sgd>>;
  CHECK_THROWS_WITH_AS(optim::Optimizer<Average>({.rule = {.every = 0}}),
                       "optimizer lookahead(sgd): every must be at least 1, not 0", ConfigError);
}

TEST_CASE("decorators accept the limits of their options") {
  for (const float limit : {0.0f, 1.0f}) {
    CHECK_NOTHROW(optim::Optimizer<optim::Ema<optim::Sgd>>({.keep = limit}));
    CHECK_NOTHROW(optim::Optimizer<optim::Lookahead<optim::Sgd>>({.every = 1, .pull = limit}));
  }
}

TEST_CASE("a group changes the decay of a decorated rule") {
  const Layout layout({{.match = "first.*", .weight_decay = 0.0f}});
  memory::Host space;
  using R = optim::Ema<optim::AdamW>;
  auto made = arena<R>(space, R::Options{.rule = {.weight_decay = 0.5f}}, layout);
  std::vector<float> parameters(Layout::size, 1.0f), gradients(Layout::size);
  step(made, 1, 0.5f, 1.0f, parameters, gradients);
  CHECK(parameters[0] == 1.0f);
  CHECK(parameters[32] == 1.0f);  // a bias
  CHECK(parameters[48] == 0.75f);
  CHECK(parameters[112] == 0.75f);  // a dead tap of the second weight
}

TEST_CASE("an element gets the same updates in a vector and alone") {
  constexpr std::size_t n = 47;  // whole vectors of every width, and a remainder
  const auto alike = [](auto rule, const auto& options) {
    using R = decltype(rule);
    memory::Host space;
    const optim::ArenaTensor tensor{{0, n}, {}, 0};
    const optim::Group group;
    optim::Arena<R> arena(space, options, {&tensor, 1}, {&group, 1});
    arena.own({&tensor.live, 1});
    std::vector<float> parameters(n, 0.75f);
    Philox random(5);
    for (int number = 1; number <= 100; ++number) {
      const std::vector<float> gradients(n, random.normal());
      arena.begin(number, 0.01f);
      if (arena.decides()) {
        arena.arrived(tensor.live, 1.0f, parameters.data(), gradients.data());
        CHECK(arena.decide(parameters.data()) == Decision::apply);
      }
      arena.update(tensor.live, 1.0f, parameters.data(), gradients.data());
    }
    CHECK(parameters[0] != 0.75f);
    for (const float p : parameters) CHECK(p == doctest::Approx(parameters[n - 1]).epsilon(1e-6));
  };
  alike(optim::Sgd{}, optim::Sgd::Options{.weight_decay = 0.1f});
  alike(optim::Adam{}, optim::Adam::Options{.weight_decay = 0.1f});
  alike(optim::AdamW{}, optim::AdamW::Options{.weight_decay = 0.1f});
  alike(optim::Lars{}, optim::Lars::Options{.weight_decay = 0.1f, .trust = 0.1f});
  alike(optim::Lamb{}, optim::Lamb::Options{.weight_decay = 0.1f});
  alike(optim::Lookahead<optim::Adam>{}, optim::Lookahead<optim::Adam>::Options{});
}

TEST_CASE("parameters with zero gradients and without weight decay stay as they are") {
  const auto stays = [](auto rule, const auto& options) {
    using R = decltype(rule);
    memory::Host space;
    const Layout layout;
    auto made = arena<R>(space, options, layout);
    const auto before = random_arena(layout, 1);
    auto parameters = before;
    for (int number = 1; number <= 3; ++number)
      step(made, number, 0.1f, 1.0f, parameters, std::vector<float>(before.size()));
    return same_bits(parameters, before);
  };
  CHECK(stays(optim::AdamW{}, optim::AdamW::Options{.weight_decay = 0}));
  CHECK(!stays(optim::AdamW{}, optim::AdamW::Options{.weight_decay = 0.1f}));
  CHECK(stays(optim::Lamb{}, optim::Lamb::Options{.weight_decay = 0}));
  CHECK(!stays(optim::Lamb{}, optim::Lamb::Options{.weight_decay = 0.1f}));
  CHECK(stays(optim::Lars{}, optim::Lars::Options{}));
  CHECK(!stays(optim::Lars{}, optim::Lars::Options{.weight_decay = 0.1f}));
}
