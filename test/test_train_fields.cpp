// SANITIZE: none
// What ranks must agree on: if an agreed field of a Trainer's configuration, optimizer, schedule, groups or
// Exec differs on one rank, the error on every rank names the field and that rank.
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "train_support.hpp"
#include <convoy/graph/dynamic.hpp>
#include <convoy/optim/lamb.hpp>
#include <convoy/optim/lookahead.hpp>

using namespace convoy;
using namespace train_test;
using exec::Reference;
using transport::Threads;

namespace {

constexpr int ranks = 3, differs = 2;

/// A model of the same size as Plain.
struct Averaged {
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.avg_pool(g.relu(g.conv2d(x, {.channels = 6, .bias = true})));
    x = g.relu(g.conv2d(x, {.channels = 8, .stride = 2}));
    x = g.linear(g.flatten(x), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

struct Largest {
  static constexpr double measure(auto x) { return *std::max_element(x.begin(), x.end()); }
};
struct Smallest {
  static constexpr double measure(auto x) { return *std::min_element(x.begin(), x.end()); }
};

/// What may differ between two models of the same operations.
enum class Differs { nothing, output, name, metric };

/// The first of two layers is computed together with its activation, and thus after the second one, unless
/// its own value is an output.
template <Differs differs>
struct Branched {
  static constexpr void define(auto& g) {
    const auto x = g.flatten(g.input("image", image));
    const auto a = g.linear(x, {.features = classes, .name = "a"});
    const auto b = g.linear(x, {.features = classes, .name = "b"});
    const auto y = g.add(g.relu(a), b);
    g.output(differs == Differs::name ? "scores" : "logits", y);
    if constexpr (differs == Differs::output) g.output("a", a);
    if constexpr (differs == Differs::metric)
      g.metric("extreme", Smallest{}, y);
    else
      g.metric("extreme", Largest{}, y);
    g.loss(g.cross_entropy(y, g.label("label", classes)));
  }
};

/// Sets another valid value.
template <class M>
void change(M& member) {
  if constexpr (std::is_same_v<M, bool>)
    member = !member;
  else if constexpr (std::is_enum_v<M>)
    member = member == M{} ? static_cast<M>(1) : M{};
  else if constexpr (std::is_same_v<M, std::string>)
    member = "linear*";
  else if constexpr (std::is_floating_point_v<M>)
    member = member == M{} ? 1 : member / 2;
  else if constexpr (std::is_arithmetic_v<M>)
    member = member == M{} ? static_cast<M>(1) : static_cast<M>(member * 2);
  else if constexpr (std::is_same_v<M, std::optional<graph::BucketOptions>>)
    member = graph::BucketOptions{64, 64};
  else if constexpr (std::is_same_v<M, std::optional<float>>)
    member = 0.25f;
  else if constexpr (std::is_same_v<M, std::vector<std::int64_t>>)
    member.push_back(5);
  else
    member.push_back({.match = "*bias", .lr_scale = 2});
}

/// Changes the agreed field number `target` and returns its name; empty if there are fewer.
template <class T>
std::string flip(T& options, int target, const std::string& prefix, int& next) {
  std::string flipped;
  fields::for_each(options, [&](std::string_view name, auto& member, auto agreed) {
    using M = std::remove_cvref_t<decltype(member)>;
    const std::string full = prefix + std::string(name);
    if constexpr (agreed.value) {
      if constexpr (fields::Listed<M>) {
        if (const std::string inner = flip(member, target, full + ".", next); !inner.empty()) flipped = inner;
      } else if (next++ == target) {
        change(member);
        flipped = full;
      }
    }
  });
  return flipped;
}

/// Each rank's error message when the ranks open a Trainer, rank `differs` with another configuration.
template <class Trainer, class Config>
std::vector<std::string> opened(const Config& config, const Config& other) {
  std::vector<std::string> said(ranks);
  try {
    Threads::World(ranks).run([&](const Threads& endpoint) {
      try {
        Trainer trainer(endpoint.rank() == differs ? other : config, endpoint,
                        comm::Options{.deadline = Seconds(20)});
      } catch (const ConfigError& error) {
        said[static_cast<std::size_t>(endpoint.rank())] = error.what();
      }
    });
  } catch (const Error&) {
  }
  return said;
}

template <class Trainer, class Config>
int check(const Config& config) {
  for (const std::string& said : opened<Trainer>(config, config)) CHECK(said == "");
  for (int target = 0;; ++target) {
    Config other = config;
    int next = 0;
    const std::string name = flip(other, target, "", next);
    if (name.empty()) return target;
    CAPTURE(name);
    for (const std::string& sentence : opened<Trainer>(config, other)) {
      CAPTURE(sentence);
      CHECK(sentence.starts_with("rank 2 differs from rank 0 in "));
      CHECK(sentence.find(" in " + name + ": ") != std::string::npos);
    }
  }
}

/// Each of two ranks' error message when `make(endpoint)` opens a Trainer.
std::vector<std::string> said(auto make) {
  std::vector<std::string> all(2);
  try {
    Threads::World(2).run([&](const Threads& endpoint) {
      try {
        make(endpoint);
      } catch (const ConfigError& error) {
        all[static_cast<std::size_t>(endpoint.rank())] = error.what();
      }
    });
  } catch (const Error&) {
  }
  return all;
}

/// A configuration that stays valid if any one field changes, so that only the difference is refused.
template <class Config>
Config valid() {
  Config config;
  config.batch = 4;
  config.schedule = {.warmup = 1, .decay = optim::Decay::none, .total = 100, .every = 10};
  config.groups = {{.match = "conv*"}};
  return config;
}

}  // namespace

TEST_CASE("each agreed field of a configuration with Adam is compared") {
  using T = Trainer<Plain, optim::Adam, comm::Ring<Threads>, Reference<float>>;
  CHECK(check<T>(valid<T::Config>()) == 26);
}

TEST_CASE("each agreed field of a configuration with SGD is compared") {
  using T = Trainer<Plain, optim::Sgd, comm::Ring<Threads>, Reference<float>>;
  CHECK(check<T>(valid<T::Config>()) == 25);
}

TEST_CASE("each agreed field of a configuration with a decorated rule is compared") {
  using T = Trainer<Plain, optim::Lookahead<optim::Lamb>, comm::Ring<Threads>, Reference<float>>;
  CHECK(check<T>(valid<T::Config>()) == 29);
}

TEST_CASE("fields of groups are compared") {
  using T = Trainer<Plain, optim::Adam, comm::Ring<Threads>, Reference<float>>;
  const auto config = valid<T::Config>();
  for (int target = 0; target < 4; ++target) {
    auto other = config;
    int next = 0;
    const std::string name = flip(other.groups[0], target, "", next);
    REQUIRE(!name.empty());
    CAPTURE(name);
    for (const std::string& sentence : opened<T>(config, other))
      CHECK(sentence.starts_with("rank 2 differs from rank 0 in groups: "));
  }
}

TEST_CASE("a model and an optimizer that differ are named") {
  using A = Trainer<Plain, optim::Adam, comm::Ring<Threads>, Reference<float>>;
  using B = Trainer<Normed, optim::Adam, comm::Ring<Threads>, Reference<float>>;
  using C = Trainer<Plain, optim::Sgd, comm::Ring<Threads>, Reference<float>>;
  using D = Trainer<Averaged, optim::Adam, comm::Ring<Threads>, Reference<float>>;
  for (const auto& sentence : said([](const Threads& e) {
         e.rank() == 0 ? static_cast<void>(A({}, e)) : static_cast<void>(B({}, e));
       }))
    CHECK(sentence ==
          "rank 1 differs from rank 0 in model: 129 parameters, 7 operations, image [1x8x8] instead of 657 "
          "parameters, 8 operations, image [1x8x8]");
  for (const auto& sentence : said([](const Threads& e) {
         e.rank() == 0 ? static_cast<void>(A({}, e)) : static_cast<void>(D({}, e));
       }))
    CHECK(sentence.starts_with(
        "rank 1 differs from rank 0 in model: both say 657 parameters, 8 operations, image [1x8x8], but "
        "their details differ ("));
  for (const auto& sentence : said([](const Threads& e) {
         e.rank() == 0 ? static_cast<void>(A({}, e)) : static_cast<void>(C({}, e));
       }))
    CHECK(sentence.starts_with("rank 1 differs from rank 0 in optimizer: sgd instead of adam"));
}

TEST_CASE("models that differ only in an output, its name or what a metric measures are told apart") {
  using Same = Trainer<Branched<Differs::nothing>, optim::Sgd, comm::Ring<Threads>, Reference<float>>;
  const auto beside = []<class Model>(Model) {
    using Other = Trainer<Model, optim::Sgd, comm::Ring<Threads>, Reference<float>>;
    return said([](const Threads& e) {
      e.rank() == 0 ? static_cast<void>(Same({}, e)) : static_cast<void>(Other({}, e));
    });
  };
  // The gradients of the two layers would be summed crosswise.
  CHECK(plan_of<Branched<Differs::nothing>>.exchange_order[0] !=
        plan_of<Branched<Differs::output>>.exchange_order[0]);
  for (const std::string& sentence : beside(Branched<Differs::nothing>{})) CHECK(sentence == "");
  for (const auto& both : {beside(Branched<Differs::output>{}), beside(Branched<Differs::name>{}),
                           beside(Branched<Differs::metric>{})})
    for (const std::string& sentence : both)
      CHECK(sentence.starts_with("rank 1 differs from rank 0 in model: both say 650 parameters"));
}

TEST_CASE("ranks of which only some keep dead taps are refused, even if their arenas are equally large") {
  const auto define = [](auto& g) {
    auto x = g.max_pool(g.input("image", image), {.kernel = 8});
    x = g.conv2d(x, {.channels = 1, .kernel = 3});
    g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = classes}), g.label("label", classes)));
  };
  const DynamicPlan lean(define), kept(lean, {.keep_dead_taps = true});
  CHECK(lean.plan().sizes.exchanged == kept.plan().sizes.exchanged);
  using T = train::PlanTrainer<optim::Sgd, comm::Ring<Threads>, Reference<float>>;
  for (const std::string& sentence : said([&](const Threads& e) { T(e.rank() == 0 ? lean : kept, {}, e); }))
    CHECK(sentence == "rank 1 differs from rank 0 in dead taps: 0 instead of 8");
}
