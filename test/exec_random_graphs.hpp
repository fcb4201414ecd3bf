// Random graphs of all operations over values of every kind, in which any value may have several readers, be
// an output, or lead nowhere. The same seed gives the same graph with any compiler, because at most one
// argument of a call draws random numbers.
//
//     const DynamicPlan plan([&](auto& g) { exec_random_graphs::define(g, Philox{seed, 79}); });
//     CHECK(exec_compare::difference<exec::Host<f32>>(plan, {.seed = seed}) == "");
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec_models.hpp"
#include "exec_random_models.hpp"
#include <convoy/core/philox.hpp>
#include <convoy/graph/dynamic.hpp>

namespace exec_random_graphs {

using namespace convoy;
using graph::Builder;
using graph::Handle;
using graph::Tensor;

/// The custom operations of the graphs.
struct Customs : exec_compare::Customs {
  using Affine = exec_models::Affine;
};

/// Adds operations to values drawn from those before, then losses.
template <class Custom>
class Graph {
 public:
  Graph(Builder& g, Philox random) : g_(g), random_(random) {}

  void define() {
    const int inputs = 1 + below(3), steps = 6 + below(14);
    for (int i = 0; i < inputs; ++i) values_.push_back(given(below(3)));
    for (int i = 0; i < steps; ++i) {
      const Tensor x = odds(3) ? any() : values_.back();
      values_.push_back(after(x));
      if (odds(12)) g_.output(concat("tap", i), odds(5) ? any() : values_.back());
      if (odds(12)) g_.metric(concat("metric", i), exec_compare::Magnitude{}, any());
      if (odds(16) && values_.back().kind == Kind::number) g_.loss(values_.back());
    }
    // One loss reads the last value, up to two others read any.
    g_.loss(number(values_.back()));
    for (int i = below(3); i > 0; --i) g_.loss(number(any()));
  }
  /// All but those within the losses.
  const std::vector<Tensor>& values() const { return values_; }

 private:
  int below(int n) { return static_cast<int>(random_.below(static_cast<std::uint32_t>(n))); }
  bool odds(int one_in) { return below(one_in) == 0; }
  int width() {
    constexpr int widths[] = {1, 3, 5, 8, 12, 16, 24, 33};
    return widths[below(8)];
  }
  std::string next(std::string_view name) { return concat(name, made_++); }

  Tensor any() { return values_[static_cast<std::size_t>(below(static_cast<int>(values_.size())))]; }
  /// A value of the shape of `x`, which may be `x`.
  Tensor like(Tensor x) {
    for (int i = 0; i < 6; ++i)
      if (const Tensor y = any(); y.shape == x.shape) return y;
    return x;
  }

  /// A new input of an image, a sequence or a row, or an embedding of one of ids.
  Tensor given(int kind) {
    if (kind > 0 && odds(3)) {
      const Tensor ids = odds(2) ? numbers(1 + below(7)) : numbers(0);
      if (const auto weight = matrix(-1, -1); weight && odds(2)) return g_.embedding(ids, *weight);
      return g_.embedding(ids, {.entries = 8, .features = width(), .frozen = odds(6)});
    }
    const DType dtype = odds(4) ? DType::u8 : DType::f32;
    const Shape shapes[] = {{width(), 1 + below(7), 1 + below(7)}, {1 + below(7), width()}, {width()}};
    return g_.input(next("given"), shapes[kind], {.dtype = dtype});
  }
  /// An integer input: `count` numbers a row, or one if `count` is 0. Several operations may read it.
  Tensor numbers(int count) {
    const Shape shape = count > 0 ? Shape{count} : Shape{};
    for (const Tensor& x : integers_)
      if (x.shape == shape && odds(2)) return x;
    return integers_.emplace_back(g_.input(next("integers"), shape, {.dtype = DType::i32}));
  }
  /// One length a row, for attentions and means.
  Tensor lengths() {
    if (!lengths_) lengths_ = g_.input(next("lengths"), {}, {.dtype = DType::i32});
    return *lengths_;
  }

  /// A parameter of these extents that is in use already, if there is one; -1 fits any extent.
  std::optional<Handle> matrix(int rows, int columns) {
    for (const Handle& m : matrices_)
      if ((rows < 0 || m.shape[0] == rows) && (columns < 0 || m.shape[1] == columns) && odds(2)) return m;
    return {};
  }
  graph::Group group() {
    return odds(5) ? graph::Group::frozen : odds(2) ? graph::Group::decay : graph::Group::no_decay;
  }
  /// A vector of `extent` elements, new or in use.
  Handle vector(int extent) {
    for (const Handle& v : vectors_)
      if (v.shape[0] == extent && odds(2)) return v;
    return vectors_.emplace_back(
        g_.parameter(next("vector"), {extent}, {.init = graph::Init::ones, .group = group()}));
  }

