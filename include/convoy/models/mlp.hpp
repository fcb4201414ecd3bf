// Multilayer perceptrons over flattened images.
#pragma once

#include <span>

#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/builder.hpp>

namespace convoy::models {

/// The sizes of an Mlp. `define_mlp` accepts sizes known only at run time.
struct MlpSizes {
  Image in;
  int classes = 10;
  std::span<const int> widths;  ///< of the hidden layers
  DType pixel = DType::f32;     ///< u8 values are multiplied by 1/255
};

/// Linear layers fc1, fc2, ... with a ReLU after each except the last. Input "image", label "label", output
/// "logits".
constexpr void define_mlp(graph::Builder& g, const MlpSizes& s) {
  auto x = g.flatten(g.input("image", s.in, {.dtype = s.pixel}), {.name = "flatten"});
  int layer = 1;
  for (const int width : s.widths) {
    x = g.linear(x, {.features = width, .name = Name("fc").append(layer)});
    x = g.relu(x, {.name = Name("relu").append(layer++)});
  }
  x = g.linear(x, {.features = s.classes, .name = Name("fc").append(layer)});
  g.output("logits", x);
  g.loss(g.cross_entropy(x, g.label("label", s.classes), {.name = "loss"}));
}

/// An Mlp on f32 images with hidden layers of these widths.
template <Image In, int Classes, int... Widths>
struct Mlp {
  static constexpr void define(graph::Builder& g) {
    constexpr int widths[] = {Widths..., 0};
    define_mlp(g, {In, Classes, {widths, sizeof...(Widths)}});
  }
};

}  // namespace convoy::models
