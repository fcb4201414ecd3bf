// Service: which ranks serve which parameters, and how.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/parameter_server/server_state.hpp>
#include <convoy/comm/schedule/shards.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/range.hpp>

namespace convoy::comm {

enum class Placement : unsigned char {
  among,   ///< the first `servers` workers serve as well, whenever they poll
  beside,  ///< the last `servers` ranks only serve
};

constexpr std::string_view name_of(Placement placement) {
  return placement == Placement::among ? "among" : "beside";
}

/// How parameters are served.
struct Service {
  Consistency consistency{};
  int servers = 1;
  Placement placement = Placement::among;

  static constexpr void fields(auto& self, auto&& field) {
    field("consistency", self.consistency);
    field("servers", self.servers);
    field("placement", self.placement);
  }

  /// Throws ConfigError unless `ranks` ranks can provide this service.
  void check(int ranks) const {
    const int most = placement == Placement::beside ? ranks - 1 : ranks;
    if (most < 1) fail<ConfigError>("a parameter server beside its workers needs at least 2 ranks");
    if (servers < 1 || servers > most)
      fail<ConfigError>("a parameter server needs ",
                        most > 1 ? concat("1 to ", most, " servers") : "1 server", " in a world of ", ranks,
                        ", not ", servers);
    if (!consistency.sync && consistency.bound < 0)
      fail<ConfigError>("the staleness is ", consistency.bound, " steps; it must not be negative");
  }

  int workers(int ranks) const { return placement == Placement::among ? ranks : ranks - servers; }
  int rank_of(int server, int ranks) const {
    return placement == Placement::among ? server : workers(ranks) + server;
  }
  /// The number of the server on a rank; -1: the rank does not serve.
  int server_of(int rank, int ranks) const {
    const int server = placement == Placement::among ? rank : rank - workers(ranks);
    return server >= 0 && server < servers ? server : -1;
  }
  /// The group of a rank: all workers, or all servers beside them.
  std::vector<int> group_of(int rank, int ranks) const {
    std::vector<int> all;
    for (int r = 0; r < ranks; ++r)
      if ((r < workers(ranks)) == (rank < workers(ranks))) all.push_back(r);
    return all;
  }

  /// A server's range of an arena; no range of `whole` is split between servers.
  Range shard(int server, std::int64_t arena, std::span<const Range> whole = {}) const {
    const auto at = schedule::Shards(servers, whole).cut({0, arena});
    return {at[static_cast<std::size_t>(server)], at[static_cast<std::size_t>(server) + 1]};
  }
};

namespace detail {

/// A part: a piece of a server's shard, within one bucket. A letter is about one part.
struct ServedPart {
  Range range;
  int bucket = 0;
};
using ServedParts = std::vector<ServedPart>;

/// The most segments in a part if parts are read in place: no inbox is needed then, and each part is a
/// wake-up.
inline constexpr int segments_in_place = 16;

/// The parts in which a server's shard travels and is updated. Each part lies within one bucket, so that a
/// server adds up one part while the next is in flight. No range of `whole` is split between parts; apart
/// from that, no part is longer than `most` elements.
inline ServedParts parts_of(const Range& shard, std::span<const Range> buckets, std::int64_t most,
                            std::span<const Range> whole = {}) {
  ServedParts parts;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const Range r{std::max(shard.begin, buckets[b].begin), std::min(shard.end, buckets[b].end)};
    if (r.empty()) continue;
    const std::int64_t pieces = (r.size() + most - 1) / most, grain = schedule::shard_grain;
    const std::int64_t even = (r.size() + pieces * grain - 1) / (pieces * grain) * grain;
    for (std::int64_t begin = 0, end = 0; begin < r.size(); begin = end) {
      end = schedule::last_cut(r, whole, begin, begin + even);
      if (end == begin) end = schedule::whole_end(r, whole, begin);
      parts.push_back({{r.begin + begin, r.begin + end}, static_cast<int>(b)});
    }
  }
  return parts;
}

}  // namespace detail

}  // namespace convoy::comm
