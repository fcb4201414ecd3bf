// A convolution over a small map by convoy's own kernels: see exec/host/kernel/taps.hpp. oneDNN's kernels
// tile over positions and multiply padding; for a map with few positions and a batch of many images, tiles of
// images are up to four times faster.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <convoy/exec/host/kernel/taps.hpp>
#include <convoy/exec/host/op/onednn_convolution.hpp>
#include <convoy/exec/host/tuning.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::exec::host {

class TapConvolution final : public ConvolutionKernel {
 public:
  /// Whether these kernels compute a convolution. It must not depend on the batch size, because the order of
  /// the weights does not.
  static bool fits(Program& p, int n) {
    const graph::Node& node = p.node(n);
    const int x = p.from(n, 0);
    const Shape& in = p.node(x).shape;
    const graph::Conv2d::Attributes w = p.attributes<graph::Conv2d>(n);
    return w.groups == 1 && w.dilation == 1 && p.node(x).kind == Kind::image && !p.node(x).given &&
           node.uses == 1 && in[0] % panel_width == 0 && node.shape[0] % panel_width == 0 &&
           is_small(w, node.shape, in, p.backend().image == dnnl_f32) &&
           !p.parameters().keeps_order(p.parameter(n, 0));
  }

  [[gnu::cold]] TapConvolution(Program& p, int n, int stage, const Bound& result)
      : input_(p.from(n, 0)), stage_(stage), weight_(p.parameter(n, 0)), taps_(p.plan().live_taps(weight_)) {
    const graph::Node& node = p.node(n);
    in_ = p.value(input_).map;
    out_ = blocked_map(p.rows(), node.shape, p.backend().images);
    x_ = p.value(input_).data.place;
    y_ = result.place;
    p.keep(p.value(input_), stage);
    const std::int64_t in = in_.channels, taps = taps_.count();
    p.parameters().choose(weight_, {panel_width, in, taps});

    const graph::Window w = p.attributes<graph::Conv2d>(n);
    for (int oy = 0; oy < out_.height; ++oy)
      for (int ox = 0; ox < out_.width; ++ox)
        for (int ky = taps_.top; ky < taps_.bottom; ++ky)
          for (int kx = taps_.left; kx < taps_.right; ++kx) {
            const int iy = oy * w.stride - w.padding + ky, ix = ox * w.stride - w.padding + kx;
            if (iy < 0 || iy >= in_.height || ix < 0 || ix >= in_.width) continue;
            products_.push_back({iy * in_.width + ix, (ky - taps_.top) * taps_.width() + kx - taps_.left,
                                 oy * out_.width + ox});
          }
    forward_ = group(&Product::output, out_.positions(), &Product::input, in_.position_stride, &Product::tap,
                     in * panel_width);
  }

  [[gnu::cold]] Layout choose_backward(Program&) override { return describe_blocked(out_); }

  [[gnu::cold]] void plan_backward(Program& p, const Bound& dy) override {
    dy_ = dy.place;
    trains_ = p.parameters().trained(weight_);
    const int time = p.backward_time(stage_);
    if (trains_) {
      p.assign(weight_);
      p.keep(p.value(input_), time);
      gradients_ = group(&Product::tap, taps_.count(), &Product::input, in_.position_stride, &Product::output,
                         panel_width);
      packed_ = p.request(p.threads() * packed_size() * static_cast<std::int64_t>(sizeof(float)), time, time);
    }
    if (!p.value(input_).wants_gradient) return;
    contribution_ = p.contribute(input_, false, time);
    transposed_ = p.request(weights() * static_cast<std::int64_t>(sizeof(float)), time, time);
    backward_ = group(&Product::input, in_.positions(), &Product::output, out_.position_stride, &Product::tap,
                      static_cast<std::int64_t>(out_.channels) * panel_width);
  }

  [[gnu::cold]] void bind(Program& p) override {
    contribution_.bind(p);
    w_ = p.parameters().value(weight_);
    dw_ = p.parameters().gradient(weight_);
    from_ = p.address(x_);
    to_ = p.address(y_);
    d_to_ = p.address(dy_);
    wt_ = p.address(transposed_);
    packed_dy_ = p.address(packed_);
  }

