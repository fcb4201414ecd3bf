// A 3x3 convolution over a large map by Winograd's algorithm: see exec/host/kernel/winograd.hpp. It is in f32
// whatever the precision: with a quarter of the multiplications, f32 is faster than a direct sum in bf16,
// whose instructions, other than AMX's, multiply at most twice as fast.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <convoy/exec/host/kernel/small_product.hpp>
#include <convoy/exec/host/kernel/taps.hpp>
#include <convoy/exec/host/kernel/winograd.hpp>
#include <convoy/exec/host/op/onednn_convolution.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

class WinogradConvolution final : public ConvolutionKernel {
 public:
  /// Whether these kernels compute a convolution. It must not depend on the batch size, because the order of
  /// the weights does not.
  static bool fits(Program& p, int n) {
    const graph::Node& node = p.node(n);
    const graph::Node& x = p.node(p.from(n, 0));
    const graph::Conv2d::Attributes w = p.attributes<graph::Conv2d>(n);
    const int smallest =
        p.backend().image == dnnl_f32 ? winograd_tuning.smallest_side : winograd_tuning.smallest_side_bf16;
    return p.backend().winograd && w.groups == 1 && w.dilation == 1 && w.height == 3 && w.width == 3 &&
           w.stride == 1 && w.padding == 1 && node.uses == 1 && x.kind == Kind::image && !x.given &&
           node.shape[1] >= smallest && node.shape[2] >= smallest && node.shape[0] % panel_width == 0 &&
           x.shape[0] % panel_width == 0 && !p.parameters().keeps_order(p.parameter(n, 0));
  }

  [[gnu::cold]] WinogradConvolution(Program& p, int n, int stage, const Bound& result)
      : input_(p.from(n, 0)),
        stage_(stage),
        weight_(p.parameter(n, 0)),
        in_{p.value(input_).map},
        out_{blocked_map(p.rows(), p.node(n).shape, p.backend().images)},
        x_(p.value(input_).data),
        y_(result) {
    p.keep(p.value(input_), stage);
    p.parameters().choose(weight_, {panel_width, in_.map.channels, Winograd::taps * Winograd::taps});
    filter_ = p.request(filter_size() * float_bytes, stage, stage);
    matrices_ = p.request(p.threads() * group_size(forward_group()) * float_bytes, stage, stage);
  }

  [[gnu::cold]] Layout choose_backward(Program& p) override {
    return describe_blocked(out_.map, p.backend().image);
  }

  [[gnu::cold]] void plan_backward(Program& p, const Bound& dy) override {
    dy_ = dy;
    trains_ = p.parameters().trained(weight_);
    const int time = p.backward_time(stage_);
    if (trains_) {
      p.assign(weight_);
      p.keep(p.value(input_), time);
      gradient_ = p.request(filter_size() * float_bytes, time, time);
      factors_ = p.request(group_size(gradient_group()) * float_bytes, time, time);
    }
    if (!p.value(input_).wants_gradient) return;
    contribution_ = p.contribute(input_, false, time);
    transposed_ = p.request(weights() * float_bytes, time, time);
    turned_filter_ = p.request(filter_size() * float_bytes, time, time);
    backward_matrices_ = p.request(p.threads() * group_size(forward_group()) * float_bytes, time, time);
  }

  [[gnu::cold]] void bind(Program& p) override { contribution_.bind(p); }

  void forward(Program& p) override {
    float* const filter = p.address(filter_);
    transform_filter(p.threads(), p.parameters().value(weight_), in_.map, out_.map, false, filter);
    multiply(p.threads(), in_, p.pixels(x_), filter, out_, p.pixels(y_), p.address(matrices_));
  }

  void backward(Program& p) override {
    if (trains_) multiply_gradients(p);
    if (!contribution_) return;
    p.gradients_final();
    float *const transposed = p.address(transposed_), *const filter = p.address(turned_filter_);
    transpose_panels(p.threads(), p.parameters().value(weight_), in_.map.channels, out_.map.channels,
                     Winograd::taps * Winograd::taps, transposed);
    transform_filter(p.threads(), transposed, out_.map, in_.map, true, filter);
    multiply(p.threads(), out_, p.pixels(dy_), filter, in_, contribution_.pixels(),
             p.address(backward_matrices_));
    contribution_.finish(p.threads());
  }

  [[gnu::cold]] std::string implementation() const override { return "convoy:winograd"; }

 private:
  static constexpr auto float_bytes = static_cast<std::int64_t>(sizeof(float));

  std::int64_t weights() const {
    return static_cast<std::int64_t>(in_.map.channels) * out_.map.channels * Winograd::taps * Winograd::taps;
  }
  std::int64_t filter_size() const {
    return static_cast<std::int64_t>(in_.map.channels) * out_.map.channels * Winograd::points;
  }
  /// The distance between the channels of two tiles. Rows a multiple of 4096 bytes apart would evict one
  /// another from the first-level cache.
  static std::int64_t step(const Map& map) { return map.channels + column_grain; }
  /// The elements of the matrices of `tiles` tiles of both maps.
  std::int64_t group_size(std::int64_t tiles) const {
    return Winograd::points * tiles * (step(in_.map) + step(out_.map));
  }
  /// The number of tiles whose matrices stay in a thread's second-level cache.
  std::int64_t forward_group() const {
    constexpr std::int64_t grain = 8;
    const std::int64_t most = winograd_tuning.group_bytes / (group_size(1) * float_bytes);
    return std::clamp<std::int64_t>(most / grain * grain, winograd_tuning.fewest_tiles,
                                    (in_.count() + grain - 1) / grain * grain);
  }
  /// The number of tiles for which products are long enough to pay for adding them to the gradient.
  std::int64_t gradient_group() const {
    return std::min<std::int64_t>(in_.count(), winograd_tuning.gradient_tiles);
  }

