// Steps that meet the user's side: softmax cross-entropy, custom operations and losses.
#pragma once

#include <cstring>

#include <convoy/exec/host/loss.hpp>
#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

class CrossEntropyStep final : public Step {
 public:
  CrossEntropyStep(Program& p, const graph::Step& step, int index)
      : node_(step.main),
        index_(index),
        logits_(p.node(node_).input[0]),
        labels_(p.node(node_).input[1]),
        value_(p.yield(step.output, index)) {
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    normalizers_ = p.request(p.rows() * static_cast<std::int64_t>(sizeof(float)), index, end);
    p.keep(p.value(logits_), end);
  }
  void plan_backward(Program& p) override {
    contribution_ = p.contribute(logits_, true, p.backward_time(index_));
  }
  void bind(Program& p) override {
    contribution_.bind(p);
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
    sums_ = p.address(normalizers_);
  }
  void forward(Program& p, Mode) override {
    const int classes = p.node(node_).classes;
    const i32* labels = p.labels(labels_);
    for (int r = 0; r < p.rows(); ++r)
      if (labels[r] < 0 || labels[r] >= classes)
        fail<ExecError>("exec: the label of row ", r, " is ", labels[r], ", but ", p.node(node_).name,
                        " has ", classes, " classes");
    correct_ = cross_entropy_forward(p.rows(), classes, p.input(logits_), labels, y_, sums_);
  }
  void backward(Program& p) override {
    if (contribution_)
      cross_entropy_backward(p.rows(), p.node(node_).classes, p.input(logits_), p.labels(labels_), sums_, dy_,
                             contribution_.pointer(), contribution_.accumulates());
  }
  std::int64_t correct() const { return correct_; }

 private:
  int node_, index_, logits_, labels_;
  Value& value_;
  Place normalizers_;
  Contribution contribution_;
  float* y_ = nullptr;
  const float* dy_ = nullptr;
  float* sums_ = nullptr;
  std::int64_t correct_ = 0;
};

/// A user's operation, which sees plain layouts.
class CustomStep final : public Step {
 public:
  CustomStep(Program& p, const graph::Step& step, int index)
      : node_(step.main), index_(index), value_(p.yield(step.output, index)) {
    const graph::Node& node = p.node(node_);
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    for (int i = 0; i < node.inputs; ++i) {
      source_[i] = plain(p, p.value(node.input[i]), node.input[i], index, end);
      p.keep(p.value(node.input[i]), end);
    }
    const Desc plain_y = describe_plain(p.rows(), value_.shape);
    if (Program::is_plain(value_))
      result_ = {{plain_y, value_.data.place}, {plain_y, value_.data.place}};
    else
      result_ = {{plain_y, p.request(plain_y, index, end)}, value_.data};
  }
  void plan_backward(Program& p) override {
    const graph::Node& node = p.node(node_);
    const int time = p.backward_time(index_);
    const Desc plain_y = describe_plain(p.rows(), value_.shape);
    if (Program::is_plain(value_))
      dy_ = {{plain_y, value_.gradient}, {plain_y, value_.gradient}};
    else
      dy_ = {{value_.data.desc, value_.gradient}, {plain_y, p.request(plain_y, time, time)}};
    for (int i = 0; i < node.inputs; ++i) {
      if (p.node(node.input[i]).op == graph::Op::label) continue;
      contribution_[i] = p.contribute(node.input[i], false, time);
      const Desc plain_x = describe_plain(p.rows(), p.node(node.input[i]).shape);
      // The operation overwrites every dx, so one that nobody wants still needs a place.
      if (!contribution_[i])
        dx_[i] = {{plain_x, p.request(plain_x, time, time)}, {}};
      else if (Program::is_plain(p.value(node.input[i])))
        dx_[i] = {{plain_x, contribution_[i].target().place}, {plain_x, contribution_[i].target().place}};
      else
        dx_[i] = {{plain_x, p.request(plain_x, time, time)}, contribution_[i].target()};
    }
  }
  void bind(Program& p) override {
    for (int i = 0; i < graph::Node::max_inputs; ++i) {
      source_[i].bind(p);
      if (contribution_[i]) dx_[i].bind(p);
      contribution_[i].bind(p);
    }
    result_.bind(p);
    dy_.bind(p);
  }
  void forward(Program& p, Mode) override {
    const graph::Node& node = p.node(node_);
    graph::Argument inputs[graph::Node::max_inputs];
    gather(p, inputs);
    const graph::Argument y{p.address(result_.from().place), node.shape};
    node.custom->forward<float>()(inputs, &y, p.rows());
    result_.run();
  }
  void backward(Program& p) override {
    const graph::Node& node = p.node(node_);
    graph::Argument inputs[graph::Node::max_inputs + 2], outputs[graph::Node::max_inputs];
    gather(p, inputs);
    dy_.run();
    inputs[node.inputs] = {p.address(result_.from().place), node.shape};
    inputs[node.inputs + 1] = {p.address(dy_.to().place), node.shape};
    for (int i = 0; i < node.inputs; ++i)
      outputs[i] = {p.address(dx_[i].from().place), p.node(node.input[i]).shape};
    node.custom->backward<float>()(inputs, outputs, p.rows());
    for (int i = 0; i < node.inputs; ++i) {
      if (!contribution_[i]) continue;
      dx_[i].run();
      contribution_[i].finish(p.threads());
    }
  }
  std::string implementation() const override { return "custom"; }

 private:
  static Conversion plain(Program& p, const Value& v, int n, int begin, int end) {
    const Desc want = describe_plain(p.rows(), p.node(n).shape);
    if (Program::is_plain(v)) return {{want, v.data.place}, {want, v.data.place}};
    return p.convert(v.data, want, begin, end);
  }
  void gather(Program& p, graph::Argument* inputs) {
    const graph::Node& node = p.node(node_);
    for (int i = 0; i < node.inputs; ++i) {
      source_[i].run();
      inputs[i] = {p.address(source_[i].to().place), p.node(node.input[i]).shape};
    }
  }

  int node_, index_;
  Value& value_;
  Conversion source_[graph::Node::max_inputs], result_, dy_, dx_[graph::Node::max_inputs];
  Contribution contribution_[graph::Node::max_inputs];
};

}  // namespace convoy::exec::host
