// Wait: how a rank waits for others. It polls for a while, because the answer is usually on its way;
// then it sleeps between looks and leaves its processor to others.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include <convoy/comm/transport/any.hpp>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/comm/transport/tuning.hpp>
#include <convoy/core/clock.hpp>

namespace convoy::transport {

/// `for (;;) { if (<look: something moved>) wait.moved(); else if (<done>) return; else if (!wait.again()) {
/// <who is gone? is it too late?> wait.rest(); } }`
class Wait {
 public:
  /// `naps`: something that the rank looks at does not wake it.
  Wait(Any& transport, Seconds limit, bool naps = false)
      : transport_(transport), limit_(limit), spins_(transport.patience()), naps_(naps) {}
  ~Wait() { stir(); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  /// Something has moved: the deadline counts from now.
  void moved() {
    stir();
    idle_ = 0;
  }

  /// Nothing has moved. True: look again before resting.
  bool again() {
    // An answer that comes at once does not wait for a clock read.
    if (++idle_ == std::clamp(spins_, 1, wait_tuning.looks_without_clock)) deadline_.emplace(limit_);
    if (idle_ < spins_ && !spun_enough()) {
      pause();
      return true;
    }
    idle_ = std::max(idle_, spins_);
    if (naps_ || dozing_) return false;
    ticket_ = transport_.doze();  // events from now on end the rest; the next look finds earlier ones
    return dozing_ = true;
  }

  void rest() {
    if (naps_)
      nap(idle_ - spins_);
    else
      transport_.rest(ticket_, idle_ - spins_);
    dozing_ = false;
  }

  bool late() const { return deadline_->expired(); }
  double elapsed() const { return deadline_->elapsed(); }

 private:
  void stir() {
    if (dozing_) transport_.stir();
    dozing_ = false;
  }

  // Where ranks share a processor, Open MPI yields it in each look. Beside programs that compute, a look may
  // then cost tens of milliseconds, and hundreds of looks would pass the deadline by seconds. The clock is
  // read seldom: each time after twice as many looks.
  bool spun_enough() const {
    return idle_ > wait_tuning.looks_without_clock && std::has_single_bit(static_cast<unsigned>(idle_)) &&
           deadline_->elapsed() > wait_tuning.longest_looks;
  }

  Any& transport_;
  Seconds limit_;
  std::optional<Deadline> deadline_;  // set once nothing has moved for a few looks
  int spins_, idle_ = 0;
  std::uint32_t ticket_ = 0;
  bool naps_, dozing_ = false;
};

}  // namespace convoy::transport
