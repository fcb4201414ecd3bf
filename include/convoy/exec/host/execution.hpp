// Execution: a whole plan prepared for one batch size, and its forward and backward stage by stage.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <convoy/core/clock.hpp>
#include <convoy/exec/host/computation.hpp>
#include <convoy/exec/host/profile.hpp>
#include <convoy/exec/host/program.hpp>
#include <convoy/exec/stages.hpp>

namespace convoy::exec::host {

/// The result of a forward pass until it is taken.
struct Measured {
  std::vector<double> losses, metrics;
  std::int64_t correct = 0, labels = 0;
};

class Execution {
 public:
  [[gnu::cold]] Execution(const Plan& plan, Backend& backend, Parameters& parameters,
                          const KernelTable& kernels, int rows, Buffer<std::byte>& arena,
                          Buffer<std::byte>& scratch)
      : graph_stages_(cut_stages(plan, follows(kernels))),
        program_(plan, backend, parameters, kernels, rows, static_cast<int>(graph_stages_.size())),
        runs_backward_(graph_stages_.size()),
        losses_(plan.losses.size()),
        metrics_(plan.metrics.size()),
        finality_(find_finality(plan, graph_stages_)) {
    program_.choose_narrow(graph_stages_);
    for (std::size_t s = 0; s < graph_stages_.size(); ++s) {
      const graph::Stage& stage = graph_stages_[s];
      stages_.push_back(kernels[static_cast<std::size_t>(plan.node(stage.leader).op)].build(
          program_, stage, static_cast<int>(s)));
    }
    keep_results();
    plan_backward();
    convert_results();
    program_.pack(arena, scratch);
    bind();
    find_unreached();
  }

  int rows() const { return program_.rows(); }
  std::size_t size() const { return stages_.size(); }
  int leader(std::size_t s) const { return graph_stages_[s].leader; }

