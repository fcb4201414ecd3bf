// The lower bound of an exchange in shared memory: the loads and stores of a direct all-reduce without
// synchronization.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/engine/tuning.hpp>
#include <convoy/comm/schedule/schedule.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/range.hpp>

namespace bench {

/// The buffers of all ranks, shared for the lifetime of this object over a transport whose ranks see each
/// other's memory. Construction and destruction are collective.
template <class T>
class PeerBuffers {
 public:
  PeerBuffers(const T& where, void* data, std::size_t bytes)
      : transport_(where.isolated()),
        sends_(static_cast<std::size_t>(transport_.size())),
        receives_(sends_.size()),
        at_(sends_.size()) {
    const int n = transport_.size(), me = transport_.rank();
    at_[static_cast<std::size_t>(me)] = data;
    for (int k = 1; k < n; ++k) {
      const auto to = static_cast<std::size_t>((me + k) % n),
                 from = static_cast<std::size_t>((me + n - k) % n);
      if (!transport_.send(sends_[to], static_cast<int>(to), 0, data, bytes))
        convoy::fail("a channel to rank ", to, " is full before its first message");
      transport_.receive(receives_[from], static_cast<int>(from), 0, nullptr, bytes);
    }
    for (std::size_t peer = 0; peer < at_.size(); ++peer) {
      if (static_cast<int>(peer) == me) continue;
      convoy::transport::Arrival arrival;
      wait(peer, [&] { return (arrival = transport_.arrived(receives_[peer])).data != nullptr; });
      if (arrival.bytes != bytes)
        convoy::fail("rank ", peer, " has a buffer of ", arrival.bytes, " bytes, not ", bytes);
      at_[peer] = const_cast<void*>(arrival.data);
    }
  }
  ~PeerBuffers() {
    for (std::size_t peer = 0; peer < at_.size(); ++peer)
      if (static_cast<int>(peer) != transport_.rank()) transport_.release(receives_[peer]);
    try {
      for (std::size_t peer = 0; peer < at_.size(); ++peer)
        if (static_cast<int>(peer) != transport_.rank())
          wait(peer, [&] { return transport_.sent(sends_[peer]); });
    } catch (const convoy::Error&) {
      // The peer has failed and reports its own error.
    }
  }
  PeerBuffers(const PeerBuffers&) = delete;
  PeerBuffers& operator=(const PeerBuffers&) = delete;

  /// This rank's part of a direct all-reduce of elements [range) of all buffers: the same loads and stores,
  /// without waiting.
  void fold(const convoy::Range& range, const convoy::comm::Reduction& reduction) {
    const int n = transport_.size(), me = transport_.rank();
    const std::size_t element = convoy::size_of(reduction.type);
    const convoy::Range part =
        convoy::share(range.size(), me, n, convoy::schedule::grain_of(static_cast<std::int64_t>(element)));
    from_.clear();
    into_.clear();
    const std::size_t offset = static_cast<std::size_t>(range.begin + part.begin) * element;
    for (int k = 0; k < n; ++k) {
      from_.push_back(static_cast<std::byte*>(at_[static_cast<std::size_t>(k)]) + offset);
      into_.push_back(static_cast<std::byte*>(at_[static_cast<std::size_t>((me + k) % n)]) + offset);
    }
    reduction.fold(into_.data(), n, from_.data(), n, part.size(), 1,
                   range.size() * static_cast<std::int64_t>(element) * n >=
                       convoy::comm::detail::tuning.streaming_bytes);
  }

 private:
  template <class F>
  void wait(std::size_t peer, F&& done) {
    const convoy::Deadline deadline(convoy::Seconds(60));
    while (!done()) {
      std::this_thread::yield();
      if (deadline.expired()) convoy::fail("rank ", peer, " did not share its buffer within 60 s");
    }
  }

  T transport_;
  std::vector<typename T::Request> sends_, receives_;
  std::vector<void*> at_, into_;
  std::vector<const void*> from_;
};

}  // namespace bench
