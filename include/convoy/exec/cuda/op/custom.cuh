// A user's operation, by its functions for a device.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <convoy/exec/cuda/plain.cuh>
#include <convoy/exec/cuda/stage.cuh>

namespace convoy::exec::cuda {

/// The user's functions see plain layouts of f32: values and labels, then parameters. Values in other layouts
/// are converted once per pass. A captured graph repeats what these functions enqueued, so they must not
/// allocate memory, wait for the device or depend on host state that varies from step to step.
template <class T>
class CustomStage final : public StageOf<T> {
 public:
  CustomStage(Program& p, const graph::Stage& stage, int index)
      : StageOf<T>(p, stage, index),
        calls_(p.plan().graph.calls_of(stage.leader)),
        inputs_(p.node(stage.leader).inputs),
        uses_(p.node(stage.leader).uses) {
    const int until = this->kept_until(p);
    for (int i = 0; i < inputs_; ++i) {
      const Value& x = this->input(p, i);
      if (is_plain(x)) p.keep(x, until);
      plain_x_.push_back(is_plain(x) ? Location{} : p.request(plain_bytes(x), index, until));
    }
    if (!is_plain(this->value_)) plain_y_ = p.request(plain_bytes(this->value_), index, until);
    // The sum of two gradients is formed when they are converted.
    this->value_.takes_second = !is_plain(this->value_);
  }
  void plan_backward(Program& p) override {
    const int time = this->backward_time(p);
    if (plain_y_) plain_dy_ = p.request(plain_bytes(this->value_), time, time);
    // The operation overwrites every gradient: one that nobody wants, or that is accumulated, needs other
    // memory.
    for (int i = 0; i < inputs_; ++i) {
      const Value& x = this->input(p, i);
      Contribution& dx = dx_.emplace_back();
      Location& plain = plain_dx_.emplace_back();
      if (x.element == DType::i32) continue;
      dx = p.contribute(p.from(this->leader_, i), !is_plain(x), time);
      if (!dx || !is_plain(x)) plain = p.request(plain_bytes(x), time, time);
    }
    for (int k = 0; k < uses_; ++k) {
      const int parameter = p.parameter(this->leader_, k);
      const ParameterGradient& dw = dw_.emplace_back(p.contribute_parameter(parameter));
      const auto bytes = static_cast<std::size_t>(p.plan().parameter(parameter).shape.size()) * sizeof(float);
      plain_dw_.push_back(!dw || dw.accumulate ? p.request(bytes, time, time) : Location{});
    }
  }
  void bind(Program& p) override {
    for (int i = 0; i < inputs_; ++i) {
      const Location& plain = plain_x_[static_cast<std::size_t>(i)];
      arguments_.push_back(
          {p.address<void>(plain ? plain : this->input(p, i).data), p.node(p.from(this->leader_, i)).shape});
    }
    for (int k = 0; k < uses_; ++k) {
      const int parameter = p.parameter(this->leader_, k);
      arguments_.push_back({p.parameters().value(parameter), p.plan().parameter(parameter).shape});
    }
    for (std::size_t i = 0; i < dx_.size(); ++i)
      results_.push_back({plain_dx_[i] ? p.address<void>(plain_dx_[i]) : dx_[i].template pointer<float>(p),
                          arguments_[i].shape});
    for (std::size_t k = 0; k < dw_.size(); ++k)
      results_.push_back({plain_dw_[k] ? p.address<void>(plain_dw_[k]) : dw_[k].pointer,
                          arguments_[static_cast<std::size_t>(inputs_) + k].shape});
    const Shape& shape = p.node(this->leader_).shape;
    y_ = {p.address<void>(plain_y_ ? plain_y_ : this->value_.data), shape};
    arguments_.push_back(y_);
    arguments_.push_back({p.address<void>(plain_y_ ? plain_dy_ : this->value_.gradient), shape});
  }
  void forward(Program& p) override {
    for (int i = 0; i < inputs_; ++i)
      if (const Location& plain = plain_x_[static_cast<std::size_t>(i)])
        image_to_canonical<T, float>(p.stream(), images_of(this->input(p, i)), this->x(p, i),
                                     p.address<float>(plain));
    enqueue(p, calls_.forward_on_stream, &y_);
    if (plain_y_)
      image_to_canonical_backward<float, T>(p.stream(), images_of(this->value_), p.address<float>(plain_y_),
                                            nullptr, this->y(p), false);
  }
  void backward(Program& p) override {
    if (plain_y_)
      image_to_canonical<T, float>(p.stream(), images_of(this->value_), this->dy(p),
                                   p.address<float>(plain_dy_), this->second(p));
    enqueue(p, calls_.backward_on_stream, results_.data());
    for (int i = 0; i < inputs_; ++i) {
      const Contribution& dx = dx_[static_cast<std::size_t>(i)];
      const Location& plain = plain_dx_[static_cast<std::size_t>(i)];
      if (!dx) continue;
      if (plain)
        image_to_canonical_backward<float, T>(p.stream(), images_of(this->input(p, i)),
                                              p.address<float>(plain), nullptr, dx.template pointer<T>(p),
                                              dx.accumulates());
      else
        dx.template finish<float>(p);
    }
    for (std::size_t k = 0; k < dw_.size(); ++k)
      if (dw_[k].accumulate && dw_[k])
        pass<float>(p.stream(), results_[static_cast<std::size_t>(inputs_) + k].shape.size(),
                    p.address<float>(plain_dw_[k]), nullptr, nullptr, dw_[k].pointer, true);
  }

 private:
  void enqueue(const Program& p, graph::StreamCall call, const graph::Argument* to) const {
    enqueue_users(p, call, arguments_.data(), to, p.node(this->leader_).name);
  }

  const graph::CustomCalls& calls_;
  int inputs_, uses_;
  // Plain copies of values and gradients that are not in plain layout or must not be overwritten.
  std::vector<Location> plain_x_, plain_dx_, plain_dw_;
  Location plain_y_, plain_dy_;
  std::vector<Contribution> dx_;
  std::vector<ParameterGradient> dw_;
  std::vector<graph::Argument> arguments_, results_;  // kept, so that a step allocates nothing
  graph::Argument y_;
};

CONVOY_COMPILED_STAGE(CustomStage);

}  // namespace convoy::exec::cuda

namespace convoy::exec {

template <class P>
struct Kernel<Cuda<P>, graph::Custom> : cuda::KernelOf<P, cuda::CustomStage> {
  static constexpr bool fits(const graph::Graph& g, int n) { return g.calls_of(n).on_stream; }
  template <class Node>
  static consteval bool refuse() {
    static_assert(graph::holds<Node>,
                  "convoy: exec::Cuda computes a custom operation or loss by its functions for a device, and "
                  "this one has none: give it static void forward(cudaStream_t, View<const float> x, ..., "
                  "View<float> y) and a backward likewise, or train on exec::Host<f32>");
    return false;
  }
  static std::string explain(const graph::Graph& g, int n) {
    return concat("cuda computes a custom operation or loss by its functions for a device, and ",
                  g.nodes[n].name,
                  " has none: give it static void forward(cudaStream_t, View<const float> x, ..., "
                  "View<float> y) and a backward likewise");
  }
};

}  // namespace convoy::exec
