// Measures the link between two ranks.
#pragma once

#include <convoy/comm/engine/program.hpp>
#include <convoy/comm/schedule/price.hpp>
#include <convoy/comm/transport/any.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <vector>

#include <convoy/comm/engine/agree.hpp>
#include <convoy/comm/engine/choose.hpp>
#include <convoy/comm/engine/engine.hpp>
#include <convoy/core/error.hpp>
#endif

namespace convoy::comm {

/// Measures latency and bandwidth between ranks `first` < `second` of `where`, and the speed of a sum on rank
/// `first`. All ranks call it and get the same figures. Throws ConfigError unless there are two such ranks.
schedule::CostModel measure_link(const transport::Any& where, int first, int second,
                                 const Options& options = {});

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION schedule::CostModel measure_link(const transport::Any& where, int first, int second,
                                                 const Options& options) {
  if (first < 0 || second <= first || second >= where.size())
    fail<ConfigError>("there is no link from rank ", first, " to rank ", second, " in a world of ",
                      where.size());
  const bool at_it = where.rank() == first || where.rank() == second;
  // The other ranks stand by, each in a group of its own.
  const auto members = at_it ? std::vector<int>{first, second} : std::vector<int>{where.rank()};
  Engine all(where, options);
  Engine pair(where.group(members), options);
  pair.belong_to(all, members);
  schedule::CostModel model = measure(pair);
  detail::broadcast_bytes(all, &model, sizeof model, first);
  return model;
}
#endif

}  // namespace convoy::comm
