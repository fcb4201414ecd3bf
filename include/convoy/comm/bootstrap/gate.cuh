// Gate: ranks that are threads of one process meet here on the host, around each exchange of their GPUs.
//
// The kernels of an exchange wait for one another. Other CUDA calls may wait for all work of a GPU and of the
// GPUs that access its memory: cudaFree and cudaFreeHost do, and the first use of a kernel or of a graph may.
// A rank inside such a call would wait for an exchange that waits for this rank. So no rank of a process
// enqueues its part of an exchange before all are about to, and none goes on before all have enqueued theirs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include <convoy/comm/bootstrap/bootstrap.hpp>
#include <convoy/comm/bootstrap/place.cuh>
#include <convoy/comm/transport/transport.hpp>
#include <convoy/core/clock.hpp>

namespace convoy::comm::detail {

/// One rank's access to the gate of its process. A rank that is alone in its process never waits.
class Gate {
 public:
  /// A rank that did not come to a meeting.
  struct Missing {
    int rank = 0;
    bool left = false;  ///< the rank has left; otherwise it is late
    std::uint64_t meeting = 0;
  };

  /// All ranks of the bootstrap construct one together; `places` are those of all ranks.
  Gate(AnyBootstrap& ranks, std::span<const Place> places) : rank_(static_cast<std::size_t>(ranks.rank())) {
    for (std::size_t r = 0; r < places.size(); ++r)
      if (places[r].shares_process(places[rank_])) members_.push_back(r);
    const auto mine = std::make_shared<Shared>(places.size());
    const std::shared_ptr<Shared>* const offered = &mine;
    std::vector<const std::shared_ptr<Shared>*> all(places.size());
    ranks.all_gather(std::as_bytes(std::span(&offered, 1)), std::as_writable_bytes(std::span(all)));
    shared_ = *all[members_.front()];
    ranks.barrier();  // `mine` must live until all ranks have copied it
  }

  /// Whether other ranks are in the process.
  bool joins() const { return members_.size() > 1; }

  /// Returns nullopt once all ranks of the process have called `meet` as often as this one, or a rank that
  /// has not done so within `limit` or has left.
  std::optional<Missing> meet(Seconds limit) {
    if (!joins()) return std::nullopt;
    const Deadline deadline(limit);
    std::unique_lock lock(shared_->mutex);
    const std::uint64_t meeting = ++shared_->came[rank_];
    lock.unlock();
    shared_->changed.notify_all();
    // Most meetings end sooner than a thread that sleeps would wake.
    for (int looks = transport::patience_of(static_cast<int>(members_.size())); looks > 0; --looks) {
      if (std::all_of(members_.begin(), members_.end(),
                      [&](std::size_t r) { return shared_->came[r] >= meeting; }))
        return std::nullopt;
      transport::pause();
    }
    lock.lock();
    for (const std::size_t r : members_)
      while (shared_->came[r] < meeting) {
        if (shared_->left[r] || deadline.expired())
          return Missing{static_cast<int>(r), shared_->left[r], meeting};
        shared_->changed.wait_for(lock, std::chrono::milliseconds(100));
      }
    return std::nullopt;
  }
  /// From now on the others do not wait for this rank.
  void leave() noexcept {
    const std::lock_guard lock(shared_->mutex);
    shared_->left[rank_] = true;
    shared_->changed.notify_all();
  }

 private:
  struct Shared {
    explicit Shared(std::size_t ranks) : came(ranks), left(ranks) {}
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::atomic<std::uint64_t>> came;  // by rank: how often
    std::vector<bool> left;
  };

  std::size_t rank_;
  std::vector<std::size_t> members_;  // the ranks of the process
  std::shared_ptr<Shared> shared_;
};

}  // namespace convoy::comm::detail
