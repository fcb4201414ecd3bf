// Transport: how messages get from one rank to another. The engine (engine/engine.hpp) executes schedules
// on it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <convoy/comm/transport/tuning.hpp>
#include <convoy/core/compiled.hpp>

#if CONVOY_DEFINITIONS
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif
#endif

namespace convoy::transport {

/// What a receive found: nothing yet (`data` is null), or a message of `bytes` bytes at `data`.
struct Arrival {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

/// Optional members: `memory()`, a resource for what peers can read in place, and `reaches(data, bytes)`,
/// whether they can read that; without them everything can be read. `pacing()`, the same on all ranks.
/// `one_thread()`, whether all calls must come from one thread.
/// `expect_sizes()`, said on all ranks before the first message: each is as long as its receiver says, and
/// one that is not must not come near its memory. `post(request, peer, data, bytes)`, which sends a copy of
/// at most `copy_bytes` in lane 0, so that nobody waits until it is `sent`. `Request::purpose`, see there.
///
/// Messages of one (peer, lane) keep their order and are numbered from 0; lanes are independent of each
/// other. A value of a transport is a light handle, copied freely; it is used by one thread at a time.
// clang-format off
template <class T>
concept Transport =
    std::copyable<T> && requires(T t, const T& k, typename T::Request& request, int peer, int lane, int round,
                                 const void* data, void* into, std::size_t bytes, std::uint32_t ticket,
                                 std::string_view reason) {
      { T::name } -> std::convertible_to<std::string_view>;
      // A receiver reads the sender's own memory; otherwise the message comes to where the receive said.
      { T::in_place } -> std::convertible_to<bool>;
      // How many messages a channel holds; 0 means any number.
      { T::capacity } -> std::convertible_to<int>;
      // At least 3, which is for an exchange to check (any.hpp).
      { T::lanes } -> std::convertible_to<int>;
      { k.rank() } -> std::same_as<int>;
      { k.size() } -> std::same_as<int>;
      // A handle with a message space of its own; every rank calls it, in the same order.
      { k.isolated() } -> std::same_as<T>;

      // Posts a message without waiting; its bytes stay untouched until `sent`. False: the channel is full.
      { t.send(request, peer, lane, data, bytes) } -> std::same_as<bool>;
      // Announces a receive.
      { t.receive(request, peer, lane, into, bytes) };
      // Whether a request is over; never waits, but drives progress.
      { t.sent(request) } -> std::same_as<bool>;
      { t.arrived(request) } -> std::same_as<Arrival>;
      // The bytes that `arrived` gave have been read.
      { t.release(request) };
      { request.sequence } -> std::convertible_to<std::uint64_t>;

      // A rank that means to sleep calls doze(), looks once more, and then either rest(ticket, round), which sleeps a
      // little (the more, the higher the round) but not past an event after doze(), or stir().
      { t.doze() } -> std::same_as<std::uint32_t>;
      { t.stir() };
      { t.rest(ticket, round) };
      // How often to look before resting.
      { k.patience() } -> std::same_as<int>;

      // Why a peer will never answer, as a clause ("that rank has ended"); empty as long as it may.
      { t.departed(peer) } -> std::convertible_to<std::string_view>;
      // Tells everyone that this rank gives up, and because of whom (itself, if it has failed); whom another has accused,
      // or -1.
      { t.accuse(peer) } noexcept;
      { t.accused(peer) } -> std::same_as<int>;
      // Leaves alone what a receive may have found: after a failure, or, where it was found in place, to ask for it
      // again later. Once it returns, nothing is written to where the receive said, if it can be helped.
      { t.cancel(request) } noexcept;
      // Gives everything up. Once it returns, no peer reads this rank's memory through the transport, if it can be helped.
      { t.withdraw(reason) } noexcept;
    };
// clang-format on

/// What a message is for: a number that the engine gives to a request before it is sent or received, if there
/// is a place for it, `std::uint16_t Request::purpose = 0`. It goes along with the message. Once a receive
/// has met one (whose bytes may be gone with the sender) `arrived` leaves the sender's in the request, or 0
/// if it is another that cannot be told: so the engine finds out that two ranks do different things with as
/// many bytes. A transport without it is as good in all else.
template <class Request>
void set_purpose(Request& request, [[maybe_unused]] std::uint16_t purpose) {
  if constexpr (requires { request.purpose; }) request.purpose = purpose;
}
template <class Request>
std::uint16_t purpose_of(const Request& request, [[maybe_unused]] std::uint16_t unless_known) {
  if constexpr (requires { request.purpose; })
    return request.purpose;
  else
    return unless_known;
}

/// How a long block is sent where nobody says: in segments of so many bytes, so many of them under way at a
/// time.
struct Pacing {
  std::size_t segment_bytes = 256u << 10;
  int window = 8;
};
/// Over a network.
inline constexpr Pacing network_pacing{128u << 10, 4};
/// The lanes of messages over a network, where each has a range of MPI's tags, and through shared memory.
inline constexpr int network_lanes = 5, memory_lanes = 9;

template <class T>
Pacing pacing(const T& transport) {
  if constexpr (requires { transport.pacing(); })
    return transport.pacing();
  else
    return {};
}

/// Whether all calls must come from the thread that made it: `one_thread()`, an optional member. The others
/// take calls from any thread, one at a time.
template <class T>
bool one_thread(const T& transport) {
  if constexpr (requires { transport.one_thread(); })
    return transport.one_thread();
  else
    return false;
}

/// The processors that this process may run on.
int processors();

/// How often `ranks` waiting ranks look before they rest: about a millisecond if there are processors for
/// all, else just long enough not to sleep through an answer that is on its way.
inline int patience_of(int ranks) {
  return ranks <= processors() ? wait_tuning.looks : wait_tuning.looks_when_shared;
}

/// Where there is nothing to sleep on: yields for a while (a peer on the same core goes on), then sleeps a
/// little. `round` counts from 0.
void nap(int round);

/// Tells the processor that this is a spin loop.
inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if CONVOY_DEFINITIONS
CONVOY_FUNCTION int processors() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

CONVOY_FUNCTION void nap(int round) {
  if (round < wait_tuning.yields)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(wait_tuning.nap);
}
#endif

}  // namespace convoy::transport
