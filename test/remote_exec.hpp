// A remote exec: computes what exec::Reference computes, but asynchronously and in a remote space.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "remote_space.hpp"
#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/labels.hpp>
#include <convoy/exec/reference/reference.hpp>

namespace remote_test {

/// An exec::Exec whose arenas lie in a remote space and whose passes return at once.
///
/// Like an Exec in 16 bits, it computes with a working copy of the parameters, renewed when `touched` is
/// called: parameters that were written without a call of `touched` give a different training. It checks a
/// batch's memory when forward is enqueued, when it runs, and when backward runs; `result` throws if the
/// batch has changed.
class RemoteExec {
 public:
  using Scalar = float;
  using Options = exec::ReferenceOptions;
  using Space = Remote;
  using Make = exec::reference::Functions<float>;
  static constexpr std::string_view name = "remote";
  static constexpr int latency = 2;
  static constexpr bool may_overflow = false;
  static constexpr bool sums_across_ranks = false;

  RemoteExec(const Plan& plan, int batch, const Options& options, Space& space,
             const exec::Kernels<RemoteExec>& kernels)
      : plan_(plan),
        batch_(batch),
        space_(&space),
        stream_(plan, batch, options, host_, kernels),
        parameters_(space, stream_.parameters().size()),
        gradients_(space, stream_.gradients().size()),
        statistics_(space, stream_.statistics().size()) {
    space.write(statistics_.data(), stream_.statistics().data(), statistics_.bytes());
    std::int64_t final = 0;
    for (int s = static_cast<int>(plan_.stages.size()) - 1; s >= 0; --s)
      for (int k = 0; k < plan_.stage(s).count; ++k) {
        const int n = plan_.member(s, k);
        for (int u = 0; u < plan_.node(n).uses; ++u) {
          const int p = plan_.graph.parameter(n, u);
          if (!plan_.trained(p) || plan_.slot(p).first != s) continue;
          const std::int64_t end = graph::align_slot(plan_.slot(p).live.end);
          if (end <= final) continue;
          final = end;
          if (finals_.empty() || finals_.back().stage != s)
            finals_.push_back({s, final});
          else
            finals_.back().end = final;
        }
      }
  }
  RemoteExec(const RemoteExec&) = delete;
  RemoteExec& operator=(const RemoteExec&) = delete;
  ~RemoteExec() { space_->synchronize(); }

  Space& space() { return *space_; }
  std::string_view precision() const { return "f32"; }
  std::uint64_t layout_fingerprint() const { return 0; }
  int threads() const { return 1; }
  std::int64_t panel(int) const { return 1; }
  std::span<float> parameters() { return {parameters_.data(), parameters_.size()}; }
  std::span<float> gradients() { return {gradients_.data(), gradients_.size()}; }
  std::span<float> statistics() { return {statistics_.data(), statistics_.size()}; }

  void read_parameter(int i, std::span<float> values) {
    exec::expect_parameter(plan_, i, values.size());
    space_->later([=, this, from = Remote::near(parameters_.data())](memory::Host&) {
      exec::read_canonical(plan_, i, std::span<const float>(from, parameters_.size()), values);
    });
    space_->synchronize();
  }
  void write_parameter(int i, std::span<const float> values) {
    exec::expect_parameter(plan_, i, values.size());
    space_->later([=, this, to = Remote::near(parameters_.data())](memory::Host&) {
      exec::write_canonical(plan_, i, values, std::span<float>(to, parameters_.size()));
      exec::write_canonical(plan_, i, values, stream_.parameters());
    });
    space_->synchronize();
  }
  void read_gradient(int i, std::span<float> values) {
    exec::expect_parameter(plan_, i, values.size());
    space_->later([=, this, from = Remote::near(gradients_.data())](memory::Host&) {
      exec::for_each_element(plan_, i, [&](std::int64_t at, std::int64_t place, bool live) {
        values[static_cast<std::size_t>(at)] = live && plan_.trained(i) ? from[place] : 0.0f;
      });
    });
    space_->synchronize();
  }
  void reorder(int, std::span<const float> from, std::span<float> to, bool) const {
    std::copy(from.begin(), from.end(), to.begin());
  }
  void touched(Range range) {
    space_->later([=, this, from = Remote::near(parameters_.data())](memory::Host&) {
      std::copy(from + range.begin, from + range.end, stream_.parameters().data() + range.begin);
    });
  }