  Tensor after(Tensor x) {
    switch (below(20)) {
      case 0:
        return g_.add(x, like(x));
      case 1:
        return g_.add(like(x), x);
      case 2:
        return bounded(g_.multiply(x, like(x)));
      case 3:
        return g_.relu(x);
      case 4:
        return g_.gelu(x, {.form = odds(2) ? GeluForm::tanh : GeluForm::erf});
      case 5:
        return odds(2) ? g_.sigmoid(x) : g_.tanh(x);
      case 6:
        return g_.dropout(x, {.p = odds(4) ? 0.0f : 0.3f});
      case 7:
        return g_.add(g_.dropout(x, {.p = 0.2f}), like(x));
      case 8:
        return x.kind == Kind::image && !odds(4) ? x : row(x);
      case 9:
        return odds(2) ? g_.custom(typename Custom::Swish{}, x)
                       : bounded(g_.custom(typename Custom::Product{}, x, like(x)));
      case 10: {
        if (x.kind == Kind::number) return x;
        const Handle shift = vector(x.shape.last()), scale = vector(x.shape.last());
        return g_.custom(typename Custom::Affine{}, x, scale, shift);
      }
      case 11:
        return odds(3) ? given(below(3)) : x;
      default:
        if (x.kind == Kind::image) return after_image(x);
        if (x.kind == Kind::sequence && odds(2)) return after_sequence(x);
        if (x.kind == Kind::number) return odds(2) ? g_.flatten(x) : g_.tanh(x);
        return after_features(x);
    }
  }

  Tensor after_image(Tensor x) {
    switch (below(14)) {
      case 0:
        return pooled(x);
      case 1:
        return g_.relu(pooled(x));
      case 2:
        return odds(3) ? g_.global_avg_pool(x) : x;
      case 3:
        return joined(x);
      case 4:
        return normed(x);
      case 5:
        return g_.relu(normed(x));
      case 6: {
        const Tensor other = like(x);
        return g_.add(normed(x), other);
      }
      case 7: {
        const Tensor y = normed(x);
        return g_.relu(g_.add(odds(2) ? normed(x) : x, y));
      }
      case 8:
        return convolved(x);
      case 9:
        return g_.relu(convolved(x));
      case 10:
        return normed(convolved(x));
      case 11:
        return g_.relu(normed(convolved(x)));
      default: {  // a residual
        Tensor y = normed(convolved(x)), z = like(y);
        y = odds(2) ? g_.add(y, z) : g_.add(z, y);
        return odds(2) ? g_.relu(y) : y;
      }
    }
  }

  Tensor after_features(Tensor x) {
    switch (below(9)) {
      case 0:
        return joined(x);
      case 1:
        return layer_normed(x);
      case 2:
        return layer_normed(g_.add(x, like(x)));
      case 3:
        return layer_normed(g_.add(g_.dropout(x, {.p = 0.2f}), like(x)));
      case 4: {
        const Tensor y = g_.dropout(x, {.p = odds(2) ? 0.0f : 0.2f});
        return layer_normed(g_.add(like(x), y));
      }
      case 5:
        return g_.relu(linear(x));
      case 6: {
        const GeluForm form = odds(2) ? GeluForm::tanh : GeluForm::erf;
        return g_.gelu(linear(x), {.form = form});
      }
      default:
        return linear(x);
    }
  }

  Tensor after_sequence(Tensor x) {
    switch (below(6)) {
      case 0:
        if (const auto weight = matrix(x.shape[0], x.shape[1])) return g_.position_embedding(x, *weight);
        return g_.position_embedding(x, {.positions = x.shape[0] + below(2), .frozen = odds(6)});
      case 1:
        return g_.gather(x, numbers(odds(2) ? 0 : 1 + below(7)));
      case 2:
        return g_.select(x, below(x.shape[0]));
      case 3:
        return odds(2) ? g_.mean(x, lengths()) : g_.mean(x);
      default:
        return attended(x);
    }
  }

  Tensor convolved(Tensor x) {
    graph::Conv2dOptions o{.channels = width(),
                           .kernel = odds(3)   ? 1
                                     : odds(5) ? 2
                                     : odds(6) ? 5
                                               : 3,
                           .stride = odds(3) ? 2 : 1,
                           .dilation = odds(6) ? 2 : 1,
                           .bias = odds(3),
                           .frozen = odds(6)};
    o.padding = odds(4) ? 0 : odds(6) ? o.kernel - 1 : graph::same;
    if (odds(4)) o.channels = x.shape[0];  // as many, so that an addition may follow
    if (odds(5)) o.channels = x.shape[0] * (1 + below(2)), o.groups = x.shape[0];
    const int padding = o.padding == graph::same ? o.dilation * (o.kernel - 1) / 2 : o.padding;
    const int reach = (o.kernel - 1) * o.dilation + 1;
    if (std::min(x.shape[1], x.shape[2]) + 2 * padding < reach) o.kernel = 1, o.padding = 0;
    return g_.conv2d(x, o);
  }
  Tensor normed(Tensor x) {
    return g_.batch_norm(x, {.epsilon = 1e-2f, .momentum = odds(2) ? 0.1f : 0.3f, .frozen = odds(6)});
  }
  Tensor pooled(Tensor x) {
    graph::PoolOptions o{.kernel = 2 + below(2), .stride = 1 + below(3), .padding = below(2)};
    if (std::min(x.shape[1], x.shape[2]) + 2 * o.padding < o.kernel) o = {.kernel = 1};
    return odds(2) ? g_.max_pool(x, o) : g_.avg_pool(x, o);
  }

