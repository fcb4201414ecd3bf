// Convolution as products of matrices in f32 over groups of positions (im2col): see
// exec/host/kernel/im2col.hpp. A group's matrices stay in a thread's second-level cache.
//
// It is for images in bf16 on processors that multiply faster in f32: oneDNN's kernels in f32, no slower,
// would need copies of the images.
//
// Weights are in panels, as in exec/host/kernel/taps.hpp: [out / 32][tap][in][32].
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <convoy/exec/host/kernel/im2col.hpp>
#include <convoy/exec/host/kernel/small_product.hpp>
#include <convoy/exec/host/kernel/taps.hpp>
#include <convoy/exec/host/op/onednn_convolution.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

class GemmConvolution final : public ConvolutionKernel {
 public:
  /// Whether these kernels compute a convolution. It must not depend on the batch size, because the order of
  /// the weights does not.
  static bool fits(Program& p, int n) {
    const graph::Node& node = p.node(n);
    const graph::Node& x = p.node(p.from(n, 0));
    const graph::Conv2d::Attributes w = p.attributes<graph::Conv2d>(n);
    return p.backend().image != p.backend().factor && w.groups == 1 && node.uses == 1 &&
           x.kind == Kind::image && !x.given && node.shape[0] % panel_width == 0 &&
           x.shape[0] % panel_width == 0 && !p.parameters().keeps_order(p.parameter(n, 0));
  }

  [[gnu::cold]] GemmConvolution(Program& p, int n, int stage, const Bound& result)
      : input_(p.from(n, 0)),
        stage_(stage),
        weight_(p.parameter(n, 0)),
        window_(p.attributes<graph::Conv2d>(n)),
        taps_(p.plan().live_taps(weight_)),
        in_(p.value(input_).map),
        out_(blocked_map(p.rows(), p.node(n).shape, p.backend().images)),
        x_(p.value(input_).data),
        y_(result) {
    p.keep(p.value(input_), stage);
    p.parameters().choose(weight_, {panel_width, in_.channels, taps_.count()});
    Pass all{{0, 0, 1, out_.height, out_.width}, window_.stride, {}};
    for_each_tap([&](std::int64_t tap, int down, int right) {
      all.taps.push_back({tap, down - window_.padding, right - window_.padding});
    });
    forward_.push_back(std::move(all));
    matrices_ = p.request(p.threads() * group_size(in_, out_) * float_bytes, stage, stage);
  }

  [[gnu::cold]] Layout choose_backward(Program& p) override {
    return describe_blocked(out_, p.backend().image);
  }

  [[gnu::cold]] void plan_backward(Program& p, const Bound& dy) override {
    dy_ = dy;
    trains_ = p.parameters().trained(weight_);
    const int time = p.backward_time(stage_);
    if (trains_) {
      p.assign(weight_);
      p.keep(p.value(input_), time);
      const std::int64_t size = gradient_group() * (out_.channels + p.threads() * panel_width);
      factors_ = p.request(size * float_bytes, time, time);
    }
    if (!p.value(input_).wants_gradient) return;
    contribution_ = p.contribute(input_, false, time);
    transposed_ = p.request(weights() * float_bytes, time, time);
    backward_matrices_ = p.request(p.threads() * group_size(out_, in_) * float_bytes, time, time);
    // The taps that read a position of the input depend on its remainders by the stride.
    const int stride = window_.stride;
    for (int top = 0; top < std::min(stride, in_.height); ++top)
      for (int left = 0; left < std::min(stride, in_.width); ++left) {
        Pass pass{{top, left, stride, (in_.height - top + stride - 1) / stride,
                   (in_.width - left + stride - 1) / stride},
                  1,
                  {}};
        for_each_tap([&](std::int64_t tap, int down, int right) {
          const int y = top + window_.padding - down, x = left + window_.padding - right;
          if (y % stride == 0 && x % stride == 0) pass.taps.push_back({tap, y / stride, x / stride});
        });
        backward_.push_back(std::move(pass));
      }
  }

  [[gnu::cold]] void bind(Program& p) override { contribution_.bind(p); }

  void forward(Program& p) override {
    multiply(p.threads(), in_, p.pixels(x_), p.parameters().value(weight_), out_, p.pixels(y_), forward_,
             p.address(matrices_));
  }

  void backward(Program& p) override {
    if (trains_) multiply_gradients(p);
    if (!contribution_) return;
    p.gradients_final();
    float* const transposed = p.address(transposed_);
    transpose_panels(p.threads(), p.parameters().value(weight_), in_.channels, out_.channels, taps_.count(),
                     transposed);
    multiply(p.threads(), out_, p.pixels(dy_), transposed, in_, contribution_.pixels(), backward_,
             p.address(backward_matrices_));
    contribution_.finish(p.threads());
  }

