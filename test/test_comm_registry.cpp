// SANITIZE: none
// The registry: the names that make knows, what it refuses, and its messages.
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/comm/registry.hpp>

using namespace convoy;
using transport::Threads;

namespace {

// The error of every rank when it makes this exchange; empty if all succeed.
std::string refusal(std::string_view name, const comm::Options& options, const comm::Choice& choice) {
  std::string said[2];
  const int ranks = name == "none" ? 1 : 2;
  Threads::World(ranks).run([&](Threads endpoint) {
    try {
      comm::make(name, endpoint, options, choice);
    } catch (const ConfigError& error) {
      said[endpoint.rank()] = error.what();
    }
  });
  if (ranks == 2) CHECK(said[0] == said[1]);
  return said[0];
}

}  // namespace

TEST_CASE("each line of the registry says what it is, and names it by itself") {
  std::set<std::string_view> names;
  for (const comm::Entry& entry : comm::policies) {
    CAPTURE(entry.name);
    CHECK(names.insert(entry.name).second);
    CHECK_FALSE(entry.about.empty());
    // An entry that every transport offers lists no transports.
    const bool here = comm::offers<Threads>(entry.name);
    CHECK(here == (entry.over.empty() || entry.over.find("threads") != std::string_view::npos));
    if (!here) continue;
    CHECK(refusal(entry.name, {}, {}) == "");
    Threads::World(entry.name == "none" ? 1 : 2).run([&](Threads endpoint) {
      const comm::Any any = comm::make(entry.name, endpoint);
      if (any.policy() != (entry.name == "auto" ? "direct" : entry.name)) fail("it is ", any.policy());
    });
  }
  for (const comm::Entry& entry : comm::codecs) {
    CAPTURE(entry.name);
    CHECK_FALSE(entry.about.empty());
    CHECK(refusal("ring", {}, {.codec = entry.name}) == "");
  }
  CHECK_FALSE(comm::offers<Threads>("rinf"));
}

TEST_CASE("an option that a comm would ignore is refused") {
  const std::string served = "ps ps-async ps-stale", sending =
                                                         "ring halving-doubling tree direct auto sharded "
                                                         "reproducible ps ps-async ps-stale";
  const struct {
    std::string option;
    comm::Options options;
    comm::Choice choice;
    std::string fits;      // the comms that fit
    std::string sentence;  // for the others
  } rows[] = {
      {"codec", {}, {.codec = "int8"}, "ring", "does not use codec, which is an option of ring"},
      {"fraction of none",
       {},
       {.topk = {.fraction = 0.1}},
       "",
       "codec \"none\" does not use topk.fraction, which is an option of topk"},
      {"rank of none",
       {},
       {.powersgd = {.rank = 2}},
       "",
       "codec \"none\" does not use powersgd.rank, which is an option of powersgd"},
      {"warm-up of none",
       {},
       {.topk = {.warm_up_steps = 0}},
       "",
       "codec \"none\" does not use topk.warm_up_steps, which is an option of topk"},
      {"fraction of int8", {}, {.codec = "int8", .topk = {.fraction = 0.1}}, "", "does not use "},
      {"fraction of powersgd", {}, {.codec = "powersgd", .topk = {.fraction = 0.1}}, "", "does not use "},
      {"rank of topk", {}, {.codec = "topk", .powersgd = {.rank = 2}}, "", "does not use "},
      {"topk",
       {},
       {.codec = "topk", .topk = {.fraction = 0.1, .warm_up_steps = 0}},
       "ring",
       "does not use codec, which"},
      {"powersgd",
       {},
       {.codec = "powersgd", .powersgd = {.rank = 2, .warm_up_steps = 0}},
       "ring",
       "does not use codec, which"},
      {"servers",
       {},
       {.servers = 2},
       served,
       "does not use servers, which is an option of ps, ps-async and ps-stale"},
      {"servers_beside",
       {},
       {.servers_beside = true},
       served,
       "does not use servers_beside, which is an option of ps, ps-async and ps-stale"},
      {"staleness",
       {},
       {.staleness = 1},
       "ps-stale",
       "does not use staleness, which is an option of ps-stale"},
      {"cost", {.cost = {1e-6, 1e-10, 1e-10}}, {}, "auto", "does not use cost, which is an option of auto"},
      {"segment_bytes",
       {.segment_bytes = 1024},
       {},
       sending,
       "does not use segment_bytes, which is an option of all but none"},
      {"window", {.window = 2}, {}, sending, "does not use window, which is an option of all but none"},
      {"weights", {}, {.weighted = true, .weights = {1}}, "", "choose one of the two"},
      {"deadline", {.deadline = Seconds(20)}, {}, "none " + sending, ""},
      {"nothing", {}, {}, "none " + sending, ""},
  };
  for (const auto& row : rows)
    for (const comm::Entry& entry : comm::policies) {
      if (!comm::offers<Threads>(entry.name)) continue;
      const std::string name(entry.name);
      CAPTURE(row.option);
      CAPTURE(name);
      const bool fits = (' ' + row.fits + ' ').find(' ' + name + ' ') != std::string::npos;
      const std::string said = refusal(name, row.options, row.choice);
      CHECK((said == "") == fits);
      if (!fits) CHECK(said.find(row.sentence) != std::string::npos);
    }
}