  void forward(Program& p) override { multiply(p.threads(), in_, from_, w_, out_, to_, forward_); }

  void backward(Program& p) override {
    if (trains_) multiply_gradients(p.threads());
    if (!contribution_) return;
    p.gradients_final();
    transpose_panels(p.threads(), w_, in_.channels, out_.channels, taps_.count(), wt_);
    multiply(p.threads(), out_, d_to_, wt_, in_, contribution_.pointer(), backward_);
    contribution_.finish(p.threads());
  }

  [[gnu::cold]] std::string implementation() const override { return "convoy:taps"; }

 private:
  /// Whether oneDNN's kernels are slower, see TapTuning.
  static bool is_small(const graph::Window& w, const Shape& out, const Shape& in, bool in_f32) {
    constexpr TapTuning t = tap_tuning;
    if (w.height * w.width == 1)
      return in[1] * in[2] <= (!in_f32         ? t.most_positions_1x1_bf16
                               : w.stride == 1 ? t.most_positions_1x1
                                               : t.most_positions_1x1_strided);
    return out[1] * out[2] <= (in_f32 ? t.most_positions : t.most_positions_bf16);
  }

  struct Product {
    std::int64_t input, tap, output;
  };
  /// Pairs by key: those of key k are [begin[k], begin[k + 1]).
  struct Groups {
    std::vector<TapPair> pairs;
    std::vector<int> begin;
    const TapPair* of(std::int64_t k) const { return pairs.data() + begin[static_cast<std::size_t>(k)]; }
    int count(std::int64_t k) const {
      return begin[static_cast<std::size_t>(k) + 1] - begin[static_cast<std::size_t>(k)];
    }
  };

  /// Groups the products by the member `key`, which is below `keys`. A pair has the other two members as
  /// offsets in elements.
  [[gnu::cold]] Groups group(std::int64_t Product::*key, std::int64_t keys, std::int64_t Product::*first,
                             std::int64_t first_step, std::int64_t Product::*second,
                             std::int64_t second_step) const {
    Groups groups;
    for (std::int64_t k = 0; k < keys; ++k) {
      groups.begin.push_back(static_cast<int>(groups.pairs.size()));
      for (const Product& product : products_)
        if (product.*key == k)
          groups.pairs.push_back({product.*first * first_step, product.*second * second_step});
    }
    groups.begin.push_back(static_cast<int>(groups.pairs.size()));
    return groups;
  }

  std::int64_t weights() const {
    return static_cast<std::int64_t>(in_.channels) * out_.channels * taps_.count();
  }

  /// y = x w over every panel and position: forward, and backward to the input with transposed weights. If
  /// there are too few panels and positions for the team, threads share images as well, which changes no sum.
  void multiply(int threads, const Map& x_map, const float* x, const float* w, const Map& y_map, float* y,
                const Groups& groups) const {
    const std::int64_t positions = y_map.positions(), panels = y_map.channels / panel_width;
    const std::int64_t panel_size = static_cast<std::int64_t>(x_map.channels) * taps_.count() * panel_width;
    const std::int64_t parts =
        panels * positions % threads == 0 ? 1 : (4 * threads + panels * positions - 1) / (panels * positions);
    // The blocks of input channels whose part of a panel stays in the second-level cache over all of the
    // panel's positions.
    const std::int64_t block_bytes = panel_size / x_map.blocks * static_cast<std::int64_t>(sizeof(float));
    const auto most =
        static_cast<int>(std::clamp<std::int64_t>(tap_tuning.cache_bytes / block_bytes, 1, x_map.blocks));
    parallel(threads, [&](int thread, int team) {
      const Range tasks = share(panels * positions * parts, thread, team);
      std::int64_t end = tasks.begin;
      for (std::int64_t begin = tasks.begin; begin < tasks.end; begin = end) {
        const std::int64_t panel = begin / parts / positions;
        end = std::min(tasks.end, (panel + 1) * positions * parts);
        for (int block = 0; block < x_map.blocks; block += most)
          for (std::int64_t task = begin; task < end; ++task) {
            const std::int64_t position = task / parts % positions;
            const Range rows = share(x_map.rows, static_cast<int>(task % parts), static_cast<int>(parts), 8);
            TapProduct product;
            product.x = x + rows.begin * x_map.row_stride + block * x_map.block_stride;
            product.panel =
                w + panel * panel_size + static_cast<std::int64_t>(block) * x_map.lanes * panel_width;
            product.y = y + rows.begin * y_map.row_stride +
                        panel * panel_width / y_map.lanes * y_map.block_stride +
                        position * y_map.position_stride;
            product.x_row = x_map.row_stride;
            product.x_block = x_map.block_stride;
            product.y_row = y_map.row_stride;
            product.y_block = y_map.block_stride;
            product.blocks = std::min(most, x_map.blocks - block);
            product.lanes = x_map.lanes;
            product.rows = static_cast<int>(rows.size());
            product.pairs = groups.of(position);
            product.pair_count = groups.count(position);
            product.accumulate = block > 0;
            run_in_lanes<TapProductLoop>(product.lanes, static_cast<const TapProduct*>(&product));
          }
      }
    });
  }

