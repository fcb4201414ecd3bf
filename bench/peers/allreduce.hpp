// Times the all-reduce of another library as comm_bench times convoy's, and writes Google Benchmark's JSON.
// Buffers are rewritten before each iteration, an iteration's time is the slowest rank's, and the counters
// are those of the median iteration.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace peers {

struct Options {
  std::int64_t least = 1 << 10, most = 256 << 20;  // bytes
  double seconds = 0.5;                            // of each repetition
  int repetitions = 5;
  std::string out;

  /// Takes `--least BYTES --most BYTES --seconds S --repetitions N --out FILE`; false if one is wrong.
  bool take(const std::string& name, const char* value) {
    if (name == "--least") return (least = std::atoll(value)) >= 64;
    if (name == "--most") return (most = std::atoll(value)) >= 64;
    if (name == "--seconds") return (seconds = std::atof(value)) > 0;
    if (name == "--repetitions") return (repetitions = std::atoi(value)) > 0;
    if (name == "--out") return !(out = value).empty();
    return false;
  }
};

/// One way to all-reduce: `run(data, count)` sums floats in place.
template <class F>
struct Way {
  std::string name;
  F run;
};

/// `World` has rank(), size(), barrier(), and largest(values, count), an elementwise maximum over ranks.
template <class World>
class Sweep {
 public:
  Sweep(World& world, const Options& options) : world_(world), options_(options) {}

  /// Times all ways at all sizes and writes the best at each size.
  template <class Ways>
  int run(const std::string& library, const std::string& transport, Ways&& ways_for) {
    std::FILE* file = nullptr;
    if (world_.rank() == 0) {
      file = options_.out.empty() ? stdout : std::fopen(options_.out.c_str(), "w");
      if (file == nullptr) std::fprintf(stderr, "cannot write %s\n", options_.out.c_str());
    }
    double failed = world_.rank() == 0 && file == nullptr;
    world_.largest(&failed, 1);
    if (failed > 0) return 1;
    if (file != nullptr)
      std::fprintf(file, "{\"context\": {\"convoy_ranks\": \"%d\"},\n \"benchmarks\": [", world_.size());
    const char* comma = "";
    for (std::int64_t bytes = options_.least; bytes <= options_.most; bytes *= 4) {
      const std::int64_t count = bytes / 4;
      const int batch = static_cast<int>(std::clamp<std::int64_t>((256 << 10) / bytes, 1, 64));
      std::vector<float> values(static_cast<std::size_t>(count * batch));
      std::vector<double> best;
      std::string best_name;
      for (auto& way : ways_for(values.data(), count, batch)) {
        std::vector<double> medians;
        int iterations = 1;
        for (int repetition = -1; repetition < options_.repetitions; ++repetition) {
          auto times = time(way.run, values, count, batch, iterations);
          std::nth_element(times.begin(), times.begin() + iterations / 2, times.end());
          const double median = times[static_cast<std::size_t>(iterations / 2)];
          if (repetition >= 0) medians.push_back(median);
          if (repetition == -1)
            iterations = static_cast<int>(std::clamp(options_.seconds / (median * batch), 3.0, 1e5));
        }
        std::sort(medians.begin(), medians.end());
        if (best.empty() || medians[medians.size() / 2] < best[best.size() / 2]) {
          best = medians;
          best_name = way.name;
        }
      }
      for (std::size_t i = 0; file != nullptr && i < best.size(); ++i, comma = ",")
        std::fprintf(file,
                     "%s\n  {\"name\": \"all_reduce/%s/%s/f32/%lld\", \"run_type\": \"iteration\", "
                     "\"repetition_index\": %zu, \"real_time\": %.6e, \"time_unit\": \"ns\", \"label\": "
                     "\"%s\", \"algbw_GBps\": %.6e, \"busbw_GBps\": %.6e}",
                     comma, library.c_str(), transport.c_str(), static_cast<long long>(bytes), i,
                     best[i] * 1e9, best_name.c_str(), static_cast<double>(bytes) / best[i] * 1e-9,
                     static_cast<double>(bytes) / best[i] * 2e-9 * (world_.size() - 1) / world_.size());
      if (file != nullptr) std::fflush(file);
    }
    if (file != nullptr) {
      std::fprintf(file, "\n ]}\n");
      if (file != stdout) std::fclose(file);
    }
    return 0;
  }

 private:
  /// Seconds of one operation in each iteration on the slowest rank.
  template <class F>
  std::vector<double> time(F& run, std::vector<float>& values, std::int64_t count, int batch,
                           int iterations) {
    std::vector<double> seconds;
    for (int i = 0; i < iterations; ++i) {
      std::fill(values.begin(), values.end(), static_cast<float>(world_.rank() + 1));
      world_.barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (int k = 0; k < batch; ++k) run(k);
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
                        batch);
      const float expected = static_cast<float>(world_.size() * (world_.size() + 1) / 2);
      if (values.front() != expected || values[static_cast<std::size_t>(count * batch) - 1] != expected) {
        std::fprintf(stderr, "rank %d: the all-reduce computed a wrong sum\n", world_.rank());
        std::abort();
      }
    }
    world_.largest(seconds.data(), static_cast<int>(seconds.size()));
    return seconds;
  }

  World& world_;
  Options options_;
};

}  // namespace peers