  /// Transforms panels of a filter from `x` to `y`.
  static void transform_filter(int threads, float* panels, const Map& x, const Map& y, bool turned,
                               float* transformed) {
    const std::int64_t size = static_cast<std::int64_t>(x.channels) * panel_width;
    parallel(threads, [&](int thread, int team) {
      const Range range = share(y.channels / panel_width, thread, team);
      for (std::int64_t panel = range.begin; panel < range.end; ++panel) {
        const WinogradFilter filter{panels + panel * Winograd::taps * Winograd::taps * size,
                                    transformed + panel * size, x.channels,
                                    static_cast<std::int64_t>(x.channels) * y.channels, turned};
        simd::run<WinogradFilterLoop>(&filter);
      }
    });
  }

  /// y = x filter: forward, and backward to the input with the transposed filter. `matrices` has room for a
  /// group of tiles of each thread.
  void multiply(int threads, const WinogradTiles& x_tiles, const Pixels& x, const float* filter,
                const WinogradTiles& y_tiles, const Pixels& y, float* matrices) const {
    const std::int64_t group = forward_group(), x_step = step(x_tiles.map), y_step = step(y_tiles.map);
    const std::int64_t inputs = x_tiles.map.channels, outputs = y_tiles.map.channels;
    parallel(threads, [&](int thread, int team) {
      const Range range = share(x_tiles.count(), thread, team);
      float* const x_matrices = matrices + thread * group_size(group);
      float* const y_matrices = x_matrices + Winograd::points * group * x_step;
      for (std::int64_t first = range.begin; first < range.end; first += group) {
        const int count = static_cast<int>(std::min(group, range.end - first));
        const WinogradTransform from{x_tiles, x, first, count, x_matrices, group * x_step, x_step};
        run_in_lanes<WinogradDataLoop>(x_tiles.map.lanes, &from);
        for (int point = 0; point < Winograd::points; ++point)
          for (std::int64_t out = 0; out < outputs; out += panel_width) {
            SmallProduct product;
            product.m = count;
            product.n = panel_width;
            product.k = static_cast<int>(inputs);
            product.a = x_matrices + point * group * x_step;
            product.a_step = x_step;
            product.b = filter + (point * outputs + out) * inputs;
            product.b_step = panel_width;
            product.c = y_matrices + point * group * y_step + out;
            product.c_step = y_step;
            host::multiply(product);
          }
        const WinogradTransform to{y_tiles, y, first, count, y_matrices, group * y_step, y_step};
        run_in_lanes<WinogradResultLoop>(y_tiles.map.lanes, &to);
      }
    });
  }

  /// Threads share the tiles of a group while they are transformed, and the points and panels while they are
  /// multiplied, so that the order of each sum does not depend on the number of threads.
  void multiply_gradients(Program& p) const {
    const std::int64_t group = gradient_group(), inputs = in_.map.channels, outputs = out_.map.channels;
    const std::int64_t x_step = step(in_.map), panels = outputs / panel_width;
    float* const x_matrices = p.address(factors_);
    float* const dy_matrices = x_matrices + Winograd::points * group * x_step;
    float* const gradient = p.address(gradient_);
    for (std::int64_t first = 0; first < in_.count(); first += group) {
      const std::int64_t count = std::min(group, in_.count() - first);
      parallel(p.threads(), [&](int thread, int team) {
        const Range tiles = share(count, thread, team);
        const int here = static_cast<int>(tiles.size());
        const WinogradTransform x{
            in_,   p.pixels(x_), first + tiles.begin, here, x_matrices + tiles.begin * x_step, group * x_step,
            x_step};
        run_in_lanes<WinogradDataLoop>(in_.map.lanes, &x);
        const WinogradTransform dy{out_,
                                   p.pixels(dy_),
                                   first + tiles.begin,
                                   here,
                                   dy_matrices + tiles.begin * panel_width,
                                   group * outputs,
                                   panel_width,
                                   group * panel_width};
        run_in_lanes<WinogradResultGradientLoop>(out_.map.lanes, &dy);
      });
      parallel(p.threads(), [&](int thread, int team) {
        const Range tasks = share(Winograd::points * panels, thread, team);
        for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
          SmallProduct product;
          product.m = static_cast<int>(inputs);
          product.n = panel_width;
          product.k = static_cast<int>(count);
          product.a = x_matrices + task / panels * group * x_step;
          product.a_step = x_step;
          product.a_by_columns = true;
          product.b = dy_matrices + task * group * panel_width;
          product.b_step = panel_width;
          product.c = gradient + task * inputs * panel_width;
          product.c_step = panel_width;
          product.into = first > 0 ? SmallProduct::Into::add : SmallProduct::Into::assign;
          host::multiply(product);
        }
      });
    }
    parallel(p.threads(), [&](int thread, int team) {
      const Range range = share(panels, thread, team);
      for (std::int64_t panel = range.begin; panel < range.end; ++panel) {
        const WinogradFilter filter{
            p.parameters().gradient(weight_) + panel * Winograd::taps * Winograd::taps * inputs * panel_width,
            gradient + panel * inputs * panel_width, inputs, inputs * outputs};
        simd::run<WinogradFilterGradientLoop>(&filter);
      }
    });
  }

  int input_, stage_, weight_;
  WinogradTiles in_, out_;
  Bound x_, y_, dy_;
  bool trains_ = false;
  Location filter_, matrices_, gradient_, factors_, transposed_, turned_filter_, backward_matrices_;
  Contribution contribution_;
};

}  // namespace convoy::exec::host
