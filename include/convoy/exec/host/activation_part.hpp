// ActivationPart: an activation fused into the stage of the operation before it.
#pragma once

#include <cstdint>

#include <convoy/exec/host/program.hpp>
#include <convoy/exec/host/values.hpp>

namespace convoy::exec::host {

/// An activation after another operation. `apply` computes y from x; `slope` computes the gradient of x from
/// that of y, where `at` is x, or y if the derivative is a function of y.
class ActivationPart final : public Part {
 public:
  using Apply = void(int threads, std::int64_t count, const float* x, float* y);
  using Slope = void(int threads, std::int64_t count, const float* dy, const float* second, const float* at,
                     float* dx, bool accumulate);

  ActivationPart(Location x, const Value& y, bool of_output, Apply* apply, Slope* slope)
      : x_(x), y_(y.data.place), of_output_(of_output), count_(y.elements()), apply_(apply), slope_(slope) {}
  void plan_backward(Program&, const Value& y, const Bound& dx, bool accumulate_dx) override {
    dy_ = y.gradient;
    second_ = y.second;
    dx_ = dx.place;
    accumulate_dx_ = accumulate_dx;
  }
  void bind(Program& p) override {
    from_ = p.address(x_);
    to_ = p.address(y_);
    d_to_ = p.address(dy_);
    second_to_ = p.address(second_);
    d_from_ = p.address(dx_);
  }
  void forward(Program& p) override { apply_(p.threads(), count_, from_, to_); }
  void backward(Program& p) override {
    slope_(p.threads(), count_, d_to_, second_to_, of_output_ ? to_ : from_, d_from_, accumulate_dx_);
  }

 private:
  Location x_, y_, dy_, second_, dx_;
  bool of_output_, accumulate_dx_ = false;
  std::int64_t count_;
  Apply* apply_;
  Slope* slope_;
  const float* from_ = nullptr;
  float* to_ = nullptr;
  const float* d_to_ = nullptr;
  const float* second_to_ = nullptr;
  float* d_from_ = nullptr;
};

}  // namespace convoy::exec::host
