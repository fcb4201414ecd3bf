// Residual networks (He et al., "Deep Residual Learning for Image Recognition", 2015) with torchvision's
// topology and parameter names: the stride is in the 3x3 convolution of a bottleneck. The stem is
// torchvision's 7x7 or one for small images; the number of input channels is free. Images are f32, or u8,
// whose values are multiplied by 1/255.
#pragma once

#include <convoy/core/dtype.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/graph/builder.hpp>

namespace convoy::models {

enum class ResidualBlock : unsigned char { basic, bottleneck };

/// The layers before the blocks.
enum class Stem : unsigned char {
  imagenet,  ///< a 7x7 convolution and a max pooling, each of stride 2, as in torchvision
  small,     ///< a 3x3 convolution of stride 1 and no pooling, which keeps the size of 28x28 or 32x32 images
};

/// The number of blocks in each of the four stages.
struct Stages {
  int blocks[4] = {};
};

/// The sizes of a ResNet, by default ResNet-18 for ImageNet. `define_resnet` accepts sizes known only at run
/// time.
struct ResNetSizes {
  Image in = {3, 224, 224};
  int classes = 1000;
  ResidualBlock block = ResidualBlock::basic;
  Stages depth = {{2, 2, 2, 2}};
  DType pixel = DType::f32;  ///< u8 values are multiplied by 1/255
  Stem stem = Stem::imagenet;
};

namespace detail {

constexpr graph::Tensor residual_block(graph::Builder& g, graph::Tensor x, ResidualBlock block, int width,
                                       int stride) {
  const bool bottleneck = block == ResidualBlock::bottleneck;
  const int channels = bottleneck ? 4 * width : width;
  auto y = x;
  if (bottleneck) {
    y = g.conv2d(y, {.channels = width, .kernel = 1, .name = "conv1"});
    y = g.relu(g.batch_norm(y, {.name = "bn1"}), {.name = "relu1"});
    y = g.conv2d(y, {.channels = width, .kernel = 3, .stride = stride, .name = "conv2"});
    y = g.relu(g.batch_norm(y, {.name = "bn2"}), {.name = "relu2"});
    y = g.conv2d(y, {.channels = channels, .kernel = 1, .name = "conv3"});
    y = g.batch_norm(y, {.name = "bn3"});
  } else {
    y = g.conv2d(y, {.channels = width, .kernel = 3, .stride = stride, .name = "conv1"});
    y = g.relu(g.batch_norm(y, {.name = "bn1"}), {.name = "relu1"});
    y = g.conv2d(y, {.channels = width, .kernel = 3, .name = "conv2"});
    y = g.batch_norm(y, {.name = "bn2"});
  }
  if (stride != 1 || x.shape[0] != channels) {
    auto in_downsample = g.scope("downsample");
    x = g.conv2d(x, {.channels = channels, .kernel = 1, .stride = stride, .padding = 0, .name = "0"});
    x = g.batch_norm(x, {.name = "1"});
  }
  return g.relu(g.add(y, x, {.name = "add"}), {.name = "relu"});
}

}  // namespace detail

/// Input "image", label "label", output "logits".
constexpr void define_resnet(graph::Builder& g, const ResNetSizes& s) {
  const bool small = s.stem == Stem::small;
  auto x = g.input("image", s.in, {.dtype = s.pixel});
  x = g.conv2d(x, {.channels = 64, .kernel = small ? 3 : 7, .stride = small ? 1 : 2, .name = "conv1"});
  x = g.relu(g.batch_norm(x, {.name = "bn1"}), {.name = "relu"});
  if (!small) x = g.max_pool(x, {.kernel = 3, .stride = 2, .padding = 1, .name = "maxpool"});
  const char* const names[] = {"layer1", "layer2", "layer3", "layer4"};
  for (int stage = 0; stage < 4; ++stage) {
    auto in_stage = g.scope(names[stage]);
    for (int i = 0; i < s.depth.blocks[stage]; ++i) {
      auto in_block = g.scope(i);
      x = detail::residual_block(g, x, s.block, 64 << stage, i == 0 && stage > 0 ? 2 : 1);
    }
  }
  x = g.flatten(g.global_avg_pool(x, {.name = "avgpool"}), {.name = "flatten"});
  x = g.linear(x, {.features = s.classes, .name = "fc"});
  g.output("logits", x);
  g.loss(g.cross_entropy(x, g.label("label", s.classes), {.name = "loss"}));
}

/// A ResNet for images of shape `In` and `Classes` classes; `Pixel` is the type of the input, `Front` the
/// stem.
template <Image In, int Classes, ResidualBlock Block, Stages Depth, DType Pixel = DType::f32,
          Stem Front = Stem::imagenet>
struct ResNet {
  static constexpr void define(graph::Builder& g) {
    define_resnet(g, {In, Classes, Block, Depth, Pixel, Front});
  }
};

// Class templates, not aliases: nvcc cannot compile an alias template with arguments of class type.
/// 11,689,512 parameters for images of 3 channels, 1000 classes and the imagenet stem.
template <Image In, int Classes, DType Pixel = DType::f32, Stem Front = Stem::imagenet>
struct ResNet18 : ResNet<In, Classes, ResidualBlock::basic, Stages{{2, 2, 2, 2}}, Pixel, Front> {};
/// 21,797,672 parameters, likewise.
template <Image In, int Classes, DType Pixel = DType::f32, Stem Front = Stem::imagenet>
struct ResNet34 : ResNet<In, Classes, ResidualBlock::basic, Stages{{3, 4, 6, 3}}, Pixel, Front> {};
/// 25,557,032 parameters, likewise.
template <Image In, int Classes, DType Pixel = DType::f32, Stem Front = Stem::imagenet>
struct ResNet50 : ResNet<In, Classes, ResidualBlock::bottleneck, Stages{{3, 4, 6, 3}}, Pixel, Front> {};
/// 44,549,160 parameters, likewise.
template <Image In, int Classes, DType Pixel = DType::f32, Stem Front = Stem::imagenet>
struct ResNet101 : ResNet<In, Classes, ResidualBlock::bottleneck, Stages{{3, 4, 23, 3}}, Pixel, Front> {};
/// 60,192,808 parameters, likewise.
template <Image In, int Classes, DType Pixel = DType::f32, Stem Front = Stem::imagenet>
struct ResNet152 : ResNet<In, Classes, ResidualBlock::bottleneck, Stages{{3, 8, 36, 3}}, Pixel, Front> {};

}  // namespace convoy::models