  void forward(const exec::BatchView& batch, const exec::Pass& pass) {
    exec::expect_batch(plan_, batch, batch_);
    given_ = std::make_shared<const Given>(plan_, batch);
    outcome_ = results_.emplace_back(std::make_shared<Outcome>());
    mode_ = pass.mode;
    space_->later([this, pass, given = given_, outcome = outcome_, statistic_count = statistics_.size(),
                   parameters = Remote::near(parameters_.data()),
                   statistics = Remote::near(statistics_.data())](memory::Host&) {
      look_at(*given);
      if (!std::equal(parameters, parameters + parameters_.size(), stream_.parameters().data(), same_bits))
        ++untold_;
      std::copy_n(statistics, statistic_count, stream_.statistics().data());
      try {
        stream_.forward({given->fields, given->rows}, pass);
        const exec::Result result = stream_.result();
        outcome->losses.assign(result.losses.begin(), result.losses.end());
        outcome->metrics.assign(result.metrics.begin(), result.metrics.end());
        outcome->correct = result.correct;
        outcome->labels = result.labels;
      } catch (const Error&) {
        outcome->failure = std::current_exception();
      }
      std::copy_n(stream_.statistics().data(), statistic_count, statistics);
    });
    outcome_->ready = space_->mark();
  }

  template <class OnFinal>
  void backward(std::span<const float> scales, OnFinal&& on_final) {
    if (!outcome_ || mode_ != exec::Mode::train)
      fail<ExecError>("exec: backward needs a forward pass in Mode::train before it");
    space_->later([this, given = given_, outcome = outcome_,
                   scales = std::vector<float>(scales.begin(), scales.end())](memory::Host&) {
      look_at(*given);
      if (!outcome->failure) stream_.backward(scales, [](std::int64_t) {});
    });
    std::int64_t begin = 0;
    for (const Final& final : finals_) {
      space_->later([=, this, to = Remote::near(gradients_.data()), end = final.end](memory::Host&) {
        const float* from = stream_.gradients().data();
        std::copy(from + begin, from + end, to + begin);
      });
      begin = final.end;
      on_final(final.end);
    }
  }

  exec::Result result() {
    if (results_.empty()) fail<ExecError>("exec: a result was asked for before a forward pass");
    taken_ = std::move(results_.front());
    results_.pop_front();
    Remote::wait_on_host(taken_->ready);
    if (taken_->failure) std::rethrow_exception(taken_->failure);
    if (overwritten_ > 0)
      fail<ExecError>("exec: a batch was changed before the stream had passed its last use");
    return {taken_->losses, taken_->metrics, taken_->correct, taken_->labels};
  }

  std::span<const float> output(int k) {
    if (!outcome_) fail<ExecError>("exec: output ", k, " was asked for before a forward pass");
    Remote::wait_on_host(outcome_->ready);
    if (outcome_->failure) std::rethrow_exception(outcome_->failure);
    return stream_.output(k);
  }

  /// How many forward passes found changed parameters in the arena without a call of `touched`.
  int untold() const { return untold_; }
  /// How often a batch had changed before the stream was done with it.
  int overwritten() const { return overwritten_; }

 private:
  // Fields of a batch: own pointers to the caller's memory.
  struct Given {
    Given(const Plan& plan, const exec::BatchView& batch)
        : fields(batch.fields.begin(), batch.fields.end()), rows(batch.rows) {
      for (const auto& node : plan.nodes)
        if (node.given)
          bytes.push_back(static_cast<std::size_t>(rows) * static_cast<std::size_t>(node.shape.size()) *
                          size_of(node.dtype));
      hash = hash_now();
    }
    std::uint64_t hash_now() const {
      std::uint64_t h = hash_start;
      for (std::size_t f = 0; f < fields.size(); ++f)
        h = hash_of(std::string_view(static_cast<const char*>(fields[f]), bytes[f]), h);
      return h;
    }
    std::vector<const void*> fields;
    std::vector<std::size_t> bytes;
    int rows;
    std::uint64_t hash = 0;
  };
  struct Outcome {
    Ready ready;
    std::vector<double> losses, metrics;
    std::int64_t correct = 0, labels = 0;
    std::exception_ptr failure;
  };
  // The part of the gradients that is final once backward has passed a stage.
  struct Final {
    int stage;
    std::int64_t end;
  };

  static bool same_bits(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  }
  void look_at(const Given& given) {
    if (given.hash_now() != given.hash) ++overwritten_;
  }

  const Plan& plan_;
  int batch_;
  Space* space_;
  memory::Host host_;
  exec::Reference<float> stream_;  // used only by the stream's work
  memory::Array<float, Space> parameters_, gradients_, statistics_;
  std::vector<Final> finals_;
  exec::Mode mode_ = exec::Mode::evaluate;
  std::shared_ptr<const Given> given_;
  std::shared_ptr<Outcome> outcome_, taken_;
  std::deque<std::shared_ptr<Outcome>> results_;
  std::atomic<int> overwritten_ = 0, untold_ = 0;
};

}  // namespace remote_test

template <class Op>
requires convoy::exec::HasKernel<convoy::exec::Reference<float>, Op>
struct convoy::exec::Kernel<remote_test::RemoteExec, Op> {
  static constexpr auto make = Kernel<Reference<float>, Op>::make;
};

static_assert(convoy::exec::Exec<remote_test::RemoteExec>);
