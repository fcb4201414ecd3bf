// A user's operation.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <vector>

#include <convoy/exec/host/program.hpp>
#endif

namespace convoy::exec {

template <>
struct Kernel<Host<f32>, graph::Custom> {
  static std::unique_ptr<host::Stage> build(host::Program& program, const graph::Stage& stage, int index);
  static constexpr host::Make make{build, 0};
};

#if CONVOY_DEFINITIONS
namespace host {

/// Passes plain layouts to the user's operation: inputs and labels, then parameters.
class CustomStage final : public Stage {
 public:
  [[gnu::cold]] CustomStage(Program& p, const graph::Stage& stage, int index)
      : node_(stage.leader), index_(index), value_(p.yield(stage.output, index)) {
    const graph::Node& node = p.node(node_);
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    for (int i = 0; i < node.inputs; ++i) {
      const int x = p.from(node_, i);
      source_.push_back(plain(p, p.value(x), x, index, end));
      p.keep(p.value(x), end);
    }
    const Layout plain_y = describe_plain(p.rows(), node);
    if (Program::is_plain(value_))
      result_ = {{plain_y, value_.data.place}, {plain_y, value_.data.place}};
    else
      result_ = {{plain_y, p.request(plain_y, index, end)}, value_.data};
    for (int k = 0; k < node.uses; ++k)
      if (p.parameters().panel(p.backend(), p.parameter(node_, k)) != 1)
        fail<ExecError>("exec: the parameter ", p.plan().parameter(p.parameter(node_, k)).name, " of ",
                        node.name, " is stored in the order of another operation's kernel");
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    const graph::Node& node = p.node(node_);
    const int time = p.backward_time(index_);
    const Layout plain_y = describe_plain(p.rows(), node);
    if (Program::is_plain(value_))
      dy_ = {{plain_y, value_.gradient}, {plain_y, value_.gradient}};
    else
      dy_ = {{value_.data.desc, value_.gradient}, {plain_y, p.request(plain_y, time, time)}};
    const auto arguments = static_cast<std::size_t>(node.inputs + node.uses);
    contribution_.resize(arguments);
    dx_.resize(arguments);
    for (std::size_t i = 0; i < arguments; ++i) {
      const int k = static_cast<int>(i) - node.inputs;
      if (k >= 0) {
        const int parameter = p.parameter(node_, k);
        const Layout shape({p.plan().parameter(parameter).shape.size()}, dnnl_x);
        contribution_[i] = p.contribute_parameter(parameter, shape, time);
        const Location place =
            contribution_[i] ? contribution_[i].target().place : p.request(shape, time, time);
        dx_[i] = {{shape, place}, {shape, place}};
        continue;
      }
      const int x = p.from(node_, static_cast<int>(i));
      if (p.node(x).dtype == DType::i32) continue;
      contribution_[i] = p.contribute(x, false, time);
      const Layout plain_x = describe_plain(p.rows(), p.node(x));
      // The operation overwrites every dx, so an unwanted one still needs a buffer.
      if (!contribution_[i])
        dx_[i] = {{plain_x, p.request(plain_x, time, time)}, {}};
      else if (Program::is_plain(p.value(x)))
        dx_[i] = {{plain_x, contribution_[i].target().place}, {plain_x, contribution_[i].target().place}};
      else
        dx_[i] = {{plain_x, p.request(plain_x, time, time)}, contribution_[i].target()};
    }
  }
  [[gnu::cold]] void bind(Program& p) override {
    for (auto& source : source_) source.bind(p);
    for (std::size_t i = 0; i < dx_.size(); ++i) {
      if (contribution_[i]) dx_[i].bind(p);
      contribution_[i].bind(p);
    }
    result_.bind(p);
    dy_.bind(p);
    arguments_.reserve(source_.size() + static_cast<std::size_t>(p.node(node_).uses) + 2);
    results_.resize(dx_.size());
  }
  void forward(Program& p) override {
    gather(p);
    const graph::Argument y{p.address(result_.from().place), p.node(node_).shape};
    p.plan().graph.calls_of(node_).forward<float>()(arguments_.data(), &y, p.rows());
    result_.run();
  }
  void backward(Program& p) override {
    gather(p);
    dy_.run();
    const Shape& shape = p.node(node_).shape;
    arguments_.push_back({p.address(result_.from().place), shape});
    arguments_.push_back({p.address(dy_.to().place), shape});
    for (std::size_t i = 0; i < results_.size(); ++i)
      results_[i] = {p.address(dx_[i].from().place), arguments_[i].shape};
    p.plan().graph.calls_of(node_).backward<float>()(arguments_.data(), results_.data(), p.rows());
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (!contribution_[i]) continue;
      dx_[i].run();
      contribution_[i].finish(p.threads());
    }
  }
  [[gnu::cold]] std::string implementation() const override { return "custom"; }

 private:
  static Conversion plain(Program& p, const Value& v, int n, int begin, int end) {
    const Layout want = describe_plain(p.rows(), p.node(n));
    if (Program::is_plain(v)) return {{want, v.data.place}, {want, v.data.place}};
    return p.convert(v.data, want, begin, end);
  }
  void gather(Program& p) {
    arguments_.clear();
    for (std::size_t i = 0; i < source_.size(); ++i) {
      source_[i].run();
      arguments_.push_back(
          {p.address(source_[i].to().place), p.node(p.from(node_, static_cast<int>(i))).shape});
    }
    for (int k = 0; k < p.node(node_).uses; ++k) {
      const int parameter = p.parameter(node_, k);
      arguments_.push_back({p.parameters().value(parameter), p.plan().parameter(parameter).shape});
    }
  }

  int node_, index_;
  Value& value_;
  std::vector<Conversion> source_, dx_;
  Conversion result_, dy_;
  std::vector<Contribution> contribution_;
  std::vector<graph::Argument> arguments_, results_;  // kept, so that a step allocates nothing
};

}  // namespace host

CONVOY_FUNCTION std::unique_ptr<host::Stage> Kernel<Host<f32>, graph::Custom>::build(
    host::Program& program, const graph::Stage& stage, int index) {
  return std::make_unique<host::CustomStage>(program, stage, index);
}

#endif

}  // namespace convoy::exec
