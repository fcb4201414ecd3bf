// Rules: against PyTorch's numbers, a user's own rule, and a rule that is chosen at run time.
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "fixtures/fixtures.hpp"
#include "optim_support.hpp"
#include <convoy/optim/any.hpp>
#include <convoy/optim/registry.hpp>
#include <convoy/optim/schedule.hpp>

using namespace optim_test;

namespace {

// The largest difference from PyTorch's parameters after any of the updates that the file has.
template <class R>
double difference(const fixtures::File& file, const std::string& name, const typename R::Options& options) {
  const auto& sizes = file["sizes"].values;
  const auto& seen = file["seen"].values;
  std::vector<optim::ArenaTensor> tensors;
  std::int64_t end = 0;
  for (const double size : sizes) {
    tensors.push_back({{end, end + static_cast<std::int64_t>(size)}, {}, 0});
    end += optim::arena_grain;
  }
  const Range all{0, end};
  const optim::Group group;
  memory::Host space;
  optim::Arena<R> arena(space, options, tensors, {&group, 1});
  arena.own({&all, 1});
  std::vector<float> parameters(static_cast<std::size_t>(end)), gradients(parameters.size());
  const auto put = [&](std::vector<float>& into, std::size_t i, const std::vector<float>& values) {
    std::copy(values.begin(), values.end(), into.begin() + tensors[i].live.begin);
  };
  for (std::size_t i = 0; i < tensors.size(); ++i)
    put(parameters, i, fixtures::updates::start(static_cast<std::int64_t>(i), tensors[i].live.size()));
  double largest = 0;
  std::size_t row = 0;
  for (std::int64_t t = 1; row < seen.size(); ++t) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      put(gradients, i, fixtures::updates::gradient(static_cast<std::int64_t>(i), tensors[i].live.size(), t));
    gradients[0] = 0;
    arena.begin(t, options.lr);
    arena.update(all, 1.0f, parameters.data(), gradients.data());
    if (static_cast<double>(t) != seen[row]) continue;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& expected = file[concat(name, "/parameters.", i)].values;
      const auto size = static_cast<std::size_t>(tensors[i].live.size());
      for (std::size_t k = 0; k < size; ++k)
        largest = std::max(
            largest,
            std::abs(static_cast<double>(parameters[static_cast<std::size_t>(tensors[i].live.begin) + k]) -
                     expected[row * size + k]));
    }
    ++row;
  }
  return largest;
}

std::string text_of(const optim::Any::Options& options) {
  std::string text;
  optim::Optimizer<optim::Any>(options).for_each_text(
      "optimizer", [&](std::string_view name, const std::string& value, bool agreed) {
        text.append(name).append("=").append(value).append(agreed ? " " : "(local) ");
      });
  return text;
}

template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was refused";
}

// Options that list no fields.
struct Unlisted : Patient {
  struct Options {
    float lr = 1;
  };
};

}  // namespace

TEST_CASE("what is and what is not a rule") {
  static_assert(optim::Rule<optim::Sgd> && optim::Rule<optim::Adam>);
  static_assert(optim::Rule<optim::AdamW> && optim::Rule<optim::Lars> && optim::Rule<optim::Lamb>);
  static_assert(optim::Rule<Patient> && optim::Rule<Plainest> && optim::Rule<Trusting>);
  static_assert(!optim::Rule<Unlisted> && !optim::Rule<int> && !optim::Rule<optim::Any>);
  static_assert(optim::Optimizing<optim::Any>);
  static_assert(fields::complete<optim::Schedule> && fields::complete<optim::Guard>);
  static_assert(fields::complete<optim::GroupOptions>);
}

TEST_CASE("SGD, Adam and AdamW compute what PyTorch computes, over a hundred updates") {
  const fixtures::File file("optimizers.txt");
  for (const std::string name :
       {"sgd", "sgd.decay", "sgd.momentum", "sgd.momentum.decay", "sgd.nesterov", "sgd.nesterov.decay"}) {
    CAPTURE(name);
    const auto given = [&](const char* field) {
      return static_cast<float>(file[name + "/" + field].scalar());
    };
    CHECK(difference<optim::Sgd>(file, name,
                                 {.lr = given("lr"),
                                  .momentum = given("momentum"),
                                  .weight_decay = given("weight_decay"),
                                  .nesterov = given("nesterov") != 0}) < 1e-5);
  }
  const auto check_adam = [&]<class R>(std::type_identity<R>, const std::string& name) {
    CAPTURE(name);
    const auto given = [&](const char* field) {
      return static_cast<float>(file[name + "/" + field].scalar());
    };
    CHECK(difference<R>(file, name,
                        {.lr = given("lr"),
                         .beta1 = given("beta1"),
                         .beta2 = given("beta2"),
                         .epsilon = given("epsilon"),
                         .weight_decay = given("weight_decay")}) < 1e-5);
  };
  for (const char* name : {"adam", "adam.decay", "adam.betas"})
    check_adam(std::type_identity<optim::Adam>{}, name);
  check_adam(std::type_identity<optim::AdamW>{}, "adamw");
}

