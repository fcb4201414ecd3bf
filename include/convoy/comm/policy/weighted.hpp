// Weighted: unequal workers take unequal shares of every batch, over any Comm.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/comm/engine/kernel.hpp>
#include <convoy/comm/operation.hpp>
#include <convoy/core/error.hpp>

namespace convoy::comm {

/// The Comm `C` among workers of unequal speed: `Weighted<Ring<transport::Mpi>>`. Each takes its share of the
/// rows of every global batch, so that all end a step at the same time. The shares are in proportion to
/// weights that are given, or to speeds that Trainer measures before the first step.
///
/// A gradient is that of a sum over rows divided by the rows of all workers, so it travels as with `C` alone;
/// the mean of other values (`reduce(span, mean)`) is the sum over workers of share times value.
template <Comm C>
class Weighted {
 public:
  static constexpr const char* name = "weighted";

  /// One weight for each worker, the same vector on all ranks; none: they are measured. The other arguments
  /// construct the `C`. Throws ConfigError for weights that are no weights.
  template <class... Arguments>
  explicit Weighted(std::vector<double> weights, Arguments&&... arguments)
      : comm_(std::forward<Arguments>(arguments)...), weights_(std::move(weights)) {
    if (!weights_.empty()) shares_ = in_proportion(weights_, comm::workers(comm_), "the weight");
  }

  /// The workers' shares, which sum to 1 and are the same on all ranks: rank 0 decides. If it was given no
  /// weights, shares go by speed. Every worker measures `rounds` times, at the share that the round before
  /// has given it: how fast it computes depends on how many rows it takes at once.
  std::vector<double> shares(MeasureSpeed measure) {
    const std::size_t workers = static_cast<std::size_t>(comm::workers(comm_));
    // Zeros ask all to measure: what rank 0 does decides, or ranks that differ would wait for each other.
    std::vector<double> decided(workers);
    if (rank() == 0 && !weights_.empty()) decided = shares_;
    comm_.broadcast(std::span<double>(decided), 0);
    if (*std::max_element(decided.begin(), decided.end()) == 0) {
      decided.assign(workers, 1.0 / static_cast<double>(workers));
      for (int round = 0; round < rounds; ++round) decided = by_speed(measure, decided);
    }
    return shares_ = decided;
  }
  static constexpr int rounds = 3;

  int rank() const { return comm_.rank(); }
  int size() const { return comm_.size(); }
  Role role() const { return comm_.role(); }
  std::pmr::memory_resource* memory() { return comm_.memory(); }
  void open(const Fingerprint& fingerprint, const Layout& layout) {
    Fingerprint all = fingerprint;
    std::string text;
    for (const double weight : weights_) text += concat(text.empty() ? "" : " ", weight);
    all.add("weights", hash_of_weights(), weights_.empty() ? "measured" : text);
    comm_.open(all, layout);
  }
  void begin(int bucket) { comm_.begin(bucket); }
  void poll() { comm_.poll(); }
  void finish(Update update) { comm_.finish(update); }
  void serve(ServerUpdate update) { comm_.serve(update); }
  void barrier() { comm_.barrier(); }
  void observe(Observer observer) { comm_.observe(observer); }
  Traffic traffic() const { return comm_.traffic(); }
  int workers() const { return comm::workers(comm_); }
  bool lockstep() const { return comm::lockstep(comm_); }
  bool has_servers() const { return comm::has_servers(comm_); }
  std::vector<Range> updates(std::span<const Range> buckets) const { return comm::updates(comm_, buckets); }
  void dismiss() { comm::dismiss(comm_); }

  /// Sum, min and max as with `C`; the mean is weighted by the shares. Throws ConfigError for a mean before
  /// the shares are known.
  template <class E, OperationTag O>
  void all_reduce(std::span<E> values, O op) {
    if constexpr (reducible<E, O>() && O::value == Op::mean) {
      if (role() == Role::worker) scale(values.data(), static_cast<std::int64_t>(values.size()));
      comm_.all_reduce(values, sum);
    } else {
      comm_.all_reduce(values, op);
    }
  }
  template <class E, OperationTag O>
  void reduce(std::span<E> values, O op) {
    all_reduce(values, op);
  }
  /// The same with the reduction as a value.
  void all_reduce(void* values, std::int64_t count, const Reduction& how) {
    if (how.op != Op::mean) return comm_.all_reduce(values, count, how);
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
  template <class E>
  void broadcast(std::span<E> values, int root) {
    comm_.broadcast(values, root);
  }
  void broadcast(void* data, std::size_t bytes, int root) { comm_.broadcast(data, bytes, root); }

 private:
  // The shares that speeds at these shares suggest.
  std::vector<double> by_speed(MeasureSpeed measure, const std::vector<double>& shares) {
    const auto me = static_cast<std::size_t>(rank());
    std::vector<double> speeds(shares.size());
    measure(shares[me], speeds[me]);
    comm_.reduce(std::span<double>(speeds), sum);
    std::vector<double> decided = in_proportion(speeds, comm::workers(comm_), "the measured speed");
    // The same bits on all ranks, whatever the order in which C adds.
    comm_.broadcast(std::span<double>(decided), 0);
    return decided;
  }

  static std::vector<double> in_proportion(std::vector<double> weights, int workers, const char* what) {
    if (weights.size() != static_cast<std::size_t>(workers))
      fail<ConfigError>("weighted: ", weights.size(), " weights for ", workers, " workers; give one to each");
    double total = 0;
    for (std::size_t r = 0; r < weights.size(); ++r) {
      if (!(weights[r] >= 0) || !std::isfinite(weights[r]))
        fail<ConfigError>("weighted: ", what, " of rank ", r, " is ", weights[r],
                          "; it must be a number that is not negative");
      total += weights[r];
    }
    if (!(total > 0) || !std::isfinite(total))
      fail<ConfigError>("weighted: the sum of all ", weights.size(), " weights is ", total,
                        ", so there are no shares");
    for (double& weight : weights) weight /= total;
    return weights;
  }

  std::uint64_t hash_of_weights() const {
    return hash_of({reinterpret_cast<const char*>(weights_.data()), weights_.size() * sizeof(double)});
  }

  template <class E>
  void mean_of(void* values, std::int64_t count) {
    if (role() == Role::worker) scale(static_cast<E*>(values), count);
    comm_.all_reduce(values, count, reduction<E>(sum));
  }

  template <class E>
  void scale(E* values, std::int64_t count) const {
    using Wide = std::conditional_t<std::is_same_v<E, f64>, f64, f32>;
    if (shares_.empty())
      fail<ConfigError>("weighted: a mean before the shares are known; they are measured by shares()");
    const auto share = static_cast<Wide>(shares_[static_cast<std::size_t>(rank())]);
    // Without a share a value does not count, whatever it is: 0 times NaN would.
    for (std::int64_t i = 0; i < count; ++i)
      values[i] = share == 0 ? E(Wide{0}) : E(static_cast<Wide>(values[i]) * share);
  }

  C comm_;
  std::vector<double> weights_, shares_;
};

}  // namespace convoy::comm
