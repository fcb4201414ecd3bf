// Transport: how messages get from one rank to another. The engine (engine/engine.hpp) executes schedules on
// a transport.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <convoy/comm/transport/tuning.hpp>
#include <convoy/core/compiled.hpp>
#include <convoy/parallel/processors.hpp>

#if CONVOY_DEFINITIONS
#include <thread>
#endif

namespace convoy::transport {

/// What a receive found: nothing yet (`data` is null), or a message of `bytes` bytes at `data`.
struct Arrival {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

/// A way to pass messages between ranks. Optional members:
/// - `memory()`: a resource for memory that peers can read in place; `reaches(data, bytes)`: whether peers
///   can read these bytes. Without the two, peers can read everything.
/// - `pacing()`: the default pacing, the same on all ranks.
/// - `one_thread()`: whether all calls must come from one thread.
/// - `expect_sizes()`, called on all ranks before the first message: every message has the size that its
///   receiver expects, and a message of another size must not be written to the receiver's memory.
/// - `post(request, peer, data, bytes)`: sends a copy of at most `copy_bytes` bytes in lane 0, so that the
///   sender need not wait for `sent`.
/// - `Request::purpose`: see `set_purpose`.
///
/// Messages of one (peer, lane) keep their order and are numbered from 0. Lanes are independent of each
/// other. A transport object is a light handle, copied freely. The handles of one rank and one world,
/// with all exchanges over them, are used by one thread at a time.
// clang-format off
template <class T>
concept Transport =
    std::copyable<T> && requires(T t, const T& k, typename T::Request& request, int peer, int lane, int round,
                                 const void* data, void* into, std::size_t bytes, std::uint32_t ticket,
                                 std::string_view reason) {
      { T::name } -> std::convertible_to<std::string_view>;
      // True: receivers read the sender's memory. False: a message is written to the receive's buffer.
      { T::in_place } -> std::convertible_to<bool>;
      // How many messages a channel holds; 0: any number.
      { T::capacity } -> std::convertible_to<int>;
      // At least 3, which Any checks (any.hpp).
      { T::lanes } -> std::convertible_to<int>;
      { k.rank() } -> std::same_as<int>;
      { k.size() } -> std::same_as<int>;
      // A handle with a message space of its own; every rank calls it, in the same order.
      { k.isolated() } -> std::same_as<T>;

      // Sends a message without waiting; the caller leaves its bytes untouched until `sent`. False: the
      // channel is full.
      { t.send(request, peer, lane, data, bytes) } -> std::same_as<bool>;
      // Announces a receive.
      { t.receive(request, peer, lane, into, bytes) };
      // Whether a request is over; never waits, but drives progress.
      { t.sent(request) } -> std::same_as<bool>;
      { t.arrived(request) } -> std::same_as<Arrival>;
      // Says that the bytes returned by `arrived` have been read.
      { t.release(request) };
      { request.sequence } -> std::convertible_to<std::uint64_t>;

      // A rank that is about to sleep calls doze(), looks once more, and then calls rest(ticket, round) or
      // stir(). rest() sleeps a little, longer in higher rounds, but not past an event after doze().
      { t.doze() } -> std::same_as<std::uint32_t>;
      { t.stir() };
      { t.rest(ticket, round) };
      // How many times to look before resting.
      { k.patience() } -> std::same_as<int>;

      // Why a peer will never answer, as a clause ("that rank has ended"); empty as long as it may.
      { t.departed(peer) } -> std::convertible_to<std::string_view>;
      // accuse: tells all ranks that this rank gives up, and because of which rank (itself, if it has
      // failed). accused: the rank that `peer` has accused, or -1.
      { t.accuse(peer) } noexcept;
      { t.accused(peer) } -> std::same_as<int>;
      // Lets go of a message that a receive may have found: after a failure, or, if it was found in place, to
      // ask for it again later. Once cancel returns, nothing is written to the receive's buffer, if that can
      // be prevented.
      { t.cancel(request) } noexcept;
      // Gives everything up. Once withdraw returns, no peer reads this rank's memory through the transport,
      // if that can be prevented.
      { t.withdraw(reason) } noexcept;
    };
// clang-format on

/// How many bytes `post` of a T copies at most; 0 if T has no `post`.
template <class T>
constexpr std::size_t copy_bytes() {
  if constexpr (requires { T::copy_bytes; })
    return T::copy_bytes;
  else
    return 0;
}

/// What a message is for: a number that the engine stores in a request before it is sent or received, if the
/// request has a member `std::uint16_t purpose = 0`. The number travels with the message. Once a receive is
/// matched by a message (whose bytes may be gone with the sender), `arrived` stores the sender's number in
/// the request, or 0 if that number differs and cannot be determined. This is how the engine detects that two
/// ranks do different things with messages of equal size. A transport without purposes is otherwise as good.
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

/// How a long block is sent if the options do not say: in segments of `segment_bytes` bytes, `window` of them
/// in flight at a time.
struct Pacing {
  std::size_t segment_bytes = 256u << 10;
  int window = 8;
};
/// For a network.
inline constexpr Pacing network_pacing{128u << 10, 4};
/// The number of lanes over a network, where each lane has a range of MPI tags, and through shared memory.
inline constexpr int network_lanes = 5, memory_lanes = 9;

template <class T>
Pacing pacing(const T& transport) {
  if constexpr (requires { transport.pacing(); })
    return transport.pacing();
  else
    return {};
}

/// Whether all calls must come from the thread that made the transport, or the exchange over it: the optional
/// member `one_thread()`. Others take calls from any thread, one at a time.
template <class T>
bool one_thread(const T& it) {
  if constexpr (requires { it.one_thread(); })
    return it.one_thread();
  else
    return false;
}

/// How many times each of `ranks` waiting ranks looks before it rests: for about a millisecond if every rank
/// has a processor, else just long enough not to sleep through an answer that is on its way.
inline int patience_of(int ranks) {
  return ranks <= processors() ? wait_tuning.looks : wait_tuning.looks_when_shared;
}

/// For waits with nothing to sleep on: yields for a while, so that a peer on the same core can run, then
/// sleeps a little. `round` counts from 0.
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
CONVOY_FUNCTION void nap(int round) {
  if (round < wait_tuning.yields)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(wait_tuning.nap);
}
#endif

}  // namespace convoy::transport