  [[gnu::cold]] std::string implementation() const override { return "convoy:gemm"; }

 private:
  static constexpr auto float_bytes = static_cast<std::int64_t>(sizeof(float));
  static constexpr GemmTuning tuning = gemm_tuning;

  /// Positions of the result that take the same taps, and each tap with the position of the other map that
  /// it multiplies for the first of them. The next ones are `from_step` apart.
  struct Pass {
    struct Tap {
      std::int64_t index;
      int top, left;
    };
    PositionGrid to;
    int from_step;
    std::vector<Tap> taps;

    PositionGrid from(const Tap& tap) const { return {tap.top, tap.left, from_step, to.down, to.right}; }
  };

  template <class Visit>
  void for_each_tap(Visit visit) const {
    std::int64_t tap = 0;
    for (int y = taps_.top; y < taps_.bottom; ++y)
      for (int x = taps_.left; x < taps_.right; ++x) visit(tap++, y * window_.dilation, x * window_.dilation);
  }

  std::int64_t weights() const {
    return static_cast<std::int64_t>(in_.channels) * out_.channels * taps_.count();
  }
  static int inner(const Map& x) { return std::min(x.channels, tuning.inner_channels); }
  static int outer(const Map& y) { return std::min(y.channels, tuning.outer_channels); }
  /// The distance between rows of results. Rows a multiple of 4096 bytes apart would evict one another from
  /// the first-level cache.
  static int step(const Map& y) { return outer(y) + column_grain; }
  /// The positions of a group.
  static std::int64_t group(const Map& x, const Map& y) {
    const std::int64_t most = tuning.group_bytes / ((inner(x) + step(y)) * float_bytes);
    return std::clamp<std::int64_t>(most / tuning.grain * tuning.grain, tuning.grain, tuning.most_positions);
  }
  /// The elements of the matrices of a group.
  static std::int64_t group_size(const Map& x, const Map& y) { return group(x, y) * (inner(x) + step(y)); }

  /// y = x w: forward, and backward to the input with transposed weights. `matrices` has room for a group of
  /// each thread.
  void multiply(int threads, const Map& x_map, const Pixels& x, const float* w, const Map& y_map,
                const Pixels& y, const std::vector<Pass>& passes, float* matrices) const {
    const std::int64_t most = group(x_map, y_map);
    parallel(threads, [&](int thread, int team) {
      float* const factors = matrices + thread * group_size(x_map, y_map);
      for (const Pass& pass : passes) {
        const Range range =
            share(pass.to.count(y_map), thread, team, static_cast<std::int64_t>(tuning.grain));
        for (std::int64_t first = range.begin; first < range.end; first += most)
          multiply_group(x_map, x, w, y_map, y, pass, first,
                         static_cast<int>(std::min(most, range.end - first)), factors,
                         factors + most * inner(x_map));
      }
    });
  }

  void multiply_group(const Map& x_map, const Pixels& x, const float* w, const Map& y_map, const Pixels& y,
                      const Pass& pass, std::int64_t first, int count, float* factors, float* results) const {
    std::int64_t elements[tuning.most_positions];
    const std::int64_t tap_size = static_cast<std::int64_t>(x_map.channels) * panel_width;
    const std::int64_t panel_size = taps_.count() * tap_size;
    const int results_step = step(y_map);
    for (int out = 0; out < y_map.channels; out += outer(y_map)) {
      const int outs = std::min(outer(y_map), y_map.channels - out);
      bool begun = false;
      for (const Pass::Tap& tap : pass.taps) {
        locate(pass.from(tap), x_map, first, count, elements);
        for (int in = 0; in < x_map.channels; in += inner(x_map)) {
          const int ins = std::min(inner(x_map), x_map.channels - in);
          const PositionMatrix from{&x_map, x, elements, count, in, ins, factors, ins, ins, 0};
          run_in_lanes<Im2colLoop>(x_map.lanes, &from);
          for (int panel = out / panel_width; panel < (out + outs) / panel_width; ++panel) {
            SmallProduct product;
            product.m = count;
            product.n = panel_width;
            product.k = ins;
            product.a = factors;
            product.a_step = ins;
            product.b =
                w + panel * panel_size + tap.index * tap_size + static_cast<std::int64_t>(in) * panel_width;
            product.b_step = panel_width;
            product.c = results + panel * panel_width - out;
            product.c_step = results_step;
            product.into = begun ? SmallProduct::Into::add : SmallProduct::Into::assign;
            host::multiply(product);
          }
          begun = true;
        }
      }
      if (!begun) std::fill_n(results, static_cast<std::int64_t>(count) * results_step, 0.0f);
      locate(pass.to, y_map, first, count, elements);
      const PositionMatrix to{&y_map, y, elements, count, out, outs, results, results_step, outs, 0};
      run_in_lanes<MatrixToImageLoop>(y_map.lanes, &to);
    }
  }