  void forward(const BatchView& batch, const Pass& pass, std::vector<StageProfile>* profile) {
    program_.begin(pass);
    program_.take(batch);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s] == nullptr) continue;
      if (profile == nullptr) {
        stages_[s]->forward(program_);
        continue;
      }
      const Stopwatch watch;
      stages_[s]->forward(program_);
      (*profile)[s].forward.take(watch.seconds());
    }
    deferred_ = pass.mode == Mode::train &&
                std::any_of(stages_.begin(), stages_.end(),
                            [](const auto& stage) { return stage != nullptr && stage->defers(); });
    if (!deferred_) sum_losses();
    measure();
  }

  /// Whether losses of the last forward pass are still to be computed by backward or `complete`.
  bool deferred() const { return deferred_; }
  void complete() {
    for (auto& stage : stages_)
      if (stage != nullptr && stage->defers()) stage->complete(program_);
    sum_losses();
    deferred_ = false;
  }

  /// Copies the result of the last forward pass, which must not be deferred.
  void measured(Measured& to) const {
    to.losses.assign(losses_.begin(), losses_.end());
    to.metrics.assign(metrics_.begin(), metrics_.end());
    to.correct = program_.correct();
    to.labels = program_.labels();
  }

  /// Calls `on_final(n)` when a stage has made more of the gradient arena final, and after each stage.
  void backward(std::span<const float> scales, void (*on_final)(void*, std::int64_t), void* context,
                std::vector<StageProfile>* profile) {
    for (std::size_t l = 0; l < seeds_.size(); ++l)
      if (const Contribution& seed = seeds_[l])
        for (int r = 0; r < rows(); ++r)
          seed.pointer()[r] = (seed.accumulates() ? seed.pointer()[r] : 0.0f) + scales[l];
    program_.listen(on_final, context);
    for (std::size_t s = stages_.size(); s-- > 0;) {
      program_.expect_final(finality_.end[s]);
      // Backward does not reach these parameters; an exchange or clipping may have left values in their
      // gradients.
      for (const Unreached& u : unreached_)
        if (u.stage == s)
          std::fill_n(program_.parameters().gradients().data() + u.live.begin, u.live.size(), 0.0f);
      if (runs_backward_[s]) {
        if (profile == nullptr) {
          stages_[s]->backward(program_);
        } else {
          const Stopwatch watch;
          stages_[s]->backward(program_);
          (*profile)[s].backward.take(watch.seconds());
        }
      }
      program_.gradients_final();
    }
    if (deferred_) sum_losses();
    deferred_ = false;
  }

  std::span<const float> output(int k) {
    const auto& conversion = outputs_[static_cast<std::size_t>(k)];
    conversion.run();
    const auto& node = program_.node(program_.plan().outputs[static_cast<std::size_t>(k)].node);
    return {program_.address(conversion.to().place), static_cast<std::size_t>(rows() * node.shape.size())};
  }

  std::string implementation(std::size_t s) const {
    return stages_[s] == nullptr ? "view" : stages_[s]->implementation();
  }

 private:
  /// A trained parameter that a stage uses in forward but backward does not reach.
  struct Unreached {
    std::size_t stage;
    Range live;
  };

  [[gnu::cold]] static std::vector<std::uint64_t> follows(const KernelTable& kernels) {
    std::vector<std::uint64_t> masks;
    for (const Make& kernel : kernels) masks.push_back(kernel.follows);
    return masks;
  }

  /// Keeps what is read after the last stage until the end of the pass.
  [[gnu::cold]] void keep_results() {
    const Plan& plan = program_.plan();
    const auto keep = [&](int n) { program_.keep(program_.value(n), program_.last_time()); };
    for (const auto& output : plan.outputs) keep(output.node);
    for (const graph::Loss& loss : plan.losses) keep(loss.node);
    for (const auto& metric : plan.metrics)
      for (int i = 0; i < metric.inputs; ++i) keep(plan.graph.edges[metric.input + i]);
  }

  /// Plans backward in the order in which it runs, because the first stage to reach a value assigns its
  /// gradient.
  [[gnu::cold]] void plan_backward() {
    const std::size_t count = graph_stages_.size();
    for (const graph::Loss& loss : program_.plan().losses)
      seeds_.push_back(program_.contribute(loss.node, true, static_cast<int>(count)));
    for (std::size_t s = count; s-- > 0;) {
      const Value& output = program_.value(graph_stages_[s].output);
      runs_backward_[s] = stages_[s] != nullptr && output.wants_gradient && output.contributions > 0;
      if (runs_backward_[s]) stages_[s]->plan_backward(program_);
    }
  }

  [[gnu::cold]] void convert_results() {
    const Plan& plan = program_.plan();
    for (const auto& output : plan.outputs) outputs_.push_back(plain(output.node));
    for (const auto& metric : plan.metrics)
      for (int i = 0; i < metric.inputs; ++i)
        metric_inputs_.push_back(plain(plan.graph.edges[metric.input + i]));
    metric_arguments_ = std::vector<graph::Argument>(metric_inputs_.size());
  }

  [[gnu::cold]] void bind() {
    for (auto& stage : stages_)
      if (stage) stage->bind(program_);
    for (auto& seed : seeds_) seed.bind(program_);
    for (auto& output : outputs_) output.bind(program_);
    for (auto& input : metric_inputs_) input.bind(program_);
  }

  [[gnu::cold]] void find_unreached() {
    const Plan& plan = program_.plan();
    for (std::size_t p = 0; p < plan.parameter_list.size(); ++p) {
      const int i = static_cast<int>(p);
      if (plan.trained(i) && finality_.first[p] >= 0 && !program_.is_assigned(i))
        unreached_.push_back({static_cast<std::size_t>(finality_.first[p]), plan.slot(i).live});
    }
  }

  /// The value of node `n` in plain layout at the end of a pass.
  [[gnu::cold]] Conversion plain(int n) {
    const Value& v = program_.value(n);
    const Layout want = describe_plain(rows(), program_.node(n));
    if (Program::is_plain(v)) return {{want, v.data.place}, {want, v.data.place}};
    // Outputs may be read at any time after a pass, so the copy lives for all of it.
    return {v.data, {want, program_.request(want, 0, program_.last_time())}};
  }

  void sum_losses() {
    for (std::size_t l = 0; l < losses_.size(); ++l) {
      const float* loss = program_.input(program_.plan().losses[l].node);
      losses_[l] = 0;
      for (int r = 0; r < rows(); ++r) losses_[l] += static_cast<double>(loss[r]);
    }
  }

  void measure() {
    std::size_t at = 0;
    for (std::size_t k = 0; k < metrics_.size(); ++k) {
      const graph::Metric& metric = program_.plan().metrics[k];
      graph::Argument* const first = metric_arguments_.data() + at;
      for (int i = 0; i < metric.inputs; ++i, ++at) {
        metric_inputs_[at].run();
        metric_arguments_[at] = {program_.address(metric_inputs_[at].to().place),
                                 program_.node(program_.plan().graph.edges[metric.input + i]).shape};
      }
      metrics_[k] = metric.call(first, rows());
    }
  }

  std::vector<graph::Stage> graph_stages_;
  Program program_;
  std::vector<std::unique_ptr<Stage>> stages_;  // null: a view
  std::vector<char> runs_backward_;
  std::vector<Contribution> seeds_;
  std::vector<Conversion> outputs_, metric_inputs_;
  std::vector<graph::Argument> metric_arguments_;
  std::vector<double> losses_, metrics_;
  bool deferred_ = false;
  Finality finality_;
  std::vector<Unreached> unreached_;
};

}  // namespace convoy::exec::host
