// Transport: how messages get from one rank to another. The engine (exchange/engine.hpp) executes schedules
// on it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace convoy::transport {

/// What a receive found: nothing yet (`data` is null), or a message of `bytes` bytes at `data`.
struct Arrival {
  const void* data = nullptr;
  std::size_t bytes = 0;
};

/// Messages of one (peer, lane) keep their order and are numbered from 0; lanes are independent of each
/// other. A value of a transport is a light handle, copied freely; it is used by one thread at a time.
///
///   isolated()      a handle with a message space of its own; every rank calls it, in the same order
///   send            posts a message without waiting; the bytes stay untouched until `sent`. False: the
///   channel is full receive         announces a receive; the message may be written to `into` (not if the
///   transport is `in_place`) sent, arrived   whether a request is over, without waiting; both also drive
///   progress release         the bytes that `arrived` gave have been read (with `in_place` they are the
///   sender's own memory) cancel          gives a request up, after a failure withdraw        gives
///   everything up: once it returns, no peer reads this rank's memory through the transport ticket, rest
///   `rest(ticket, round)` sleeps a little (the more, the higher the round), but not past an event
///                   that came after `ticket()`
///   departed        why a peer will never answer, as a clause ("has ended"); empty as long as it may
template <class T>
concept Transport = std::copyable<T> &&
    requires(T t, const T& k, typename T::Request& r, void* p, const void* q, int i) {
  { T::name } -> std::convertible_to<std::string_view>;
  { T::in_place } -> std::convertible_to<bool>;  ///< a receiver reads the sender's memory
  { T::capacity } -> std::convertible_to<int>;   ///< messages that a channel holds; 0: any number
  { T::lanes } -> std::convertible_to<int>;
  { k.rank() } -> std::same_as<int>;
  { k.size() } -> std::same_as<int>;
  { k.isolated() } -> std::same_as<T>;
  { t.send(r, i, i, q, std::size_t{}) } -> std::same_as<bool>;
  {t.receive(r, i, i, p, std::size_t{})};
  { t.sent(r) } -> std::same_as<bool>;
  { t.arrived(r) } -> std::same_as<Arrival>;
  {t.release(r)};
  { t.cancel(r) }
  noexcept;
  { t.withdraw() }
  noexcept;
  { t.ticket() } -> std::same_as<std::uint32_t>;
  {t.rest(std::uint32_t{}, i)};
  { k.departed(i) } -> std::convertible_to<std::string_view>;
  { r.sequence } -> std::convertible_to<std::uint64_t>;
};

/// Tells the processor that this is a spin loop.
inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace convoy::transport
