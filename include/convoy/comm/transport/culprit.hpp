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

// Whether nobody will name another: those from `culprit` on have said their last word, or they lead back to
// this rank or to each other, as where two have sent each other something else than was expected.
template <Transport T>
bool settled(T& transport, int culprit) {
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
template <Transport T>
Blame find(T& transport, int peer, Seconds deadline, std::string reason) {
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

/// `peer` is gone; `clause` is what `departed` says of it. It may have named a rank that is about to name
/// another.
template <Transport T>
Blame blame_departed(T& transport, int peer, std::string_view clause, Seconds deadline) {
  return detail::find(transport, peer, deadline, std::string(clause));
}

/// The deadline has ended while this rank waited for `peer`. All ranks whose deadlines end now say whom they
/// wait for.
template <Transport T>
Blame blame_late(T& transport, int peer, Seconds deadline) {
  std::string reason = concat("no answer within the deadline of ", deadline.count(), " s");
  if (peer < 0) return {-1, std::move(reason)};
  transport.accuse(peer);
  return detail::find(transport, peer, deadline, std::move(reason));
}

/// Those who are asked: the ranks of some transport.
struct Jury {
  void* transport = nullptr;
  void (*accuse)(void* transport, int peer) noexcept = nullptr;
  Blame (*departed)(void* transport, int peer, std::string_view clause, Seconds deadline) = nullptr;
  Blame (*late)(void* transport, int peer, Seconds deadline) = nullptr;

  template <Transport T>
  static Jury of(T& transport) {
    return {
        &transport, [](void* t, int peer) noexcept { static_cast<T*>(t)->accuse(peer); },
        [](void* t, int peer, std::string_view clause, Seconds deadline) {
          return blame_departed(*static_cast<T*>(t), peer, clause, deadline);
        },
        [](void* t, int peer, Seconds deadline) { return blame_late(*static_cast<T*>(t), peer, deadline); }};
  }
};

}  // namespace convoy::transport
