// Whom everyone waits for in the end: the rank that this one waits for may wait for another.
#pragma once

#include <string>
#include <string_view>

#include <convoy/comm/transport/any.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <algorithm>
#include <utility>

#include <convoy/core/error.hpp>
#endif

namespace convoy::transport {

/// Why an exchange cannot go on: through whom, and in words.
struct Blame {
  int culprit = -1;
  std::string reason;
};

/// `peer` is gone; `clause` is what `departed` says of it. It may have named a rank that is about to name
/// another.
[[gnu::cold]] Blame blame_departed(Any& transport, int peer, std::string_view clause, Seconds deadline);

/// The deadline has ended while this rank waited for `peer`. All ranks whose deadlines end now say whom they
/// wait for.
[[gnu::cold]] Blame blame_late(Any& transport, int peer, Seconds deadline);

#if CONVOY_DEFINITIONS
namespace detail {

// Who gives up says because of whom (`accuse`); who says nothing, or names itself, is the culprit.
CONVOY_FUNCTION int accused_in_the_end(Any& transport, int peer) {
  int at = peer;
  for (int hops = 0; hops < transport.size(); ++hops) {
    const int next = transport.accused(at);
    if (next < 0) break;
    at = next;
  }
  return at == transport.rank() ? peer : at;
}

// Whether nobody will name another: those from `culprit` on have said their last word, or they lead back to
// this rank or to each other, as where two have sent each other something else than was expected.
CONVOY_FUNCTION bool settled(Any& transport, int culprit) {
  int at = culprit;
  for (int hops = 0; hops < transport.size() && at != transport.rank(); ++hops) {
    if (transport.departed(at).empty()) return false;
    const int next = transport.accused(at);
    if (next < 0 || next == at) break;
    at = next;
  }
  return true;
}

// Waits, a fifth of the deadline and a second at most, until nobody will name another.
[[gnu::cold]] CONVOY_FUNCTION Blame find(Any& transport, int peer, Seconds deadline, std::string reason) {
  const Deadline grace(std::min<Seconds>(Seconds(1), deadline / 5));
  for (;;) {
    const int culprit = accused_in_the_end(transport, peer);
    if (settled(transport, culprit) || grace.expired()) {
      if (culprit != peer) reason += concat("; it is rank ", culprit, " that everyone waits for");
      return {culprit, std::move(reason)};
    }
    transport.rest(transport.doze(), 1 << 20);
  }
}

}  // namespace detail

CONVOY_FUNCTION Blame blame_departed(Any& transport, int peer, std::string_view clause, Seconds deadline) {
  return detail::find(transport, peer, deadline, std::string(clause));
}

CONVOY_FUNCTION Blame blame_late(Any& transport, int peer, Seconds deadline) {
  std::string reason = concat("no answer within the deadline of ", deadline.count(), " s");
  if (peer < 0) return {-1, std::move(reason)};
  transport.accuse(peer);
  return detail::find(transport, peer, deadline, std::move(reason));
}
#endif

}  // namespace convoy::transport