  Tensor linear(Tensor x) {
    const int in = x.shape.last(), out = width();
    if (const auto weight = matrix(-1, in); weight && odds(2))
      return odds(2) ? g_.linear(x, *weight, vector(weight->shape[0]))
                     : g_.linear(x, *weight, {.bias = odds(2)});
    if (odds(6)) return linears(x, out);
    if (odds(2)) return g_.linear(x, {.features = out, .bias = odds(2), .frozen = odds(6)});
    const graph::ParameterOptions o{.init = graph::Init::fan_in_uniform, .fan_in = in, .group = group()};
    return g_.linear(x, matrices_.emplace_back(g_.parameter(next("matrix"), {out, in}, o)),
                     {.bias = odds(2)});
  }
  Tensor linears(Tensor x, int features) {
    const std::string names[] = {next("layer"), next("layer"), next("layer")};
    const std::string_view views[] = {names[0], names[1], names[2]};
    graph::LinearOptions o;
    o.features = odds(3) ? features : 16;
    o.bias = odds(2);
    o.frozen = odds(6);
    return g_.linears(x, std::span(views).first(static_cast<std::size_t>(1 + below(3))), o);
  }
  /// nvcc takes a braced list of `features` alone for a Handle, too.
  Tensor linear_to(int features, Tensor x) {
    return g_.linear(x, graph::LinearOptions{.features = features});
  }
  /// Layer norm of one or two features yields only signs: its gradient is zero up to rounding.
  Tensor layer_normed(Tensor x) {
    const int features = x.shape.last();
    if (features < 3) return x;
    if (odds(3)) {
      const Handle bias = vector(features), weight = vector(features);
      return g_.layer_norm(x, weight, bias, {.epsilon = 1e-2f});
    }
    return g_.layer_norm(x, {.epsilon = 1e-2f, .bias = odds(2), .frozen = odds(6)});
  }
  Tensor joined(Tensor x) {
    const Tensor y = any();
    const bool pairs =
        y.kind == x.kind && (x.kind == Kind::row || (x.kind == Kind::sequence && y.shape[0] == x.shape[0]) ||
                             (x.kind == Kind::image && y.shape[1] == x.shape[1] && y.shape[2] == x.shape[2]));
    if (x.shape.size() > 400) return x;
    return odds(3) ? g_.concat({x, x, pairs ? y : x}) : g_.concat({pairs ? y : x, x});
  }

  Tensor attended(Tensor x) {
    graph::AttentionOptions o{.heads = 1 + below(3), .causal = odds(2), .dropout = odds(4) ? 0.2f : 0.0f};
    const bool padded = odds(2);
    const int features = o.heads * (1 + below(9));
    if (odds(2)) {
      const Tensor packed = linear_to(3 * features, x);
      return padded ? g_.attention(packed, lengths(), o) : g_.attention(packed, o);
    }
    const Tensor other = any(), given = other.kind == Kind::sequence ? other : x;
    const Tensor q = linear_to(features, x),
                 k = odds(3) && given.shape == x.shape ? q : linear_to(features, given),
                 v = odds(3) ? k : linear_to(o.heads * (1 + below(5)), given);
    return padded ? g_.attention(q, k, v, lengths(), o) : g_.attention(q, k, v, o);
  }

  /// A product, kept from growing.
  Tensor bounded(Tensor x) { return odds(2) ? x : g_.tanh(x); }
  Tensor row(Tensor x) { return x.shape.size() > 400 ? x : g_.flatten(x); }

  /// A number of `x` that may be a loss.
  Tensor number(Tensor x) {
    if (x.kind == Kind::number) return x;
    if (odds(5)) return g_.custom_loss(typename Custom::Energy{}, x);
    if (odds(4)) {
      const Tensor target = odds(2) ? g_.input(next("target"), x.shape) : like(x);
      return odds(2) ? g_.mse_loss(x, target) : g_.bce_with_logits(x, target);
    }
    if (x.kind == Kind::image) x = g_.flatten(x);
    const int positions = x.kind == Kind::sequence ? x.shape[0] : 0;
    if (!odds(4) || x.shape.last() == 1) x = linear(x);
    const auto label = g_.label(next("label"), x.shape.last(),
                                {.positions = positions, .ignore = odds(2) ? 2 : graph::no_label});
    return g_.cross_entropy(x, label, {.smoothing = odds(3) ? 0.2f : 0.0f});
  }

  Builder& g_;
  Philox random_;
  std::vector<Tensor> values_, integers_;
  std::vector<Handle> matrices_, vectors_;
  std::optional<Tensor> lengths_;
  int made_ = 0;
};

template <class Custom = Customs>
void define(Builder& g, Philox random) {
  Graph<Custom>(g, random).define();
}

}  // namespace exec_random_graphs
