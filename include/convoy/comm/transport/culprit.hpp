// Whom everyone waits for in the end: the rank that this one waits for may wait for another.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>

namespace convoy::transport {

/// Why an exchange cannot go on: through whom, and in words.
struct Blame {
  int culprit = -1;
  std::string reason;
};

namespace detail {

// Who gives up says because of whom (`accuse`); who says nothing, or names itself, is the culprit.
template <Transport T>
int accused_in_the_end(T& transport, int peer) {
  int at = peer;
  for (int hops = 0; hops < transport.size(); ++hops) {
    const int next = transport.accused(at);
    if (next < 0) break;
    at = next;
  }
  return at == transport.rank() ? peer : at;
}

inline Blame blame(int culprit, int peer, std::string reason) {
  if (culprit != peer) reason += concat("; it is rank ", culprit, " that everyone waits for");
  return {culprit, std::move(reason)};
}

}  // namespace detail

/// `peer` is gone; `clause` is what `departed` says of it.
template <Transport T>
Blame blame_departed(T& transport, int peer, std::string_view clause) {
  return detail::blame(detail::accused_in_the_end(transport, peer), peer, std::string(clause));
}

/// The deadline has ended while this rank waited for `peer`. All ranks whose deadlines end now say whom they
/// wait for, which takes a fifth of the deadline, a second at most.
template <Transport T>
Blame blame_late(T& transport, int peer, Seconds deadline) {
  std::string reason = concat("no answer within the deadline of ", deadline.count(), " s");
  if (peer < 0) return {-1, std::move(reason)};
  transport.accuse(peer);
  const Deadline grace(std::min<Seconds>(Seconds(1), deadline / 5));
  int culprit = peer;
  do {
    culprit = detail::accused_in_the_end(transport, peer);
    transport.rest(transport.ticket(), 1 << 20);
  } while (!grace.expired());
  return detail::blame(culprit, peer, std::move(reason));
}

}  // namespace convoy::transport
