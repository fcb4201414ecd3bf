// Models of features that random models lack: shared parameters, sequences, inputs of other element types,
// custom operations with parameters, losses of several kinds. Each is a type with `name` and `define`;
// `for_each` calls a function with every one.
#pragma once

#include <string>

#include "exec_random_models.hpp"

namespace exec_models {

using namespace convoy;

/// y = x * scale + shift over the last axis: a custom operation with two parameters.
struct Affine {
  static constexpr Shape shape(Shape x, Shape, Shape) { return x; }
  template <class T>
  static void forward(View<const T> x, View<const T> scale, View<const T> shift, View<T> y) {
    const auto n = static_cast<std::size_t>(x.shape.last());
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale[i % n] + shift[i % n];
  }
  template <class T>
  static void backward(View<const T> x, View<const T> scale, View<const T>, View<const T>, View<const T> dy,
                       View<T> dx, View<T> dscale, View<T> dshift) {
    const auto n = static_cast<std::size_t>(x.shape.last());
    std::fill(dscale.begin(), dscale.end(), T(0));
    std::fill(dshift.begin(), dshift.end(), T(0));
    for (std::size_t i = 0; i < x.size(); ++i) {
      dx[i] = dy[i] * scale[i % n];
      dscale[i % n] += dy[i] * x[i];
      dshift[i % n] += dy[i];
    }
  }
};

/// y = W x over the last axis, as a linear layer without a bias: a custom operation with a matrix.
struct Product {
  static constexpr Shape shape(Shape x, Shape weight) {
    x.extent[x.rank - 1] = weight[0];
    return x;
  }
  template <class T>
  static void forward(View<const T> x, View<const T> w, View<T> y) {
    const auto in = static_cast<std::size_t>(w.shape[1]), out = static_cast<std::size_t>(w.shape[0]);
    for (std::size_t i = 0; i < y.size(); ++i) {
      y[i] = 0;
      for (std::size_t k = 0; k < in; ++k) y[i] += w[i % out * in + k] * x[i / out * in + k];
    }
  }
  template <class T>
  static void backward(View<const T> x, View<const T> w, View<const T>, View<const T> dy, View<T> dx,
                       View<T> dw) {
    const auto in = static_cast<std::size_t>(w.shape[1]), out = static_cast<std::size_t>(w.shape[0]);
    std::fill(dx.begin(), dx.end(), T(0));
    std::fill(dw.begin(), dw.end(), T(0));
    for (std::size_t i = 0; i < dy.size(); ++i)
      for (std::size_t k = 0; k < in; ++k) {
        dx[i / out * in + k] += dy[i] * w[i % out * in + k];
        dw[i % out * in + k] += dy[i] * x[i / out * in + k];
      }
  }
};

/// The custom operations of the models. An Exec that needs more derives its own and passes them instead of
/// these.
struct Customs {
  using Affine = exec_models::Affine;
  using Product = exec_models::Product;
  using Energy = exec_compare::Energy;
};

/// A weight shared by two linear layers and a custom operation, over a sequence.
template <class Custom>
struct Tied {
  static constexpr std::string_view name = "tied";
  static constexpr void define(auto& g) {
    auto x = g.input("tokens", {5, 6});
    auto table = g.parameter("table", {6, 6}, {.init = graph::Init::fan_in_uniform, .fan_in = 6});
    x = g.relu(g.linear(x, table, {.name = "first"}));
    x = g.linear(x, {.features = 6, .name = "between"});
    x = g.custom(typename Custom::Product{}, x, table);
    x = g.relu(x, {.name = "bent"});
    x = g.linear(x, table, {.bias = false, .name = "last"});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", 6, {.positions = 5})));
  }
};

/// A shared weight over rows, used first at the input and last at the loss; and a shared frozen weight.
struct TiedEnds {
  static constexpr std::string_view name = "tied ends";
  static constexpr void define(auto& g) {
    auto x = g.input("row", {33});
    auto table = g.parameter("table", {33, 33}, {.init = graph::Init::normal});
    auto fixed = g.parameter("fixed", {33, 33}, {.init = graph::Init::normal, .group = Group::frozen});
    x = g.relu(g.linear(x, table, {.name = "in"}));
    x = g.relu(g.linear(x, fixed, {.name = "fixed_in"}));
    x = g.relu(g.linear(x, {.features = 33, .name = "own"}));
    x = g.linear(x, fixed, {.bias = false, .name = "fixed_out"});
    x = g.linear(x, table, {.bias = false, .name = "out"});
    g.loss(g.cross_entropy(x, g.label("label", 33)));
  }
};

/// Layers over the positions of a sequence, with losses of three kinds.
template <class Custom>
struct Positions {
  static constexpr std::string_view name = "positions";
  static constexpr void define(auto& g) {
    auto x = g.input("tokens", {7, 12});
    auto y = g.relu(g.linear(x, {.features = 20, .name = "up"}));
    x = g.relu(g.add(g.linear(y, {.features = 12, .bias = false, .name = "down"}), x));
    auto shift = g.parameter("shift", {12}, {.init = graph::Init::normal});
    auto scale = g.parameter("scale", {12}, {.init = graph::Init::ones, .group = Group::no_decay});
    x = g.custom(typename Custom::Affine{}, x, scale, shift);
    g.output("sequence", x);
    auto label = g.label("label", 4, {.positions = 7});
    g.loss(g.cross_entropy(g.linear(x, {.features = 4, .name = "head"}), label));
    g.loss(g.custom_loss(typename Custom::Energy{}, x));
    auto row = g.flatten(x);
    g.loss(g.cross_entropy(g.linear(row, {.features = 3, .name = "row_head"}), g.label("row_label", 3)));
  }
};

/// Bytes as an image and as a row, with an unused integer input between them.
struct Bytes {
  static constexpr std::string_view name = "bytes";
  static constexpr void define(auto& g) {
    auto image = g.input("image", {3, 6, 5}, {.dtype = DType::u8, .scale = 1.0f / 127.5f, .offset = -1});
    g.input("integers", {4}, {.dtype = DType::i32});
    auto row = g.input("row", {9}, {.dtype = DType::u8});
    auto x = g.relu(g.batch_norm(g.conv2d(image, {.channels = 16})));
    x = g.add(g.linear(g.flatten(x), {.features = 8}), g.linear(row, {.features = 8}));
    g.loss(g.cross_entropy(x, g.label("label", 8)));
  }
};

/// A custom operation with parameters on images, which some Execs store in blocks of channels; one parameter
/// is frozen.
template <class Custom>
struct AffineImages {
  static constexpr std::string_view name = "affine images";
  static constexpr void define(auto& g) {
    auto x = g.batch_norm(g.conv2d(g.input("image", {2, 5, 4}), {.channels = 17}));
    auto scale = g.parameter("scale", {4}, {.init = graph::Init::ones});
    auto shift = g.parameter("shift", {4}, {.group = Group::frozen});
    x = g.custom(typename Custom::Affine{}, x, scale, shift);
    x = g.relu(g.add(x, g.conv2d(x, {.channels = 17, .kernel = 1})));
    g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 4}), g.label("label", 4)));
  }
};

