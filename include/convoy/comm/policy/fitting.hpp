// Fitting: which options go with which exchange. One that would be ignored is refused, since whoever gave it
// expects something of it.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include <convoy/comm/engine/program.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm::detail {

/// Throws ConfigError for an option that the comm called `policy`, or its codec, does not use. A deadline
/// goes with all: where nobody waits it is kept.
void refuse_unused(std::string_view policy, const Options& options);

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION void refuse_unused(std::string_view policy, const Options& options) {
  constexpr std::string_view names[] = {
      "none",         "ring", "halving-doubling", "tree",     "direct",       "auto",  "sharded",
      "reproducible", "ps",   "ps-async",         "ps-stale", "hierarchical", "native"};
  if (std::find(std::begin(names), std::end(names), policy) == std::end(names)) return;  // there is worse
  const Options unsaid;
  const std::string_view codec = options.codec;
  const bool serves = policy == "ps" || policy == "ps-async" || policy == "ps-stale";
  const bool sends = policy != "none";
  const bool costs = options.cost.alpha != 0 || options.cost.beta != 0 || options.cost.gamma != 0;
  const struct {
    std::string_view name;
    bool given, used;
    std::string_view goes_with;
    bool of_codec = false;
  } all[] = {
      {"codec", codec != unsaid.codec, policy == "ring", "ring"},
      {"codec_fraction", options.codec_fraction != unsaid.codec_fraction, codec == "topk", "topk", true},
      {"codec_rank", options.codec_rank != unsaid.codec_rank, codec == "powersgd", "powersgd", true},
      {"codec_warm_up", options.codec_warm_up != unsaid.codec_warm_up, codec == "topk" || codec == "powersgd",
       "topk and powersgd", true},
      {"servers", options.servers != unsaid.servers, serves, "ps, ps-async and ps-stale"},
      {"servers_beside", options.servers_beside, serves, "ps, ps-async and ps-stale"},
      {"staleness", options.staleness != unsaid.staleness, policy == "ps-stale", "ps-stale"},
      {"cost", costs, policy == "auto", "auto"},
      {"segment_bytes", options.segment_bytes != unsaid.segment_bytes, sends, "all that send messages"},
      {"window", options.window != unsaid.window, sends, "all that send messages"},
  };
  for (const auto& option : all)
    if (option.given && !option.used)
      fail<ConfigError>(option.of_codec ? "codec \"" : "comm \"", option.of_codec ? codec : policy,
                        "\" does not use ", option.name, ", which goes with ", option.goes_with);
}
#endif

}  // namespace convoy::comm::detail
