// A stage for any loss of kernel/pointwise_loss.hpp, on plain layouts.
#pragma once

#include <cstdint>

#include <convoy/exec/host/computation.hpp>

#if CONVOY_DEFINITIONS
#include <convoy/exec/host/kernel/pointwise_loss.hpp>
#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

template <class F>
class PointwiseLossStage final : public Stage {
 public:
  [[gnu::cold]] PointwiseLossStage(Program& p, const graph::Stage& stage, int index)
      : index_(index), value_(p.yield(stage.output, index)) {
    const int end = value_.wants_gradient ? p.backward_time(index) : index;
    for (int i = 0; i < 2; ++i) {
      input_[i] = p.from(stage.leader, i);
      const Value& x = p.value(input_[i]);
      const Layout plain = describe_plain(p.rows(), p.node(input_[i]));
      if (Program::is_plain(x))
        source_[i] = {{plain, x.data.place}, {plain, x.data.place}};
      else
        source_[i] = p.convert(x.data, plain, index, end);
      p.keep(p.value(input_[i]), end);
    }
  }
  [[gnu::cold]] void plan_backward(Program& p) override {
    const int time = p.backward_time(index_);
    for (int i = 0; i < 2; ++i) {
      const bool is_plain = Program::is_plain(p.value(input_[i]));
      contribution_[i] = p.contribute(input_[i], is_plain, time);
      if (contribution_[i] && !is_plain) {
        const Layout plain = describe_plain(p.rows(), p.node(input_[i]));
        delivery_[i] = {{plain, p.request(plain, time, time)}, contribution_[i].target()};
      }
    }
  }
  [[gnu::cold]] void bind(Program& p) override {
    for (int i = 0; i < 2; ++i) {
      source_[i].bind(p);
      contribution_[i].bind(p);
      delivery_[i].bind(p);
    }
    y_ = p.address(value_.data.place);
    dy_ = p.address(value_.gradient);
  }
  void forward(Program& p) override {
    for (const Conversion& source : source_) source.run();
    pointwise_loss<F>(p.threads(), p.rows(), elements(p), x(p, 0), x(p, 1), y_);
  }
  void backward(Program& p) override {
    add_slope<false>(p, 0);
    add_slope<true>(p, 1);
  }

 private:
  // The addresses of a batch's fields change from call to call.
  const float* x(const Program& p, int i) const { return p.address(source_[i].to().place); }
  std::int64_t elements(const Program& p) const { return p.node(input_[0]).shape.size(); }

  template <bool of_target>
  void add_slope(Program& p, int i) {
    if (!contribution_[i]) return;
    float* d = delivery_[i].is_needed() ? p.address(delivery_[i].from().place) : contribution_[i].pointer();
    pointwise_loss_slope<F, of_target>(p.threads(), p.rows(), elements(p), x(p, 0), x(p, 1), dy_, d,
                                       contribution_[i].accumulates());
    delivery_[i].run();
    contribution_[i].finish(p.threads());
  }

  int index_;
  int input_[2] = {-1, -1};
  Value& value_;
  Conversion source_[2], delivery_[2];
  Contribution contribution_[2];
  float* y_ = nullptr;
  const float* dy_ = nullptr;
};

}  // namespace convoy::exec::host

#endif
