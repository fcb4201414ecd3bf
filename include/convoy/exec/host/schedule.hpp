// Schedule: a whole plan prepared for one batch size, and its execution step by step.
#pragma once

#include <chrono>
#include <memory>
#include <numeric>

#include <convoy/exec/host/linear_step.hpp>
#include <convoy/exec/host/loss_step.hpp>
#include <convoy/exec/host/norm_step.hpp>
#include <convoy/exec/host/profile.hpp>
#include <convoy/exec/host/simple_steps.hpp>

namespace convoy::exec::host {

class Schedule {
 public:
  Schedule(const Plan& plan, Backend& backend, Parameters& parameters, int rows, Buffer<std::byte>& arena,
           Buffer<std::byte>& scratch)
      : program_(plan, backend, parameters, rows) {
    const auto count = plan.steps.size();
    for (std::size_t s = 0; s < count; ++s) steps_.push_back(make(plan.steps[s], static_cast<int>(s)));
    const int last = program_.last_time();
    auto keep = [&](int n) { program_.keep(program_.value(n), last); };
    for (const auto& output : plan.outputs) keep(output.node);
    for (int loss : plan.losses) keep(loss);
    for (const auto& metric : plan.metrics)
      for (int i = 0; i < metric.inputs; ++i) keep(metric.input[i]);

    // Backward is planned in the order in which it runs, because the first to reach a value assigns its
    // gradient.
    for (int loss : plan.losses) seeds_.push_back(program_.contribute(loss, true, static_cast<int>(count)));
    runs_backward_.resize(count);
    for (std::size_t s = count; s-- > 0;) {
      const int output = plan.steps[s].output;
      runs_backward_[s] = steps_[s] != nullptr && program_.value(output).wants_gradient &&
                          program_.value(output).contributions > 0;
      if (runs_backward_[s]) steps_[s]->plan_backward(program_);
    }
    for (const auto& output : plan.outputs) outputs_.push_back(plain(output.node));
    for (const auto& metric : plan.metrics)
      for (int i = 0; i < metric.inputs; ++i) metric_inputs_.push_back(plain(metric.input[i]));

    program_.pack(arena, scratch);
    for (auto& step : steps_)
      if (step) step->bind(program_);
    for (auto& seed : seeds_) seed.bind(program_);
    for (auto& output : outputs_) output.bind(program_);
    for (auto& input : metric_inputs_) input.bind(program_);
    metrics_.resize(plan.metrics.size());
    find_final_ranges();
  }

  int rows() const { return program_.rows(); }
  std::size_t size() const { return steps_.size(); }

  Result forward(const BatchView& batch, Mode mode, std::vector<StepProfile>* profile) {
    program_.take(batch);
    for (std::size_t s = 0; s < steps_.size(); ++s) {
      if (steps_[s] == nullptr) continue;
      if (profile == nullptr) {
        steps_[s]->forward(program_, mode);
        continue;
      }
      const auto start = std::chrono::steady_clock::now();
      steps_[s]->forward(program_, mode);
      (*profile)[s].forward.take(seconds_since(start));
    }
    Result result;
    for (int loss : program_.plan().losses) {
      const float* losses = program_.input(loss);
      for (int r = 0; r < rows(); ++r) result.loss += static_cast<double>(losses[r]);
    }
    if (cross_entropy_ != nullptr) result.correct = cross_entropy_->correct();
    measure();
    return result;
  }

  /// Calls `on_final(n)` whenever a step has made more of the gradient arena final, and after each step.
  void backward(double scale, void (*on_final)(void*, std::int64_t), void* context,
                std::vector<StepProfile>* profile) {
    for (const auto& seed : seeds_)
      if (seed)
        for (int r = 0; r < rows(); ++r)
          seed.pointer()[r] = (seed.accumulates() ? seed.pointer()[r] : 0.0f) + static_cast<float>(scale);
    program_.listen(on_final, context);
    std::int64_t done = 0;
    for (std::size_t s = steps_.size(); s-- > 0;) {
      program_.expect_final(final_[s]);
      if (runs_backward_[s]) {
        if (profile == nullptr) {
          steps_[s]->backward(program_);
        } else {
          const auto start = std::chrono::steady_clock::now();
          steps_[s]->backward(program_);
          (*profile)[s].backward.take(seconds_since(start));
        }
      } else {
        // Nothing reaches these parameters; an exchange or a clip may have left something in their place.
        auto gradients = program_.parameters().gradients();
        std::fill(gradients.begin() + done, gradients.begin() + final_[s], 0.0f);
      }
      done = final_[s];
      program_.gradients_final();
    }
  }