TEST_CASE("a user's own rule, with three slots and without weight decay, computes what a plain loop does") {
  const Layout layout;
  memory::Host space(std::pmr::new_delete_resource(), 2);
  auto arena = optim_test::arena<Patient>(space, Patient::Options{.lr = 0.5f}, layout);
  std::vector<float> parameters(Layout::size), expected(Layout::size), gathered(Layout::size),
      moved(Layout::size);
  // Small multiples of 1/8 and rates that are powers of two: no rounding, so the bits must be equal.
  Philox random(5);
  for (int number = 1; number <= 12; ++number) {
    std::vector<float> gradients(Layout::size);
    for (std::int64_t i = 0; i < Layout::exchanged; ++i)
      if (layout.used(i))
        gradients[static_cast<std::size_t>(i)] = static_cast<float>(random.next() % 17) / 8.0f - 1.0f;
    step(arena, number, 0.5f, 0.25f, parameters, gradients);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      gathered[i] += gradients[i] * 0.25f;
      if (number % 2 != 0) continue;
      moved[i] = number / 2 % 2 == 0 ? moved[i] * -0.5f : gathered[i] * 0.5f;
      expected[i] -= moved[i];
      gathered[i] = 0;
    }
  }
  CHECK(parameters == expected);
  CHECK(arena.state_bytes() == Layout::exchanged * 3 * sizeof(float));
  std::vector<std::string> names;
  arena.visit_state([&](std::string_view slot, Range range, const float* values, std::int64_t count) {
    names.emplace_back(slot);
    CHECK(range == exchanged);
    CHECK(count == Layout::exchanged);
    if (slot == "slot2") CHECK(values[0] == 6.0f);
    if (slot == "slot1")
      CHECK(std::vector<float>(values, values + count) ==
            std::vector<float>(moved.begin(), moved.begin() + Layout::exchanged));
  });
  CHECK(names == std::vector<std::string>{"slot0", "slot1", "slot2"});
}

TEST_CASE("a rule that is chosen at run time computes the bits of one chosen while compiling") {
  const Layout layout;
  const auto compare = [&]<class R>(const typename R::Options& options, const optim::Any::Options& any) {
    memory::Host space;
    auto fixed = arena<R>(space, options, layout);
    auto chosen = arena<optim::Any>(space, any, layout);
    auto a = random_arena(layout, 1), b = a;
    for (int number = 1; number <= 5; ++number) {
      const auto gradients = random_arena(layout, 1 + static_cast<std::uint64_t>(number), true);
      step(fixed, number, 0.02f, 0.5f, a, gradients);
      step(chosen, number, 0.02f, 0.5f, b, gradients);
    }
    CHECK(a != random_arena(layout, 1));
    CHECK(same_bits(a, b));
    CHECK(same_bits(all_state(fixed), all_state(chosen)));
  };
  compare.operator()<optim::Sgd>({.lr = 0.01f, .weight_decay = 0.1f},
                                 optim::Sgd::Options{.lr = 0.01f, .weight_decay = 0.1f});
  compare.operator()<optim::Adam>({.weight_decay = 0.1f}, optim::make("adam", {{"weight_decay", 0.1f}}));
  compare.operator()<optim::AdamW>({.weight_decay = 0.1f}, optim::make("adamw", {{"weight_decay", 0.1f}}));
  compare.operator()<optim::Lars>({.scale_all = false}, optim::make("lars", {{"scale_all", 0}}));
  compare.operator()<Patient>({.lr = 0.1f}, optim::Any::Options::of<Patient>({.lr = 0.1f}));
  compare.operator()<Plainest>({}, Plainest::Options{});
  compare.operator()<Trusting>({}, optim::Any::Options::of<Trusting>({}));
}