  /// The positions of a group of products that are added to the gradient of the weights.
  std::int64_t gradient_group() const {
    const std::int64_t most = tuning.gradient_bytes / (out_.channels * float_bytes);
    return std::clamp<std::int64_t>(most / tuning.gradient_inner * tuning.gradient_inner,
                                    tuning.gradient_inner, tuning.most_positions);
  }

  /// Gathers channels of positions of a map into panels, which are `panel_step` apart.
  static void gather_panels(const Map& map, const Pixels& image, const PositionGrid& grid, std::int64_t first,
                            int count, int channel, int channels, float* panels, std::int64_t panel_step) {
    std::int64_t elements[tuning.most_positions];
    locate(grid, map, first, count, elements);
    const PositionMatrix matrix{&map,     image,  elements,    count,       channel,
                                channels, panels, panel_width, panel_width, panel_step};
    run_in_lanes<Im2colLoop>(map.lanes, &matrix);
  }

  /// Threads share the positions of dy while they are gathered, and pairs of panels of x and dy while they
  /// are multiplied, so that the order of each sum does not depend on the number of threads.
  void multiply_gradients(Program& p) const {
    const Pass& pass = forward_.front();
    const std::int64_t positions = pass.to.count(out_), most = gradient_group();
    const std::int64_t panel_size = most * panel_width, out_panels = out_.channels / panel_width;
    float* const dy_panels = p.address(factors_);
    for (std::int64_t first = 0; first < positions; first += most) {
      const int count = static_cast<int>(std::min(most, positions - first));
      parallel(p.threads(), [&](int thread, int team) {
        const Range range = share(count, thread, team, tuning.grain);
        gather_panels(out_, p.pixels(dy_), pass.to, first + range.begin, static_cast<int>(range.size()), 0,
                      out_.channels, dy_panels + range.begin * panel_width, panel_size);
      });
      parallel(p.threads(), [&](int thread, int team) {
        multiply_panels(p, thread, team, first, count, dy_panels, panel_size,
                        dy_panels + (out_panels + thread) * panel_size);
      });
    }
  }

  /// Adds a thread's share of the products of a group: of each tap and panel of x, gathered into `x_panel`,
  /// with each panel of dy.
  void multiply_panels(Program& p, int thread, int team, std::int64_t first, int count,
                       const float* dy_panels, std::int64_t panel_size, float* x_panel) const {
    const Pass& pass = forward_.front();
    const std::int64_t in_panels = in_.channels / panel_width, out_panels = out_.channels / panel_width;
    const Range tasks = share(taps_.count() * in_panels * out_panels, thread, team);
    for (std::int64_t task = tasks.begin; task < tasks.end; ++task) {
      const Pass::Tap& tap = pass.taps[static_cast<std::size_t>(task / out_panels / in_panels)];
      const int in = static_cast<int>(task / out_panels % in_panels) * panel_width;
      const std::int64_t out = task % out_panels;
      if (task == tasks.begin || out == 0)
        gather_panels(in_, p.pixels(x_), pass.from(tap), first, count, in, panel_width, x_panel, 0);
      for (int begin = 0; begin < count; begin += tuning.gradient_inner) {
        SmallProduct product;
        product.m = panel_width;
        product.n = panel_width;
        product.k = std::min(tuning.gradient_inner, count - begin);
        product.a = x_panel + begin * panel_width;
        product.a_step = panel_width;
        product.a_by_columns = true;
        product.b = dy_panels + out * panel_size + begin * panel_width;
        product.b_step = panel_width;
        product.c = p.parameters().gradient(weight_) +
                    ((out * taps_.count() + tap.index) * in_.channels + in) * panel_width;
        product.c_step = panel_width;
        product.into = first + begin > 0 ? SmallProduct::Into::add : SmallProduct::Into::assign;
        host::multiply(product);
      }
    }
  }

  int input_, stage_, weight_;
  graph::Window window_;
  graph::Taps taps_;
  Map in_, out_;
  Bound x_, y_, dy_;
  bool trains_ = false;
  std::vector<Pass> forward_, backward_;
  Location matrices_, factors_, transposed_, backward_matrices_;
  Contribution contribution_;
};

}  // namespace convoy::exec::host
