// Culprit: the rank that everyone waits for in the end. The rank that this one waits for may itself wait for
// another.
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

/// Why an exchange cannot go on: the rank at fault, and the reason in words.
struct Blame {
  int culprit = -1;
  std::string reason;
  std::string root;  ///< CommError::root
};

/// Whom to blame after `peer` has gone; `clause` is what `departed` says of it. The rank that `peer` has
/// accused may be about to accuse another.
[[gnu::cold]] Blame blame_departed(Any& transport, int peer, std::string_view clause, Seconds deadline);

/// Whom to blame after the deadline has passed while this rank waited for `peer`. All ranks whose deadlines
/// pass now announce whom they wait for.
[[gnu::cold]] Blame blame_late(Any& transport, int peer, Seconds deadline);

#if CONVOY_DEFINITIONS
namespace detail {

// What the first rank that failed said, from the clause of a peer that failed because of that rank or is
// itself the first; empty if the clause tells no more than that the peer is gone.
CONVOY_FUNCTION std::string root_of(std::string_view clause, int peer) {
  constexpr std::string_view that_rank = "that rank ";
  for (const std::string_view verb : {"has given up: ", "has failed: "}) {
    if (!clause.starts_with(that_rank) || !clause.substr(that_rank.size()).starts_with(verb)) continue;
    const std::string_view said = clause.substr(that_rank.size() + verb.size());
    return said.starts_with("rank ") ? std::string(said) : concat("rank ", peer, ' ', verb, said);
  }
  return {};
}

// A rank that gives up says because of whom (`accuse`). The culprit is the rank that accuses nobody, or
// itself.
CONVOY_FUNCTION int accused_in_the_end(Any& transport, int peer) {
  int at = peer;
  for (int hops = 0; hops < transport.size(); ++hops) {
    const int next = transport.accused(at);
    if (next < 0) break;
    at = next;
  }
  return at == transport.rank() ? peer : at;
}

// Whether no rank will accuse another any more. The ranks from `culprit` on have departed, or their
// accusations lead back to this rank or form a cycle, as where two ranks have each sent what the other did
// not expect.
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

// Waits until no rank will accuse another, for at most a fifth of the deadline and at most a second.
[[gnu::cold]] CONVOY_FUNCTION Blame find(Any& transport, int peer, Seconds deadline, std::string reason) {
  const Deadline grace(std::min<Seconds>(Seconds(1), deadline / 5));
  for (;;) {
    const int culprit = accused_in_the_end(transport, peer);
    if (settled(transport, culprit) || grace.expired()) {
      if (culprit != peer) reason += concat("; all wait for rank ", culprit);
      return {culprit, std::move(reason), {}};
    }
    transport.rest(transport.doze(), 1 << 20);
  }
}

}  // namespace detail

CONVOY_FUNCTION Blame blame_departed(Any& transport, int peer, std::string_view clause, Seconds deadline) {
  std::string root = detail::root_of(clause, peer);  // `clause` may change while this rank waits
  Blame blame = detail::find(transport, peer, deadline, std::string(clause));
  blame.root = std::move(root);
  return blame;
}

CONVOY_FUNCTION Blame blame_late(Any& transport, int peer, Seconds deadline) {
  std::string reason = concat("no answer within the deadline of ", deadline.count(), " s");
  if (peer < 0) return {-1, std::move(reason), {}};
  transport.accuse(peer);
  return detail::find(transport, peer, deadline, std::move(reason));
}
#endif

}  // namespace convoy::transport
