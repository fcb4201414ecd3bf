// Wait: how a rank waits for others, from the first look to the last. It looks often for a while, because
// what it waits for is mostly under way; then it sleeps between looks, and gives its processor to others.
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
  /// `naps`: there is something to look at that does not wake this rank.
  Wait(Any& transport, Seconds limit, bool naps = false)
      : transport_(transport), limit_(limit), spins_(transport.patience()), naps_(naps) {}
  ~Wait() { stir(); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  /// The deadline counts from the last time that something moved.
  void moved() {
    stir();
    idle_ = 0;
  }

  /// Nothing has moved. True: look again before you rest.
  bool again() {
    // What comes at once does not wait for the clock to be asked.
    if (++idle_ == std::clamp(spins_, 1, wait_tuning.looks_without_clock)) deadline_.emplace(limit_);
    if (idle_ < spins_ && !spun_enough()) {
      pause();
      return true;
    }
    idle_ = std::max(idle_, spins_);
    if (naps_ || dozing_) return false;
    ticket_ =
        transport_.doze();  // what comes from now on ends the rest, and the next look finds what came before
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

  // A look of Open MPI's gives the processor away where ranks share it, and beside programs that compute each
  // may then cost tens of milliseconds: hundreds of them would pass the deadline by seconds. The clock is
  // asked seldom: after twice as many looks each time.
  bool spun_enough() const {
    return idle_ > wait_tuning.looks_without_clock && std::has_single_bit(static_cast<unsigned>(idle_)) &&
           deadline_->elapsed() > wait_tuning.longest_looks;
  }

  Any& transport_;
  Seconds limit_;
  std::optional<Deadline> deadline_;  // there from the look on at which nothing has moved for a while
  int spins_, idle_ = 0;
  std::uint32_t ticket_ = 0;
  bool naps_, dozing_ = false;
};

}  // namespace convoy::transport