TEST_CASE("options list their fields, those of a rule chosen at run time too") {
  CHECK(text_of({}) ==
        "optimizer=sgd optimizer.lr=0.01 optimizer.momentum=0.9 optimizer.weight_decay=0 "
        "optimizer.nesterov=false ");
  CHECK(text_of(optim::Any::Options::of<Patient>({.note = "x"})) ==
        "optimizer=patient optimizer.lr=0.25 optimizer.every=2 optimizer.note=x(local) ");
  CHECK(text_of(optim::Adam::Options{.beta2 = 0.99f}) == text_of(optim::make("adam", {{"beta2", 0.99f}})));
  std::string schedule;
  fields::for_each_text("schedule", optim::Schedule{.warmup = 5, .decay = optim::Decay::cosine, .total = 9},
                        [&](std::string_view name, const std::string& text, bool) {
                          schedule.append(name).append("=").append(text).append(" ");
                        });
  CHECK(schedule ==
        "schedule.warmup=5 schedule.decay=cosine schedule.total=9 schedule.end=0 schedule.power=2 "
        "schedule.every=0 schedule.milestones=[] schedule.gamma=0.1 schedule.scale_with_world=false ");
}

TEST_CASE("the registry makes rules by name, and errors list what it has") {
  CHECK(optim::Optimizer<optim::Any>(optim::make("sgd", {{"nesterov", 1}, {"lr", 0.5}})).facts().lr == 0.5f);
  CHECK(text_of(optim::make("sgd", {{"nesterov", 1}})).find("nesterov=true") != std::string::npos);
  CHECK(optim::rules().size() == 6);
  CHECK(optim::rules()[1].name == "adam");
  CHECK(optim::rules()[0].fields == std::vector<std::string>{"lr", "momentum", "weight_decay", "nesterov"});
  CHECK(refusal([] { optim::make("adagrad"); }) ==
        "there is no optimizer called adagrad; there are sgd, adam, adamw, lars, lamb, muon");
  CHECK(refusal([] {
          optim::make("adam", {{"momentum", 0.9}});
        }) == "optimizer adam has no option momentum; it has lr, beta1, beta2, epsilon, weight_decay");
  CHECK(refusal([] {
          optim::make("adam", {{"lr", -1}});
        }) == "optimizer adam: the learning rate must be a number of at least 0, not -1");
  CHECK(refusal([] { optim::Optimizer<optim::Adam>({.lr = std::numeric_limits<float>::quiet_NaN()}); }) ==
        "optimizer adam: the learning rate must be a number of at least 0, not nan");
  CHECK(refusal([] { optim::Optimizer<optim::Adam>({.lr = std::numeric_limits<float>::infinity()}); }) ==
        "optimizer adam: the learning rate must be a number of at least 0, not inf");
  CHECK(refusal([] {
          optim::make("muon", {{"iterations", 2.7}});
        }) == "optimizer muon: iterations must be a whole number, not 2.7");
  CHECK(refusal([] {
          optim::make("muon", {{"iterations", 1e10}});
        }) == "optimizer muon: iterations must be a whole number, not 1e+10");
  CHECK(refusal([] {
          optim::make("sgd", {{"nesterov", 0.9}});
        }) == "optimizer sgd: nesterov must be 0 or 1, not 0.9");
  CHECK(refusal([] { optim::Optimizer<optim::Sgd>({.weight_decay = -0.5f}); }) ==
        "optimizer sgd: the weight decay must be a number of at least 0, not -0.5");
}