/// Every pattern of operations that an Exec may fuse.
struct Patterns {
  static constexpr std::string_view name = "patterns";
  static constexpr void define(auto& g) {
    auto x = g.input("image", {3, 8, 7});
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 16, .name = "a"})));
    auto y = g.batch_norm(g.conv2d(x, {.channels = 16, .name = "b"}));
    x = g.relu(g.add(y, x));
    y = g.add(g.batch_norm(g.conv2d(x, {.channels = 16, .kernel = 1, .name = "c"})), x);
    x = g.relu(g.conv2d(g.add(y, x), {.channels = 16, .name = "d"}));
    x = g.relu(g.max_pool(g.batch_norm(x), {.kernel = 2}));
    x = g.relu(g.batch_norm(x));
    x = g.relu(g.add(g.batch_norm(g.avg_pool(x, {.kernel = 3, .stride = 1, .padding = 1})), x));
    x = g.add(g.batch_norm(g.max_pool(x, {.kernel = 3, .stride = 1, .padding = 1})), x);
    x = g.relu(g.add(x, g.avg_pool(x, {.kernel = 3, .stride = 1, .padding = 1})));
    auto z = g.relu(g.linear(g.flatten(x), {.features = 9, .name = "fc"}));
    z = g.gelu(g.linear(z, {.features = 7, .name = "fc2"}));
    g.loss(g.cross_entropy(g.linear(z, {.features = 5, .name = "head"}), g.label("label", 5)));
  }
};

/// Calls `visit(name, plan)` for each model.
template <class Custom = Customs, class Visit>
void for_each(Visit visit) {
  const auto call = [&]<class Model>(Model) {
    visit(std::string(Model::name), DynamicPlan([](auto& g) { Model::define(g); }));
  };
  call(Tied<Custom>{});
  call(TiedEnds{});
  call(Positions<Custom>{});
  call(Bytes{});
  call(AffineImages<Custom>{});
  call(Patterns{});
}

}  // namespace exec_models
