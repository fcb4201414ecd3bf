// SANITIZE: none
// Options that ranks must agree on: for each agreed field of each options type of comm, changed on one rank,
// all ranks report the field and that rank.
#include <atomic>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/comm/policy/hierarchical.hpp>
#include <convoy/comm/registry.hpp>
#include <convoy/comm/transport/group.hpp>
#include <convoy/core/fields.hpp>

using namespace convoy;
using namespace convoy::comm;
using transport::Threads;
using Local = transport::Group<Threads>;

namespace {

constexpr int ranks = 3, differs = 1;
const Options common{.deadline = Seconds(20), .segment_bytes = 1024, .window = 2};

// Changes a value to another valid one.
template <class M>
void change(M& member) {
  if constexpr (std::is_same_v<M, bool>)
    member = !member;
  else if constexpr (std::is_enum_v<M>)
    member = member == M{} ? static_cast<M>(1) : M{};
  else if constexpr (std::is_floating_point_v<M>)
    member *= M{1.5};
  else if constexpr (std::is_integral_v<M>)
    member += 1;
  else
    member.back() += 1;
}

// Changes the agreed field number `target` and returns its name; empty if there are fewer fields.
template <class T>
std::string flip(T& options, int target, const std::string& prefix, int& next) {
  std::string flipped;
  fields::for_each(options, [&](std::string_view name, auto& member, auto agreed) {
    using M = std::remove_cvref_t<decltype(member)>;
    const std::string full = prefix + '.' + std::string(name);
    if constexpr (agreed.value) {
      if constexpr (fields::Listed<M>) {
        if (const std::string inner = flip(member, target, full, next); !inner.empty()) flipped = inner;
      } else if (next++ == target) {
        change(member);
        flipped = full;
      }
    }
  });
  return flipped;
}

// Each rank's error when all make the Comm of `make(endpoint)` and open it.
template <class Make>
std::vector<std::string> opened(const Make& make) {
  std::vector<std::string> said(ranks);
  try {
    Threads::World(ranks).run([&](Threads endpoint) {
      std::vector<float> arena(100);
      const Range whole[] = {{0, 100}};
      try {
        auto exchange = make(endpoint);
        exchange.open({}, {arena, arena, whole});
      } catch (const ConfigError& error) {
        said[static_cast<std::size_t>(endpoint.rank())] = error.what();
      }
    });
  } catch (const Error&) {
  }
  return said;
}

// Flips every agreed field of `options` on one rank in turn and checks the errors; `make(endpoint, options)`
// returns the Comm. Returns the number of fields.
template <class T, class Make>
int check(const T& options, const std::string& prefix, const Make& make) {
  for (const std::string& said : opened([&](Threads endpoint) { return make(endpoint, options); }))
    CHECK(said == "");
  for (int target = 0;; ++target) {
    T other = options;
    int next = 0;
    const std::string name = flip(other, target, prefix, next);
    if (name.empty()) return target;
    CAPTURE(name);
    const auto said = opened(
        [&](Threads endpoint) { return make(endpoint, endpoint.rank() == differs ? other : options); });
    // The policy's name is compared first and differs as well.
    const std::string field = name == "comm.consistency.sync" ? "comm: ps-stale instead of ps" : name + ": ";
    const std::string start = "rank " + std::to_string(differs) + " differs from rank 0 in " + field;
    for (const std::string& sentence : said) {
      CAPTURE(sentence);
      CHECK(sentence.starts_with(start));
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("each agreed field of Options is compared by every policy", C, Ring<Threads>,
                   Tree<Threads>, HalvingDoubling<Threads>, Direct<Threads>, Sharded<Ring<Threads>>,
                   Reproducible<Ring<Threads>>, Compressed<Ring<Threads>, codec::Bf16>,
                   ParameterServer<Threads>) {
  CAPTURE(C::policy());
  CHECK(check(common, "comm", [](Threads endpoint, const Options& o) { return C(endpoint, o); }) == 2);
}

TEST_CASE("each agreed field of Options is compared by an exchange on two levels and by wrappers") {
  const auto levels = [](Threads endpoint, const Options& o) {
    const Nodes nodes(std::vector<int>{0, 0, 1});
    const Local local(endpoint, nodes.members(nodes.node_of(endpoint.rank())));
    return Hierarchical<Direct<Local>, Ring<Threads>>(endpoint, local, nodes, o);
  };
  CHECK(check(common, "comm", levels) == 2);
  CHECK(check(common, "comm", [](Threads endpoint, const Options& o) {
          return Weighted<Background<Ring<Threads>>>({.weights = {1, 2, 3}}, endpoint, o);
        }) == 2);
}

TEST_CASE("ranks may differ in their deadline and in what only rank 0 reckons with") {
  for (const std::string& said : opened([](Threads endpoint) {
         Options mine = common;
         if (endpoint.rank() == differs) {
           mine.deadline = Seconds(30);
           mine.cost = {1, 2, 3};
         }
         return Ring<Threads>(endpoint, mine);
       }))
    CHECK(said == "");
}

TEST_CASE("each agreed field of servers, codecs and weights is compared") {
  CHECK(check(Service{}, "comm", [](Threads endpoint, const Service& s) {
          return AnyParameterServer(endpoint, s, common);
        }) == 4);
  CHECK(check(codec::TopK{}, "comm codec", [](Threads endpoint, const codec::TopK& c) {
          return Compressed<Ring<Threads>, codec::TopK>(endpoint, common, c);
        }) == 2);
  CHECK(check(codec::PowerSgd{}, "comm codec", [](Threads endpoint, const codec::PowerSgd& c) {
          return Compressed<Ring<Threads>, codec::PowerSgd>(endpoint, common, c);
        }) == 2);
  CHECK(check(WeightedOptions{{1, 2, 3}}, "weighted", [](Threads endpoint, const WeightedOptions& w) {
          return Weighted<Ring<Threads>>(w, endpoint, common);
        }) == 1);
}

TEST_CASE("each agreed field of a choice by name is compared") {
  struct Row {
    std::string field, policy;
    Choice here, there;
    std::string values;  // of rank 1 and of rank 0
  };
  const std::vector<Row> rows{
      {"codec", "ring", {}, {.codec = "int8"}, "int8 instead of none"},
      {"codec", "ring", {.codec = "bf16"}, {.codec = "f16"}, "f16 instead of bf16"},
      {"topk.fraction",
       "ring",
       {.codec = "topk"},
       {.codec = "topk", .topk = {.fraction = 0.5}},
       "0.5 instead of 0.01"},
      {"topk.warm_up_steps",
       "ring",
       {.codec = "topk"},
       {.codec = "topk", .topk = {.warm_up_steps = 0}},
       "0 instead of 50"},
      {"powersgd.rank",
       "ring",
       {.codec = "powersgd"},
       {.codec = "powersgd", .powersgd = {.rank = 8}},
       "8 instead of 4"},
      {"powersgd.warm_up_steps",
       "ring",
       {.codec = "powersgd"},
       {.codec = "powersgd", .powersgd = {.warm_up_steps = 0}},
       "0 instead of 50"},
      {"servers", "ps", {}, {.servers = 2}, "2 instead of 1"},
      {"servers_beside", "ps", {}, {.servers_beside = true}, "true instead of false"},
      {"staleness", "ps-stale", {}, {.staleness = 9}, "9 instead of 4"},
      {"weighted", "ring", {}, {.weighted = true}, "true instead of false"},
      {"weights", "ring", {.weights = {1, 2, 3}}, {.weights = {1, 2, 4}}, "[1, 2, 4] instead of [1, 2, 3]"},
  };
  std::set<std::string> seen, all;
  for (const Row& row : rows) {
    CAPTURE(row.field);
    seen.insert(row.field);
    for (const std::string& sentence : opened([&](Threads endpoint) {
           return make(row.policy, endpoint, common, endpoint.rank() == differs ? row.there : row.here);
         }))
      CHECK(sentence == "rank 1 differs from rank 0 in " + row.field + ": " + row.values);
  }
  fields::for_each_text("", Choice{}, [&](std::string_view name, const std::string&, bool agreed) {
    if (agreed) all.insert(std::string(name));
  });
  CHECK(seen == all);
}

TEST_CASE("ranks with another layout are named, whatever the policy") {
  struct Row {
    std::string field;
    Layout layout;
  };
  std::vector<float> arena(101);
  const std::span<float> all(arena), most(all.first(100));
  const Range whole[] = {{0, 100}}, halves[] = {{0, 50}, {50, 100}}, kept[] = {{16, 32}};
  const Row rows[] = {{"gradients: 101 instead of 100", {all, all, whole}},
                      {"parameters: 101 instead of 100", {most, all, whole}},
                      {"buckets: 2 instead of 1", {most, most, halves}},
                      {"kept whole: 1 instead of 0",
                       {.gradients = most, .parameters = most, .buckets = whole, .whole = kept}}};
  for (const Entry& entry : policies) {
    if (entry.name == "none" || !offers<Threads>(entry.name)) continue;
    for (const Row& row : rows) {
      std::atomic<int> told{0};
      Threads::World(ranks).run([&](const Threads& endpoint) {
        try {
          // Arenas of their own, which are alike but for the row.
          std::vector<float> mine(101);
          const auto here = [&](std::span<float> of) { return std::span<float>(mine).first(of.size()); };
          Layout layout = endpoint.rank() == differs ? row.layout : Layout{most, most, whole};
          layout.gradients = here(layout.gradients);
          layout.parameters = here(layout.parameters);
          make(entry.name, endpoint, common).open({}, layout);
        } catch (const ConfigError& error) {
          told += std::string(error.what()).find(row.field) != std::string::npos;
        }
      });
      CAPTURE(entry.name);
      CAPTURE(row.field);
      CHECK(told == ranks);
    }
  }
}

TEST_CASE("ranks with another policy are named") {
  for (const Entry& entry : policies) {
    if (entry.name == "tree" || entry.name == "none" || !offers<Threads>(entry.name)) continue;
    const std::string first(entry.name);
    for (const std::string& sentence : opened([&](Threads endpoint) {
           return make(endpoint.rank() == differs ? "tree" : first, endpoint, common);
         }))
      CHECK(sentence == "rank 1 differs from rank 0 in comm: tree instead of " + first);
  }
}
