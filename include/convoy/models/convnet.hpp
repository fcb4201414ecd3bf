// A small convolutional network for digits: two convolutions and two linear layers, 421,642 parameters at
// 28x28x1 and ten classes.
#pragma once

#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/builder.hpp>

namespace convoy::models {

/// The sizes of a ConvNet. `define_convnet` accepts sizes known only at run time.
struct ConvNetSizes {
  Image in;
  int classes = 10;
  DType pixel = DType::f32;  ///< u8 values are multiplied by 1/255
};

/// Input "image", label "label", output "logits". Parameters are named as in a PyTorch module with conv1,
/// conv2, fc1 and fc2.
constexpr void define_convnet(graph::Builder& g, const ConvNetSizes& s) {
  auto x = g.input("image", s.in, {.dtype = s.pixel});
  x = g.conv2d(x, {.channels = 32, .kernel = 3, .bias = true, .name = "conv1"});
  x = g.relu(g.max_pool(x, {.kernel = 2, .name = "pool1"}), {.name = "relu1"});
  x = g.conv2d(x, {.channels = 64, .kernel = 3, .bias = true, .name = "conv2"});
  x = g.relu(g.max_pool(x, {.kernel = 2, .name = "pool2"}), {.name = "relu2"});
  x = g.linear(g.flatten(x, {.name = "flatten"}), {.features = 128, .name = "fc1"});
  x = g.linear(g.relu(x, {.name = "relu3"}), {.features = s.classes, .name = "fc2"});
  g.output("logits", x);
  g.loss(g.cross_entropy(x, g.label("label", s.classes), {.name = "loss"}));
}

template <Image In = Image{1, 28, 28}, int Classes = 10, DType Pixel = DType::f32>
struct ConvNet {
  static constexpr void define(graph::Builder& g) { define_convnet(g, {In, Classes, Pixel}); }
};

}  // namespace convoy::models
