// Feed: the source of a fit's batches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/data/permutation.hpp>
#include <convoy/data/resident.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/exec/counts.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/exec/labels.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/train/binding.hpp>

namespace convoy::train {

class Feed {
 public:
  virtual ~Feed() = default;
  /// Starts epoch `epoch` at its batch `step`.
  virtual void start(std::int64_t epoch, std::int64_t step) = 0;
  /// The next batch of the epoch; there must be one.
  virtual exec::BatchView next() = 0;
  /// The batch that the `i`-th next call of `next` will return, counting from 0, in host memory.
  virtual exec::BatchView ahead(int i) = 0;
};

/// Batches that a loader reads ahead in host memory.
class LoaderFeed final : public Feed {
 public:
  LoaderFeed(const Plan& plan, const data::DatasetRef& set, const data::LoaderOptions& options)
      : binding_(plan, set.fields()), loader_(set, options) {}
  void start(std::int64_t epoch, std::int64_t step) override { loader_.start(epoch, step); }
  exec::BatchView next() override { return binding_.view(*loader_.next()); }
  exec::BatchView ahead(int i) override { return binding_.view(*loader_.peek(i)); }

 private:
  Binding binding_;
  data::Loader<data::DatasetRef> loader_;
};

/// Batches made in a space from a data set resident in its memory; the same rows as a loader's.
template <class Space>
class ResidentFeed final : public Feed, private exec::RowMaker {
 public:
  /// Whether data::Resident supports a set.
  static bool takes(const data::DatasetRef& set) { return set.by_index() || set.stored_images(); }

  /// Reads every sample once. With a seed, each epoch is shuffled differently. Throws ExecError for a label
  /// or an index out of range, ConfigError for a set that data::Resident does not support, and for a model
  /// with a loss whose count depends on label values, which the host does not see.
  ResidentFeed(const Plan& plan, const data::DatasetRef& set, const data::BatchPlan& batches,
               std::optional<std::uint64_t> seed, Space& space)
      : binding_(plan, set.fields()), batches_(batches), seed_(seed), space_(space), there_(space, set) {
    if (exec::counts_by_value(plan))
      fail<ConfigError>(
          "fit: the number of labels that a loss of this model counts depends on their values, which the "
          "host does not see if the data set is resident; leave out FitOptions::resident");
    std::size_t row = 0;
    for (const data::Field& field : set.fields()) row += field.bytes();
    const std::size_t most = std::clamp<std::size_t>(piece / std::max<std::size_t>(row, 1), 1, set.size());
    const data::Samples samples(set.fields(), most);
    std::vector<std::uint64_t> indices(most);
    for (std::size_t first = 0; first < set.size(); first += most) {
      const auto some = std::span(indices).first(std::min(most, set.size() - first));
      std::iota(some.begin(), some.end(), first);
      set.fill({samples.fields(),
                samples.columns().data(),
                0,
                some,
                static_cast<std::int64_t>(first),
                {.seed = seed.value_or(0), .epoch = 0}});
      data::Batch batch;
      batch.rows = static_cast<std::int64_t>(some.size());
      batch.columns = samples.columns();
      batch.indices = some;
      exec::expect_batch(plan, binding_.view(batch), static_cast<int>(some.size()));
      there_.take(first, samples, some.size());
    }
  }

  ResidentFeed(const ResidentFeed&) = delete;
  ResidentFeed& operator=(const ResidentFeed&) = delete;
  /// Waits for the space, because queued steps still make their batches here.
  ~ResidentFeed() override {
    try {
      space_.synchronize();
    } catch (const Error&) {
      // The next use of the space reports the failure.
    }
  }

  void start(std::int64_t epoch, std::int64_t step) override {
    next_ = step;
    there_.start(seed_ ? data::order_of(batches_, *seed_, epoch)
                       : data::Permutation(static_cast<std::uint64_t>(batches_.samples())),
                 {.seed = seed_.value_or(0), .epoch = epoch});
  }
  exec::BatchView next() override {
    const std::int64_t step = next_++;
    there_.go_to(batches_.places(step).begin, batches_.rows(step).begin);
    return {.fields = {}, .rows = static_cast<int>(batches_.rows(step).size()), .maker = this};
  }
  exec::BatchView ahead(int) override { return {}; }

 private:
  static constexpr std::size_t piece = std::size_t{16} << 20;  // bytes read at once

  void make(int k, int rows, void* to) override { there_.make(binding_.field(k), rows, to); }

  Binding binding_;
  data::BatchPlan batches_;
  std::optional<std::uint64_t> seed_;
  Space& space_;
  data::Resident<Space> there_;
  std::int64_t next_ = 0;
};

}  // namespace convoy::train
