// Weighted: unequal workers take unequal shares of every batch, over any Comm.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/gather.hpp>
#include <convoy/comm/on_spans.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/comm/policy/wrapper.hpp>
#include <convoy/comm/shares.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

/// Options of Weighted.
struct WeightedOptions {
  /// One weight for each worker, the same on all ranks; empty: the workers' speeds are measured.
  std::vector<double> weights = {};

  static constexpr void fields(auto& self, auto&& field) { field("weights", self.weights); }
};

/// Wraps the Comm `C` for workers of unequal speed: `Weighted<Ring<transport::Mpi>>`. Each worker takes its
/// share of the rows of every global batch, so that all end a step at the same time. The shares are in
/// proportion to the given weights, or to speeds that Trainer measures before the first step.
///
/// A worker's gradient is a sum over its rows divided by the rows of all workers, so gradients are exchanged
/// as with `C` alone. The mean of other values (`all_reduce(span, mean)`) is the sum over workers of share
/// times value.
template <Comm C>
class Weighted : public Wrapper<C>, public OnSpans<Weighted<C>> {
  using Base = Wrapper<C>;

 public:
  using Options = WeightedOptions;

  /// The other arguments construct the `C`. Throws ConfigError for weights that `shares_of` rejects.
  template <class... Arguments>
  explicit Weighted(const Options& options, Arguments&&... arguments)
      : Base(std::in_place, std::forward<Arguments>(arguments)...), options_(options) {
    if (!options_.weights.empty()) shares_ = shares_of(options_.weights, this->workers(), "the weight");
  }

  /// The workers' shares, which sum to 1 and are the same on all ranks, because rank 0 decides. If rank 0 was
  /// given no weights, the shares are in proportion to speed. Every worker measures `rounds` times, each time
  /// at its share from the round before, because its speed depends on how many rows it takes at once.
  std::vector<double> shares(MeasureSpeed measure) {
    const std::size_t workers = static_cast<std::size_t>(this->workers());
    // Zeros ask all to measure. Only rank 0's weights count, or ranks that differ would wait for each other.
    std::vector<double> decided(workers);
    if (this->rank() == 0 && !options_.weights.empty()) decided = shares_;
    this->broadcast(std::span<double>(decided), 0);
    if (*std::max_element(decided.begin(), decided.end()) == 0) {
      decided.assign(workers, 1.0 / static_cast<double>(workers));
      for (int round = 0; round < rounds; ++round) decided = by_speed(measure, decided);
    }
    return shares_ = decided;
  }
  static constexpr int rounds = 3;

  void open(const Fingerprint& fingerprint, const Layout& layout) {
    Fingerprint all = fingerprint;
    all.add("weighted", options_);
    Base::open(all, layout);
  }

  using OnSpans<Weighted>::all_reduce;
  using Base::broadcast;
  /// Sum, min and max as with `C`; the mean is weighted by the shares. Throws ConfigError for a mean before
  /// the shares are known.
  void all_reduce(void* values, std::int64_t count, const Reduction& how) {
    if (how.op != Op::mean) return Base::all_reduce(values, count, how);
    switch (how.type) {
      case DType::f32:
        return mean_of<f32>(values, count);
      case DType::f64:
        return mean_of<f64>(values, count);
      case DType::bf16:
        return mean_of<bf16>(values, count);
      case DType::f16:
        return mean_of<f16>(values, count);
      default:
        fail<ConfigError>("weighted: a mean of ", name_of(how.type), " is not defined");
    }
  }

 private:
  // New shares, in proportion to the speeds measured at `shares`.
  std::vector<double> by_speed(MeasureSpeed measure, const std::vector<double>& shares) {
    double mine = 0;
    measure(shares[static_cast<std::size_t>(this->rank())], mine);
    const std::vector<double> speeds =
        gathered(this->rank(), this->workers(), std::span<const double>(&mine, 1),
                 [&](std::span<i32> all) { Base::all_reduce(all, sum); });
    std::vector<double> decided = shares_of(speeds, this->workers(), "the measured speed");
    // Gives all ranks the same bits, in whatever order C adds.
    this->broadcast(std::span<double>(decided), 0);
    return decided;
  }

  template <class E>
  void mean_of(void* values, std::int64_t count) {
    if (this->role() == Role::worker) scale(static_cast<E*>(values), count);
    Base::all_reduce(values, count, reduction<E>(sum));
  }

  template <class E>
  void scale(E* values, std::int64_t count) const {
    using Wide = std::conditional_t<std::is_same_v<E, f64>, f64, f32>;
    if (shares_.empty())
      fail<ConfigError>(
          "weighted: a mean was asked for before the shares are known; call shares() first, which measures "
          "them");
    const auto share = static_cast<Wide>(shares_[static_cast<std::size_t>(this->rank())]);
    // A value without a share must not count, but 0 times NaN would.
    for (std::int64_t i = 0; i < count; ++i)
      values[i] = share == 0 ? E(Wide{0}) : E(static_cast<Wide>(values[i]) * share);
  }

  Options options_;
  std::vector<double> shares_;
};

}  // namespace convoy::comm
