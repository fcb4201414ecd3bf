// Faulty: a transport with injected faults, for tests of what is built on transports. Faults are drawn from a
// seed, so that a run can be repeated.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/comm/transport/decorator.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/philox.hpp>

namespace convoy::transport {

/// The rates of faults, as fractions of all messages.
struct Faults {
  double delay = 0;  ///< a message is held back for up to `longest`
  Seconds longest{0.002};
  double drop = 0;        ///< a message never arrives, and nothing behind it in its lane
  double truncate = 0;    ///< a message arrives a byte short
  double corrupt = 0;     ///< a bit of a message is flipped; only under Checked, which detects it
  double fail = 0;        ///< the sender throws, as if its program had failed
  std::uint32_t run = 0;  ///< each run draws other numbers
};

/// Rank r's faults are drawn from (seed, run, r). `corrupt` changes a copy of what arrives, so that the
/// sender's memory stays intact. Throws ConfigError for `corrupt` unless `guarded`, which says that Checked
/// wraps this transport.
template <Transport T, std::uint64_t seed = 0>
class Faulty : public Decorator<T> {
  using Decorator<T>::inner_;

 public:
  struct Request {
    typename T::Request inner{};
    std::uint64_t sequence = 0;
    std::uint16_t purpose = 0;
    Clock::time_point due{};
    bool lost = false, is_short = false, turned = false, drawn = false;
    std::vector<std::byte> copy{};
  };

  Faulty() : Faulty(T{}, {}) {}
  Faulty(const T& inner, const Faults& faults, bool guarded = false)
      : Decorator<T>(inner),
        faults_(faults),
        numbers_(std::make_shared<Philox>(
            seed, static_cast<std::uint64_t>(faults.run) << 32 | static_cast<std::uint64_t>(inner.rank()))) {
    if (faults.corrupt > 0 && !guarded)
      fail<ConfigError>(
          "faulty: a flipped bit would go unnoticed; wrap this transport in transport::Checked, and set "
          "guarded");
  }

  Faulty isolated() const {
    Faulty copy = *this;
    copy.inner_ = inner_.isolated();
    return copy;
  }

  bool send(Request& request, int peer, int lane, const void* data, std::size_t bytes) {
    if (numbers_->uniform(0, 1) < faults_.fail) fail("rank ", inner_.rank(), " fails, as it was told to");
    set_purpose(request.inner, request.purpose);
    const bool posted = inner_.send(request.inner, peer, lane, data, bytes);
    request.sequence = request.inner.sequence;
    return posted;
  }
  void receive(Request& request, int peer, int lane, void* into, std::size_t bytes) {
    request.drawn = false;
    set_purpose(request.inner, request.purpose);
    inner_.receive(request.inner, peer, lane, into, bytes);
    request.sequence = request.inner.sequence;
  }
  bool sent(Request& request) { return inner_.sent(request.inner); }
  Arrival arrived(Request& request) {
    if (!request.drawn) {
      const auto chance = [&](double rate) { return numbers_->uniform(0, 1) < rate; };
      request.drawn = true;
      request.lost = chance(faults_.drop);
      request.is_short = chance(faults_.truncate);
      request.turned = chance(faults_.corrupt);
      request.due = Clock::now();
      if (chance(faults_.delay))
        request.due += std::chrono::duration_cast<Clock::duration>(faults_.longest * numbers_->uniform(0, 1));
      request.copy.clear();
    }
    if (request.lost || Clock::now() < request.due) return {};
    Arrival arrival = inner_.arrived(request.inner);
    if (arrival.data == nullptr) return {};
    request.purpose = purpose_of(request.inner, request.purpose);
    if (request.is_short && arrival.bytes > 0) --arrival.bytes;
    if (request.turned && arrival.bytes > 0) {
      if (request.copy.empty()) {
        request.copy.resize(arrival.bytes);
        std::memcpy(request.copy.data(), arrival.data, arrival.bytes);
        const auto bit =
            static_cast<std::size_t>(numbers_->below(static_cast<std::uint32_t>(arrival.bytes * 8)));
        request.copy[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      }
      arrival.data = request.copy.data();
    }
    return arrival;
  }
  void release(Request& request) { inner_.release(request.inner); }
  void cancel(Request& request) noexcept { inner_.cancel(request.inner); }

  /// A held-back message wakes nobody, so a rank naps instead of sleeping.
  std::uint32_t doze() { return 0; }
  void stir() {}
  void rest(std::uint32_t, int round) { nap(round); }

 private:
  Faults faults_;
  std::shared_ptr<Philox> numbers_;
};

}  // namespace convoy::transport