  /// The number of images whose part of both maps stays in a thread's second-level cache over all taps.
  int chunk() const {
    const std::int64_t row_bytes =
        (in_.row_stride + panel_width * out_.positions()) * static_cast<std::int64_t>(sizeof(float));
    // At least 128 products for each load and store of a tile of sums.
    const std::int64_t least = (128 + out_.positions() - 1) / out_.positions();
    return static_cast<int>(
        std::min<std::int64_t>(in_.rows, std::max(least, tap_tuning.cache_bytes / row_bytes)));
  }
  std::int64_t packed_size() const { return chunk() * out_.positions() * panel_width; }

  void multiply_gradients(int threads) const {
    const std::int64_t taps = taps_.count(), panels = out_.channels / panel_width;
    const int most = chunk();
    parallel(threads, [&](int thread, int team) {
      float* packed = packed_dy_ + thread * packed_size();
      const Range tasks = share(panels * taps, thread, team);
      std::int64_t end = tasks.begin;
      for (std::int64_t begin = tasks.begin; begin < tasks.end; begin = end) {
        const std::int64_t panel = begin / taps;
        end = std::min(tasks.end, (panel + 1) * taps);
        for (int row = 0; row < in_.rows; row += most) {
          TapGradient gradient;
          gradient.dy = packed;
          gradient.x_row = in_.row_stride;
          gradient.y_row = out_.positions() * panel_width;
          gradient.lanes = in_.lanes;
          gradient.rows = std::min(most, in_.rows - row);
          gradient.accumulate = row > 0;
          pack_panel(d_to_ + row * out_.row_stride + panel * panel_width / out_.lanes * out_.block_stride,
                     out_, gradient.rows, packed);
          for (std::int64_t task = begin; task < end; ++task) {
            gradient.pairs = gradients_.of(task % taps);
            gradient.pair_count = gradients_.count(task % taps);
            for (int block = 0; block < in_.blocks; ++block) {
              gradient.x = from_ + row * in_.row_stride + block * in_.block_stride;
              gradient.dw = dw_ + (task * in_.channels + block * in_.lanes) * panel_width;
              run_in_lanes<TapGradientLoop>(gradient.lanes, static_cast<const TapGradient*>(&gradient));
            }
          }
        }
      }
    });
  }

  int input_, stage_, weight_;
  graph::Taps taps_;
  Map in_, out_;
  Location x_, y_, dy_, transposed_, packed_;
  std::vector<Product> products_;
  Groups forward_, gradients_, backward_;
  Contribution contribution_;
  bool trains_ = false;
  const float* w_ = nullptr;
  float* dw_ = nullptr;
  float* wt_ = nullptr;
  float* packed_dy_ = nullptr;
  const float* from_ = nullptr;
  float* to_ = nullptr;
  const float* d_to_ = nullptr;
};

}  // namespace convoy::exec::host