TEST_CASE("options with which a rule would diverge or divide by zero are refused") {
  const auto refused = []<class R>(std::type_identity<R>, const typename R::Options& options) {
    return refusal([&] { optim::Optimizer<R> made(options); });
  };
  const std::type_identity<optim::Adam> adam;
  CHECK(refused(adam, {.beta1 = 1}) == "optimizer adam: beta1 must be from 0 to less than 1, not 1");
  CHECK(refused(adam, {.beta1 = -0.5f}) == "optimizer adam: beta1 must be from 0 to less than 1, not -0.5");
  CHECK(refused(adam, {.beta2 = 9.99f}) == "optimizer adam: beta2 must be from 0 to less than 1, not 9.99");
  CHECK(refused(adam, {.epsilon = 0}) == "optimizer adam: epsilon must be positive, not 0");
  CHECK(refused(std::type_identity<optim::AdamW>{}, {.beta2 = 1}) ==
        "optimizer adamw: beta2 must be from 0 to less than 1, not 1");
  CHECK(refused(std::type_identity<optim::Lamb>{}, {.epsilon = -1}) ==
        "optimizer lamb: epsilon must be positive, not -1");
  CHECK(refused(std::type_identity<optim::Muon>{}, {.beta1 = 1}) ==
        "optimizer muon: beta1 must be from 0 to less than 1, not 1");
  CHECK(refused(std::type_identity<optim::Muon>{}, {.rest = -1}) ==
        "optimizer muon: rest must be 0 or more, not -1");
  CHECK(refused(std::type_identity<optim::Sgd>{}, {.momentum = -0.9f}) ==
        "optimizer sgd: the momentum must be 0 or more, not -0.9");
  CHECK(refused(std::type_identity<optim::Lars>{}, {.momentum = std::nanf("")}) ==
        "optimizer lars: the momentum must be 0 or more, not nan");
}

TEST_CASE("patterns of names") {
  static_assert(optim::matches("*", "") && optim::matches("*", "a.b"));
  static_assert(optim::matches("layer1.*", "layer1.0.conv1.weight"));
  static_assert(!optim::matches("layer1.*", "layer10.0.conv1.weight"));
  static_assert(optim::matches("*.bias", "a.b.bias") && !optim::matches("*.bias", "a.bias.b"));
  static_assert(optim::matches("a*b*c", "aXbXbc") && !optim::matches("a*b*c", "aXcXb"));
  static_assert(optim::matches("fc.weight", "fc.weight") && !optim::matches("fc.weight", "fc.weights"));
  static_assert(!optim::matches("", "a") && optim::matches("", ""));
}

TEST_CASE("a parameter is in the first group that matches, and biases decay only where that is asked for") {
  const std::vector<optim::GroupOptions> options = {{.match = "fc.*", .lr_scale = 0.5f},
                                                    {.match = "*.bias", .weight_decay = 0.2f},
                                                    {.match = "conv*", .frozen = true}};
  const std::vector<optim::GroupedParameter> names = {{"fc.weight", true},
                                                      {"fc.bias", false},
                                                      {"norm.bias", false},
                                                      {"conv.weight", true},
                                                      {"norm.weight", false}};
  const auto of = [&](const optim::Groups& groups, std::size_t p) {
    return groups.list[static_cast<std::size_t>(groups.of[p])];
  };
  const auto groups = optim::group(names, options);
  CHECK(of(groups, 0) == optim::Group{.lr_scale = 0.5f});
  CHECK(of(groups, 1) == optim::Group{.lr_scale = 0.5f, .weight_decay = 0.0f});
  CHECK(of(groups, 2) == optim::Group{.weight_decay = 0.2f});
  CHECK(of(groups, 3) == optim::Group{.frozen = true});
  CHECK(of(groups, 4) == optim::Group{.weight_decay = 0.0f});
  const auto all = optim::group(names, options, true);
  CHECK(of(all, 1) == optim::Group{.lr_scale = 0.5f});
  CHECK(of(all, 4) == optim::Group{});
  CHECK(optim::group(names, {}).list.size() == 2);
  CHECK(optim::group(names, {}, true).list.size() == 1);

  const auto refused = [&](const optim::GroupOptions& group) {
    return refusal([&] { optim::group(names, {&group, 1}); });
  };
  CHECK(refused({.match = "layer1*"}) ==
        "group 0: no parameter that the model trains has a name like 'layer1*'");
  const std::vector<optim::GroupOptions> shadowed = {{.match = "*.bias"}, {}, {.match = "fc.*"}};
  CHECK(refusal([&] { optim::group(names, shadowed); }) ==
        "group 2 ('fc.*'): all parameters with such a name belong to groups before it; put the group before "
        "those");
  CHECK(refused({.match = "fc*", .lr_scale = -1}) ==
        "group 0 ('fc*'): the scale of the learning rate must be a number of at least 0, not -1");
  CHECK(refused({.match = "fc*", .weight_decay = -1.0f}) ==
        "group 0 ('fc*'): the weight decay must be a number of at least 0, not -1");
  CHECK(refused({.match = "fc*", .lr_scale = std::numeric_limits<float>::infinity()}) ==
        "group 0 ('fc*'): the scale of the learning rate must be a number of at least 0, not inf");
}