  std::span<const float> output(int k) {
    const auto& conversion = outputs_[static_cast<std::size_t>(k)];
    conversion.run();
    const auto& node = program_.node(program_.plan().outputs[static_cast<std::size_t>(k)].node);
    return {program_.address(conversion.to().place), static_cast<std::size_t>(rows() * node.shape.size())};
  }
  double metric(int k) const { return metrics_[static_cast<std::size_t>(k)]; }

  std::string implementation(std::size_t s) const {
    return steps_[s] == nullptr ? "view" : steps_[s]->implementation();
  }

 private:
  std::unique_ptr<Step> make(const graph::Step& step, int index) {
    switch (step.op) {
      case graph::Op::conv2d:
        return std::make_unique<ConvolutionStep>(program_, step, index);
      case graph::Op::batch_norm:
        return std::make_unique<NormStep>(program_, step, index);
      case graph::Op::relu:
      case graph::Op::add:
        return std::make_unique<ElementwiseStep>(program_, step, index);
      case graph::Op::max_pool:
      case graph::Op::avg_pool:
        return std::make_unique<PoolStep>(program_, step, index);
      case graph::Op::linear:
        return std::make_unique<LinearStep>(program_, step, index);
      case graph::Op::custom:
        return std::make_unique<CustomStep>(program_, step, index);
      case graph::Op::flatten: {
        const int input = program_.node(step.main).input[0];
        if (!Program::is_plain(program_.value(input)))
          return std::make_unique<FlattenStep>(program_, step, index);
        program_.alias(step.main, input);
        return nullptr;
      }
      case graph::Op::cross_entropy: {
        auto made = std::make_unique<CrossEntropyStep>(program_, step, index);
        if (cross_entropy_ == nullptr) cross_entropy_ = made.get();
        return made;
      }
      default:
        break;
    }
    fail<ExecError>("exec: Host does not know the operation ", graph::name_of(step.op), " of ",
                    program_.node(step.main).name);
  }

  /// The value of node `n` in plain layout at the end of a pass.
  Conversion plain(int n) {
    const Value& v = program_.value(n);
    const Desc want = describe_plain(rows(), v.shape);
    if (Program::is_plain(v)) return {{want, v.data.place}, {want, v.data.place}};
    // Outside the lifetimes' order: outputs may be asked for at any time after a pass.
    return {v.data, {want, program_.request(want, 0, program_.last_time())}};
  }

  void measure() {
    std::size_t at = 0;
    for (std::size_t k = 0; k < metrics_.size(); ++k) {
      const graph::Metric& metric = program_.plan().metrics[k];
      graph::Argument inputs[graph::Node::max_inputs];
      for (int i = 0; i < metric.inputs; ++i, ++at) {
        metric_inputs_[at].run();
        inputs[i] = {program_.address(metric_inputs_[at].to().place), program_.node(metric.input[i]).shape};
      }
      metrics_[k] = metric.call(inputs, rows());
    }
  }

  /// The end of the arena prefix that is final after each step: slots stand in the order of backward.
  void find_final_ranges() {
    const Plan& plan = program_.plan();
    final_.resize(steps_.size());
    std::int64_t end = 0;
    for (std::size_t s = steps_.size(); s-- > 0;) {
      for (int node : {plan.steps[s].norm, plan.steps[s].main}) {
        if (node < 0) continue;
        for (int k = 0; k < program_.node(node).parameters; ++k) {
          const int p = program_.node(node).parameter + k;
          if (program_.parameters().trained(p))
            end = std::max(end, graph::align_slot(plan.slots[static_cast<std::size_t>(p)].live.end));
        }
      }
      final_[s] = end;
    }
  }

  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Program program_;
  std::vector<std::unique_ptr<Step>> steps_;  // null: a view
  std::vector<char> runs_backward_;
  std::vector<Contribution> seeds_;
  std::vector<Conversion> outputs_, metric_inputs_;
  std::vector<double> metrics_;
  std::vector<std::int64_t> final_;
  CrossEntropyStep* cross_entropy_ = nullptr;
};

}  // namespace convoy::exec::host
