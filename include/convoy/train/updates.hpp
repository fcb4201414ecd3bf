// Updates: the callbacks by which an exchange has a replica process arrived gradients, on workers and on
// servers.
#pragma once

#include <span>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/decision.hpp>
#include <convoy/core/range.hpp>
#include <convoy/memory/working_copy.hpp>
#include <convoy/optim/guard.hpp>
#include <convoy/train/phase_times.hpp>
#include <convoy/train/timeline.hpp>

namespace convoy::train {

/// How a server processes gradients.
template <class Replica>
struct ServerUpdates {
  Replica* replica;
  bool decides() const { return replica->optimizer_.decides(); }
  void arrived(const comm::ServerPart& part) const {
    Replica& r = *replica;
    if (r.serves_anew_) r.optimizer_.begin(part.count, r.lr_at(r.served_from_ + part.step));
    r.serves_anew_ = false;
    r.optimizer_.arrived(part.range, part.scale, part.parameters, part.gradients);
  }
  std::span<double> partial() const { return replica->optimizer_.partial(); }
  Decision decide() const {
    optim::Verdict verdict;
    const Decision decision = replica->decide(verdict);
    replica->serves_anew_ = decision != Decision::again;
    return decision;
  }
  void update(const comm::ServerPart& part) const {
    Replica& r = *replica;
    const auto from = Clock::now();
    if (!r.optimizer_.decides()) r.optimizer_.begin(part.count, r.lr_at(r.served_from_ + part.step));
    r.optimizer_.update(part.range, part.scale, part.parameters, part.gradients);
    if (r.config_.timeline != nullptr)
      r.config_.timeline->record("update", -1, Track::optimizer, from, Clock::now());
  }
};

/// How a worker processes summed gradients.
template <class Replica>
struct WorkerUpdates {
  Replica* replica;
  float* parameters(Range range) const { return replica->exec_->parameters().data() + range.begin; }
  const float* gradients(Range range) const { return replica->exec_->gradients().data() + range.begin; }
  bool decides() const { return replica->optimizer_.decides(); }
  void arrived(Range range, float scale) const {
    replica->times().lap(Phase::exchange);
    replica->optimizer_.arrived(range, scale, parameters(range), gradients(range));
    replica->times().lap(Phase::norm);
  }
  std::span<double> partial() const { return replica->optimizer_.partial(); }
  Decision decide() const {
    Replica& r = *replica;
    if (!Replica::Space::addressable && !r.comm_.heeds_decisions()) {
      // The updates read the verdict on the device, so the host need not wait for it.
      const Decision decision = r.optimizer_.decide(r.exec_->parameters().data());
      r.now_.norm_follows = r.optimizer_.knows_norm();
      return decision;
    }
    optim::Verdict verdict;
    const Decision decision = r.decide(verdict);
    if (decision != Decision::again && r.optimizer_.knows_norm()) r.now_.gradient_norm = verdict.norm;
    return decision;
  }
  void decided(Decision decision) const { replica->optimizer_.decided(decision); }
  /// Whether the Exec spends the time of the update instead of running the rule, as exec::Replay may.
  bool updates_itself([[maybe_unused]] Range range) const {
    if constexpr (requires { replica->exec_->updates(range); })
      return replica->exec_->updates(range);
    else
      return false;
  }
  void update(Range range, float scale) const {
    Replica& r = *replica;
    r.times().lap(Phase::exchange);
    r.updated_ += range.size();
    const memory::WorkingCopy copy = r.working_copy(range);
    if (!updates_itself(range)) r.optimizer_.update(range, scale, parameters(range), gradients(range), copy);
    if (copy.at == nullptr) r.exec_->touched(range);
    r.times().lap(Phase::update);
  }
};

}  // namespace convoy::train
