// The residual networks as constants: parameter counts, torchvision's names and shapes, multiply-accumulates,
// fused stages, dead taps, buckets. Most of it is asserted while compiling.
#include <doctest/doctest.h>

#include "fixtures/fixtures.hpp"
#include <convoy/graph/plan.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;

namespace {

inline constexpr Image imagenet{3, 224, 224};
constexpr const Plan& resnet18 = plan_of<models::ResNet18<imagenet, 1000>>;
constexpr const Plan& resnet34 = plan_of<models::ResNet34<imagenet, 1000>>;
constexpr const Plan& resnet50 = plan_of<models::ResNet50<imagenet, 1000>>;
constexpr const Plan& resnet101 = plan_of<models::ResNet101<imagenet, 1000>>;
constexpr const Plan& resnet152 = plan_of<models::ResNet152<imagenet, 1000>>;
constexpr const Plan& mnist = plan_of<models::ResNet18<Image{1, 28, 28}, 10>>;

// As torchvision.models publishes them.
static_assert(resnet18.parameters() == 11'689'512);
static_assert(resnet34.parameters() == 21'797'672);
static_assert(resnet50.parameters() == 25'557'032);
static_assert(resnet101.parameters() == 44'549'160);
static_assert(resnet152.parameters() == 60'192'808);

// torchvision publishes 1.814, 3.664, 4.089, 7.801 and 11.514 GFLOPS, counting a multiply-accumulate as one
// FLOP.
static_assert(resnet18.macs() == 1'814'073'344);
static_assert(resnet34.macs() == 3'663'761'408);
static_assert(resnet50.macs() == 4'089'184'256);
static_assert(resnet101.macs() == 7'801'405'440);
static_assert(resnet152.macs() == 11'513'626'624);

// The variant for CIFAR-10: 3x3 filters before the blocks; the blocks' maps are 32, 16, 8 and 4 wide.
constexpr const Plan& cifar10 =
    plan_of<models::ResNet18<Image{3, 32, 32}, 10, DType::u8, models::Stem::small>>;
static_assert(cifar10.parameters() == 11'173'962);
static_assert(cifar10.macs() == 555'422'720);
static_assert(cifar10.dead_parameters() == 0);

struct Named {
  std::string_view name;
  Shape shape;
};

// Every parameter of torchvision.models.resnet18 in its order.
constexpr Named torchvision_resnet18[] = {
    {"conv1.weight", {64, 3, 7, 7}},
    {"bn1.weight", {64}},
    {"bn1.bias", {64}},
    {"layer1.0.conv1.weight", {64, 64, 3, 3}},
    {"layer1.0.bn1.weight", {64}},
    {"layer1.0.bn1.bias", {64}},
    {"layer1.0.conv2.weight", {64, 64, 3, 3}},
    {"layer1.0.bn2.weight", {64}},
    {"layer1.0.bn2.bias", {64}},
    {"layer1.1.conv1.weight", {64, 64, 3, 3}},
    {"layer1.1.bn1.weight", {64}},
    {"layer1.1.bn1.bias", {64}},
    {"layer1.1.conv2.weight", {64, 64, 3, 3}},
    {"layer1.1.bn2.weight", {64}},
    {"layer1.1.bn2.bias", {64}},
    {"layer2.0.conv1.weight", {128, 64, 3, 3}},
    {"layer2.0.bn1.weight", {128}},
    {"layer2.0.bn1.bias", {128}},
    {"layer2.0.conv2.weight", {128, 128, 3, 3}},
    {"layer2.0.bn2.weight", {128}},
    {"layer2.0.bn2.bias", {128}},
    {"layer2.0.downsample.0.weight", {128, 64, 1, 1}},
    {"layer2.0.downsample.1.weight", {128}},
    {"layer2.0.downsample.1.bias", {128}},
    {"layer2.1.conv1.weight", {128, 128, 3, 3}},
    {"layer2.1.bn1.weight", {128}},
    {"layer2.1.bn1.bias", {128}},
    {"layer2.1.conv2.weight", {128, 128, 3, 3}},
    {"layer2.1.bn2.weight", {128}},
    {"layer2.1.bn2.bias", {128}},
    {"layer3.0.conv1.weight", {256, 128, 3, 3}},
    {"layer3.0.bn1.weight", {256}},
    {"layer3.0.bn1.bias", {256}},
    {"layer3.0.conv2.weight", {256, 256, 3, 3}},
    {"layer3.0.bn2.weight", {256}},
    {"layer3.0.bn2.bias", {256}},
    {"layer3.0.downsample.0.weight", {256, 128, 1, 1}},
    {"layer3.0.downsample.1.weight", {256}},
    {"layer3.0.downsample.1.bias", {256}},
    {"layer3.1.conv1.weight", {256, 256, 3, 3}},
    {"layer3.1.bn1.weight", {256}},
    {"layer3.1.bn1.bias", {256}},
    {"layer3.1.conv2.weight", {256, 256, 3, 3}},
    {"layer3.1.bn2.weight", {256}},
    {"layer3.1.bn2.bias", {256}},
    {"layer4.0.conv1.weight", {512, 256, 3, 3}},
    {"layer4.0.bn1.weight", {512}},
    {"layer4.0.bn1.bias", {512}},
    {"layer4.0.conv2.weight", {512, 512, 3, 3}},
    {"layer4.0.bn2.weight", {512}},
    {"layer4.0.bn2.bias", {512}},
    {"layer4.0.downsample.0.weight", {512, 256, 1, 1}},
    {"layer4.0.downsample.1.weight", {512}},
    {"layer4.0.downsample.1.bias", {512}},
    {"layer4.1.conv1.weight", {512, 512, 3, 3}},
    {"layer4.1.bn1.weight", {512}},
    {"layer4.1.bn1.bias", {512}},
    {"layer4.1.conv2.weight", {512, 512, 3, 3}},
    {"layer4.1.bn2.weight", {512}},
    {"layer4.1.bn2.bias", {512}},
    {"fc.weight", {1000, 512}},
    {"fc.bias", {1000}},
};

constexpr bool parameters_are(const Plan& plan, std::span<const Named> expected) {
  if (plan.parameter_list.size() != expected.size()) return false;
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (plan.parameter_list[i].name != expected[i].name ||
        !(plan.parameter_list[i].shape == expected[i].shape))
      return false;
  return true;
}
static_assert(parameters_are(resnet18, torchvision_resnet18));

// ---- dead taps: on 28x28 images the maps of the blocks are 7, 4, 2 and 1 wide

static_assert(mnist.parameters() == 11'175'370);
static_assert(mnist.dead_parameters() == 6'946'816);
static_assert(resnet18.dead_parameters() == 0);
static_assert(mnist.sizes.exchanged >= mnist.parameters() - mnist.dead_parameters());
static_assert(mnist.sizes.parameters >= mnist.parameters());
static_assert(mnist.sizes.statistics == 9600);

/// The live taps of a convolution's weight; none for any other node.
constexpr graph::Taps taps(std::string_view node) {
  const int n = mnist.find(node);
  return mnist.node(n).uses > 0 ? mnist.taps[static_cast<std::size_t>(mnist.graph.parameter(n, 0))]
                                : graph::Taps{};
}
static_assert(taps("conv1") == graph::Taps{0, 7, 0, 7});
static_assert(taps("layer3.1.conv2") == graph::Taps{0, 3, 0, 3});  // on a 2x2 map every tap meets the input
static_assert(taps("layer4.0.conv1") ==
              graph::Taps{1, 3, 1, 3});  // stride 2 over 2x2: one position, four taps
static_assert(taps("layer4.0.conv2") == graph::Taps{1, 2, 1, 2});  // a 1x1 map: the middle tap alone
static_assert(taps("layer4.0.downsample.0") == graph::Taps{0, 1, 0, 1});
static_assert(taps("bn1") == graph::Taps{});
static_assert(mnist.price.live_macs < mnist.macs());
static_assert(resnet18.price.live_macs < resnet18.macs());  // taps meet padding at the borders here too

// ---- fusion

/// Whether these nodes, in this order, are one stage.
template <std::size_t n>
constexpr bool is_stage(const Plan& plan, const std::string_view (&names)[n]) {
  const int s = plan.stage_of[static_cast<std::size_t>(plan.find(names[0]))];
  const graph::Stage& stage = plan.stage(s);
  if (stage.count != n || stage.leader != plan.find(names[0]) || stage.output != plan.find(names[n - 1]))
    return false;
  for (int k = 0; k < stage.count; ++k)
    if (plan.member(s, k) != plan.find(names[k])) return false;
  return true;
}
static_assert(mnist.stages.size() == 25);  // 20 convolutions, two poolings, flatten, fc, loss
static_assert(is_stage(mnist, {"conv1", "bn1", "relu"}));
static_assert(is_stage(mnist, {"layer1.0.conv1", "layer1.0.bn1", "layer1.0.relu1"}));
static_assert(is_stage(mnist, {"layer1.0.conv2", "layer1.0.bn2", "layer1.0.add", "layer1.0.relu"}));
static_assert(is_stage(mnist, {"layer2.0.conv2", "layer2.0.bn2", "layer2.0.add", "layer2.0.relu"}));
static_assert(is_stage(mnist, {"layer2.0.downsample.0", "layer2.0.downsample.1"}));
static_assert(is_stage(mnist, {"fc"}));
static_assert(is_stage(resnet50, {"layer1.0.conv3", "layer1.0.bn3", "layer1.0.add", "layer1.0.relu"}));
static_assert(resnet152.stages.size() == 160);

// ---- buckets

template <std::size_t n>
constexpr bool buckets_are(const Plan& plan, const std::int64_t (&ends)[n]) {
  if (plan.buckets.size() != n) return false;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (!(plan.buckets[i] == Range{begin, ends[i]})) return false;
    begin = ends[i];
  }
  return begin == plan.sizes.exchanged;
}
// The first bucket holds fc, for MNIST also the last norm and convolution. The next ones are as near as
// tensors allow to a quarter of all gradients (17 MB for MNIST), at most 25 MiB. At the end each is about
// half of the remainder, down to about 1 MiB.
static_assert(mnist.buckets[0].end == 5120 + 16 + 512 + 512 + 512 * 512);
static_assert(buckets_are(mnist,
                          {268'304, 1'452'048, 2'632'720, 3'551'760, 3'847'440, 4'114'320, 4'228'560}));
static_assert(buckets_are(resnet18, {512'000, 2'874'352, 5'234'672, 7'727'088, 9'497'584, 10'677'744,
                                     11'154'416, 11'449'584, 11'689'520}));
static_assert(buckets_are(resnet50, {2'048'000, 7'565'296, 14'128'112, 20'102'640, 22'863'856, 24'178'928,
                                     24'886'512, 25'151'216, 25'418'992, 25'557'040}));
static_assert(buckets_are(resnet101,
                          {2'048'000, 7'565'296, 14'128'112, 20'630'000, 27'070'448, 33'509'360, 39'094'768,
                           41'855'984, 43'171'056, 43'878'640, 44'143'344, 44'411'120, 44'549'168}));

// Parameters are in the order in which their gradients become final: the last layer's first.
static_assert(mnist.parameter_list[static_cast<std::size_t>(mnist.exchange_order.front())].name ==
              "fc.weight");
static_assert(mnist.parameter_list[static_cast<std::size_t>(mnist.exchange_order.back())].name ==
              "conv1.weight");

// ---- what ranks must agree on

static_assert(resnet18.fingerprint != resnet34.fingerprint);
static_assert(resnet18.fingerprint != mnist.fingerprint);
static_assert(mnist.fingerprint != plan_of<models::ResNet18<Image{1, 28, 28}, 11>>.fingerprint);

}  // namespace

TEST_CASE("graph: names and shapes of ResNet-18 and 50 are torchvision's, in its order") {
  const auto check = [](const Plan& plan, const std::string& model) {
    std::size_t p = 0, s = 0;
    for (const auto& named : fixtures::torchvision_names(model)) {
      Shape shape;
      for (const auto dim : named.dims) shape.extent[shape.rank++] = static_cast<int>(dim);
      if (named.is_parameter) {
        REQUIRE(p < plan.parameter_list.size());
        CHECK(plan.parameter_list[p].name.view() == named.name);
        CHECK(plan.parameter_list[p].shape == shape);
        ++p;
      } else if (named.name.find("num_batches_tracked") == std::string::npos) {
        REQUIRE(s < plan.statistic_list.size());
        CHECK(plan.statistic_list[s].name.view() == named.name);
        CHECK(plan.statistic_list[s].shape == shape);
        ++s;
      }
    }
    CHECK(p == plan.parameter_list.size());
    CHECK(s == plan.statistic_list.size());
  };
  check(resnet18, "resnet18");
  check(resnet50, "resnet50");
}

TEST_CASE("graph: a training step of ResNet-18 needs far less memory than all of its values") {
  std::int64_t all = 0;
  for (const auto& value : resnet18.lifetimes) all += value.bytes;
  CHECK(resnet18.training_bytes < all * 3 / 4);
  CHECK(resnet18.training_bytes > all / 4);
}
