// Times collective operations: all ranks execute the same iterations, rank 0 sets their number, and the time
// of an iteration is the slowest rank's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <convoy/comm/registry.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>

namespace bench {

/// One operation to be timed. Short ones are timed in batches, each on its own buffer (`k`).
struct Work {
  std::int64_t bytes = 0;                ///< of one operation's buffer
  int batch = 1;                         ///< operations per measurement
  double bus = 1;                        ///< bus bandwidth over algorithm bandwidth
  std::function<void(int k)> refill;     ///< rewrites the buffer; not timed
  std::function<void(int k)> run;        ///< the operation
  std::function<bool(int k)> right;      ///< whether the result is right; may be empty
  double bound = 0;                      ///< lower bound in seconds; 0 if not known in advance
  std::function<void(int k)> bare = {};  ///< or an operation that takes that time: without synchronization
  std::function<void()> end = {};        ///< collective cleanup; may be empty
  bool loose = false;                    ///< `run` may return while others still use the buffer
};

/// A case's name, and its setup, which is collective.
struct Case {
  std::string name;
  std::function<Work()> make;
};

/// Seconds of each batch on the slowest rank.
struct Timing {
  std::vector<double> seconds, bare;

  static double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }
};

/// One rank's side of all measurements. Rank 0 calls `time` and at the end `stop`, the others `follow`.
class Runner {
 public:
  Runner(convoy::comm::Any control, std::vector<Case> cases)
      : control_(std::move(control)), cases_(std::move(cases)) {}

  int rank() const { return control_.rank(); }
  const std::vector<Case>& cases() const { return cases_; }
  const Work& work() const { return work_; }

  Timing time(std::int64_t index, std::int64_t iterations) {
    command(index, iterations);
    return execute(index, iterations);
  }
  void stop() {
    if (rank() == 0) command(-1, 0);
    put_away();
  }
  void follow() {
    while (true) {
      const auto [index, iterations] = command(0, 0);
      if (index < 0) break;
      execute(index, iterations);
    }
    put_away();
  }

 private:
  void put_away() {
    if (work_.end) work_.end();
    work_ = {};
  }
  std::pair<std::int64_t, std::int64_t> command(std::int64_t index, std::int64_t iterations) {
    std::int64_t words[2] = {index, iterations};
    control_.broadcast(std::span<std::int64_t>(words), 0);
    if (words[0] >= static_cast<std::int64_t>(cases_.size()))
      convoy::fail("rank 0 runs case ", words[0], ", but rank ", rank(), " has only ", cases_.size(),
                   " cases; give all ranks the same options");
    return {words[0], words[1]};
  }

  double timed(const std::function<void(int)>& what, bool loose) {
    for (int k = 0; k < work_.batch; ++k) work_.refill(k);
    control_.barrier();
    const convoy::Stopwatch watch;
    for (int k = 0; k < work_.batch; ++k) what(k);
    const double seconds = watch.seconds();
    if (loose) control_.barrier();
    return seconds;
  }

  Timing execute(std::int64_t index, std::int64_t iterations) {
    if (index != current_) {
      control_.barrier();
      put_away();
      work_ = cases_[static_cast<std::size_t>(index)].make();
      current_ = index;
      timed(work_.run, work_.loose);
      for (int k = 0; work_.right && k < work_.batch; ++k)
        if (!work_.right(k))
          convoy::fail(cases_[static_cast<std::size_t>(index)].name, ": rank ", rank(),
                       " has a wrong result");
    }
    Timing timing;
    for (std::int64_t done = 0; done < iterations; done += work_.batch) {
      timing.seconds.push_back(timed(work_.run, work_.loose));
      // Alternating, so that other load on the machine disturbs both alike.
      if (work_.bare) timing.bare.push_back(timed(work_.bare, true));
    }
    control_.all_reduce(std::span<double>(timing.seconds), convoy::comm::max);
    control_.all_reduce(std::span<double>(timing.bare), convoy::comm::max);
    return timing;
  }

  convoy::comm::Any control_;
  std::vector<Case> cases_;
  Work work_;
  std::int64_t current_ = -1;
};

}  // namespace bench
