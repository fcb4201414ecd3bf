// The builder: the errors for models that are invalid at run time.
#include <limits>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include <convoy/graph/dynamic.hpp>

using namespace convoy;

namespace {

/// A custom operation whose result has one feature less.
struct OneLess {
  static constexpr Shape shape(Shape x) { return {x[0] - 1}; }
  template <class T>
  static void forward(View<const T>, View<T>) {}
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T>, View<T>) {}
};
struct Rows {
  static double measure(View<const float> x) { return x.rows; }
};

/// The error message for a model that is invalid at run time; "accepted" if there is none.
template <class Define>
std::string refusal(Define&& define) {
  try {
    DynamicPlan plan(define);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a model that grows between the two calls of define is refused") {
  const auto grows = [](auto&& more) {
    int calls = 0;
    return refusal([&](graph::Builder& g) {
      graph::Tensor x = g.input("x", {8});
      if (++calls == 2) more(g, x);
      g.loss(g.cross_entropy(g.linear(x, {.features = 3}), g.label("label", 3)));
    });
  };
  const std::string sentence = "model: the two calls of define made models of different sizes";
  CHECK(grows([](graph::Builder& g, graph::Tensor& x) {
          for (int i = 0; i < 100; ++i) x = g.relu(x);
        }) == sentence);
  CHECK(grows([](graph::Builder& g, graph::Tensor&) {
          for (int i = 0; i < 100; ++i) g.parameter(concat("p", i), {4});
        }) == sentence);
  CHECK(grows([](graph::Builder&, graph::Tensor&) {}) == "accepted");
}

TEST_CASE("a value has at most three extents") {
  CHECK(refusal([](graph::Builder& g) {
          const graph::Tensor x = g.relu(g.input("frames", {8, 3, 4, 4}));
          g.loss(g.cross_entropy(g.linear(g.flatten(x), {.features = 3}), g.label("label", 3)));
        }).find("frames has four extents, ") != std::string::npos);
}

TEST_CASE("graph: invalid models are refused at run time, with a sentence for each fault") {
  const auto image = [](auto& g) { return g.input("image", {3, 4, 4}); };
  CHECK(refusal([&](auto& g) {
          g.add(image(g), g.input("other", {3, 4, 5}), {.name = "sum"});
        }) == "model: sum needs two inputs of one shape, not [3x4x4] and [3x4x5]");
  CHECK(refusal([&](auto& g) {
          g.conv2d(image(g), {.channels = 2, .kernel = 7, .padding = 1, .name = "conv"});
        }) == "model: conv has a kernel of [7x7] on an input of [6x6], padding included");
  CHECK(refusal([&](auto& g) { g.max_pool(image(g), {.kernel = 5}); }) ==
        "model: max_pool.0 has a kernel of [5x5] on an input of [4x4], padding included");
  constexpr int most = std::numeric_limits<int>::max();
  CHECK(refusal([&](auto& g) {
          g.conv2d(image(g), {.channels = 4, .kernel = most, .padding = 0, .dilation = most});
        }) == concat("model: conv2d.0 has a kernel of [", most, 'x', most,
                     "] on an input of [4x4], padding included"));
  CHECK(refusal([&](auto& g) { g.conv2d(image(g), {.channels = 4, .kernel = 100'001, .dilation = most}); }) ==
        concat("model: conv2d.0 makes an extent of more than 2147483647 of [100001x", most, ']'));
  CHECK(refusal([&](auto& g) { g.conv2d(image(g), {.channels = 4, .kernel = 100'001}); }) ==
        "model: conv2d.0 makes an extent of more than 2147483647 of [3x100001x100001]");
  CHECK(refusal([&](auto& g) { g.batch_norm(g.flatten(image(g))); }) ==
        "model: batch_norm.0 needs an input of [channels x height x width], not [48]");
  CHECK(refusal([&](auto& g) { g.linear(image(g), {.features = 2}); }) ==
        "model: linear.0 needs a row or a sequence of features, not an image of [3x4x4]; flatten it first");
  CHECK(refusal([&](auto& g) { g.linear(g.input("number", {}), {.features = 2}); }) ==
        "model: linear.0 needs a row or a sequence of features, not a number; flatten it first");
  CHECK(refusal([&](auto& g) { g.conv2d(image(g), {.kernel = 3}); }) ==
        "model: conv2d.0 has an extent that is not positive among [0x3x1]");
  CHECK(refusal([&](auto& g) { g.conv2d(image(g), {.channels = 1, .stride = -1}); }) ==
        "model: conv2d.0 has an extent that is not positive among [1x3x-1]");
  CHECK(refusal([&](auto& g) {
          g.input("image", {3, -4, 4});
        }) == "model: image has an extent that is not positive among [3x-4x4]");
  CHECK(refusal([&](auto& g) { g.custom(OneLess{}, g.input("row", {1})); }) ==
        "model: custom.0 has an extent that is not positive among [0]");
  CHECK(refusal([&](auto& g) {
          g.parameter("weight", {2, 3}, {.init = graph::Init::fan_in_uniform, .fan_in = 0});
        }) == "model: weight has an extent that is not positive among [0x1]");
  CHECK(refusal([&](auto& g) { g.label("label", 0); }) ==
        "model: label has an extent that is not positive among [0]");
  CHECK(refusal([&](auto& g) { g.max_pool(image(g), {.kernel = 3, .padding = 2}); }) ==
        "model: max_pool.0 has a padding of [2] at a kernel of [3x3]; it must not be negative, nor in a "
        "pooling more than "
        "half the kernel");
  CHECK(refusal([&](auto& g) { g.conv2d(image(g), {.channels = 1, .padding = -2}); }) ==
        "model: conv2d.0 has a padding of [-2] at a kernel of [3x3]; it must not be negative, nor in a "
        "pooling more than "
        "half the kernel");
  const std::string of_a_norm =
      " has an epsilon that is not at least 0 or a momentum that is not from 0 to 1";
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& wrong : {std::pair{-1e-5f, 0.1f}, {nan, 0.1f}, {1e-5f, -0.1f}, {1e-5f, 1.1f}})
    CHECK(refusal([&](auto& g) {
            g.batch_norm(image(g), {.epsilon = wrong.first, .momentum = wrong.second, .name = "norm"});
          }) == "model: norm" + of_a_norm);
  CHECK(refusal([&](auto& g) { g.layer_norm(g.flatten(image(g)), {.epsilon = nan}); }) ==
        "model: layer_norm.0" + of_a_norm);
  CHECK(refusal([&](auto& g) {
          const auto x = g.flatten(image(g));
          g.layer_norm(x, g.parameter("weight", {48}), g.parameter("bias", {48}), {.epsilon = -1});
        }) == "model: layer_norm.0" + of_a_norm);
  CHECK(refusal([&](auto& g) {
          g.cross_entropy(g.flatten(image(g)), g.label("label", 10), {.name = "loss"});
        }) == "model: loss compares logits of [48] with a label of [10] classes");
  CHECK(refusal([&](auto& g) { g.loss(image(g)); }) == "model: a loss must be one number a row, not [3x4x4]");
  for (const float weight : {0.0f, -1.0f, std::numeric_limits<float>::infinity()})
    CHECK(refusal([&](auto& g) { g.loss(g.input("number", {}), {.weight = weight}); }) ==
          "model: the weight of a loss must be positive and finite");
  for (const float deviation : {nan, -1.0f, std::numeric_limits<float>::infinity()}) {
    const std::string of_a_parameter =
        " has a parameter whose standard deviation is not at least 0 and finite";
    CHECK(refusal([&](auto& g) {
            g.parameter("table", {5, 3}, {.init = graph::Init::normal, .deviation = deviation});
          }) == "model: table" + of_a_parameter);
    CHECK(refusal([&](auto& g) { g.linear(g.flatten(image(g)), {.features = 2, .deviation = deviation}); }) ==
          "model: linear.0" + of_a_parameter);
  }
  CHECK(refusal([&](auto& g) { g.loss(g.input("number", {}, {.dtype = DType::i32})); }) ==
        "model: loss needs an input of another element type than that of []");
  CHECK(refusal([&](auto& g) {
          g.loss(g.cross_entropy(g.relu(g.input("x", {2}), {.name = "x"}), g.label("label", 2)));
        }) == "model: two operations, parameters, statistics, outputs or metrics are named x");
  for (const bool metric : {false, true})
    CHECK(refusal([&](auto& g) {
            const auto x = g.flatten(image(g));
            for (int i = 0; i < 2; ++i) metric ? g.metric("twice", Rows{}, x) : g.output("twice", x);
            g.loss(g.cross_entropy(x, g.label("label", 48)));
          }) == "model: two operations, parameters, statistics, outputs or metrics are named twice");
  CHECK(refusal([&](auto& g) {
          const auto weight = g.parameter("norm.running_mean", {48});
          const auto x = g.flatten(g.batch_norm(image(g), {.name = "norm"}));
          g.loss(g.cross_entropy(g.layer_norm(x, weight, weight), g.label("label", 48)));
        }) ==
        "model: two operations, parameters, statistics, outputs or metrics are named norm.running_mean");
  CHECK(refusal([&](auto& g) { g.relu(image(g), {.name = std::string(60, 'n')}); }) ==
        "model: the name beginning with " + std::string(60, 'n') + " is longer than 63 characters");
  for (const bool metric : {false, true})
    CHECK(refusal([&](auto& g) {
            const std::string name(64, 'n');
            metric ? g.metric(name, Rows{}, image(g)) : g.output(name, image(g));
          }) == "model: the name beginning with " + std::string(63, 'n') + " is longer than 63 characters");
  CHECK(refusal([&](auto& g) { g.parameter(std::string(63, 'n'), {1}); }) ==
        "model: it declares no loss, so nothing can be trained");
  CHECK(refusal([&](auto& g) { g.parameter(std::string(64, 'n'), {1}); }) ==
        "model: the name beginning with " + std::string(63, 'n') + " is longer than 63 characters");
  CHECK(refusal([&](auto& g) {
          const std::string layer(58, 'n');
          g.linears(g.flatten(image(g)), {layer}, {.features = 16});
        }) ==
        "model: the name beginning with " + std::string(58, 'n') + ".weig is longer than 63 characters");
  CHECK(refusal([&](auto& g) { g.output("", image(g)); }) ==
        "model: the name '' is empty or ends with a dot");
  CHECK(refusal([&](auto& g) { g.metric("", Rows{}, image(g)); }) ==
        "model: the name '' is empty or ends with a dot");
  CHECK(refusal([&](auto& g) {
          auto in_layer = g.scope("layer");
          g.parameter("", {1});
        }) == "model: the name 'layer.' is empty or ends with a dot");
  CHECK(refusal([&](auto& g) { g.output("x", image(g)); }) ==
        "model: it declares no loss, so nothing can be trained");
  CHECK(refusal([&](auto& g) {
          const auto nest = [&](const auto& self, int depth) -> void {
            auto in_level = g.scope(depth);
            if (depth < 15) self(self, depth + 1);
          };
          nest(nest, 0);
        }) == "model: scopes nest deeper than 15 at 0.1.2.3.4.5.6.7.8.9.10.11.12.13.14.15");
}

TEST_CASE("graph: an extent that an int does not hold is refused") {
  CHECK(refusal([](auto& g) {
          g.flatten(g.input("image", {3, 40'000, 40'000}));
        }) == "model: flatten.0 makes an extent of more than 2147483647 of [3x40000x40000]");
  CHECK(refusal([](auto& g) {
          const auto row = g.input("row", {1 << 30});
          g.concat({row, row});
        }) == "model: concat.0 makes an extent of more than 2147483647 of [1073741824]");
  CHECK(refusal([](auto& g) {
          g.linears(g.input("row", {1}), {"a", "b"}, {.features = 1 << 30});
        }) == "model: linear.0 makes an extent of more than 2147483647 of [2x1073741824]");
}

TEST_CASE("graph: a value, a label or a parameter that was never assigned is refused") {
  const std::string sentence = " is given a Tensor, a Label or a Handle that was never assigned";
  const graph::Tensor none;
  CHECK(refusal([&](auto& g) { g.relu(none, {.name = "relu"}); }) == "model: relu" + sentence);
  CHECK(refusal([&](auto& g) { g.loss(none); }) == "model: loss" + sentence);
  CHECK(refusal([&](auto& g) { g.output("y", none); }) == "model: y" + sentence);
  CHECK(refusal([&](auto& g) { g.metric("rows", Rows{}, none); }) == "model: rows" + sentence);
  CHECK(refusal([&](auto& g) {
          g.cross_entropy(g.input("x", {3}), graph::Label{-1, 3, {}});
        }) == "model: cross_entropy.0" + sentence);
  CHECK(refusal([&](auto& g) {
          g.layer_norm(g.input("x", {3}), {-1, {3}}, {-1, {3}}, {.name = "norm"});
        }) == "model: norm" + sentence);
}

TEST_CASE("graph: invalid operations on sequences are refused at run time, with a sentence for each fault") {
  const auto features = [](auto& g) { return g.input("features", {6}); };
  CHECK(refusal([&](auto& g) { g.dropout(features(g), {.p = 1}); }) ==
        "model: dropout.0 has a probability that is not at least 0 and below 1");
  CHECK(
      refusal([&](auto& g) {
        g.layer_norm(g.input("image", {3, 4, 4}));
      }) ==
      "model: layer_norm.0 needs a row or a sequence of features, not an image of [3x4x4]; flatten it first");
  CHECK(refusal([&](auto& g) { g.embedding(features(g), {.entries = 3, .features = 2}); }) ==
        "model: embedding.0 needs an input of another element type than that of [6]");
  const auto ids = [](auto& g, Shape shape) { return g.input("ids", shape, {.dtype = DType::i32}); };
  CHECK(refusal([&](auto& g) {
          g.embedding(ids(g, {2, 3}), {.entries = 3, .features = 2});
        }) == "model: embedding.0 needs ids that are a number or a row of numbers, not [2x3]");
  CHECK(refusal([&](auto& g) { g.embedding(ids(g, {2}), {.entries = 3}); }) ==
        "model: embedding.0 has an extent that is not positive among [3x0]");
  const auto sequence = [](auto& g) { return g.input("sequence", {4, 6}); };
  CHECK(refusal([&](auto& g) { g.position_embedding(features(g)); }) ==
        "model: position_embedding.0 needs a sequence of [positions x features], not [6]");
  CHECK(refusal([&](auto& g) { g.position_embedding(sequence(g), {.positions = 3}); }) ==
        "model: position_embedding.0 has vectors for 3 positions, not for those of [4x6]");
  CHECK(refusal([&](auto& g) {
          g.position_embedding(sequence(g), g.parameter("table", {4, 5}));
        }) == "model: position_embedding.0 needs a parameter of [4x6], not one of [4x5]");
  CHECK(refusal([&](auto& g) { g.gather(features(g), ids(g, {2})); }) ==
        "model: gather.0 needs a sequence of [positions x features], not [6]");
  CHECK(refusal([&](auto& g) { g.gather(sequence(g), g.input("x", {2})); }) ==
        "model: gather.0 needs an input of another element type than that of [2]");
  CHECK(refusal([&](auto& g) {
          g.gather(sequence(g), ids(g, {2, 3}));
        }) == "model: gather.0 needs positions that are a number or a row of numbers, not [2x3]");
  CHECK(refusal([&](auto& g) { g.select(features(g), 0); }) ==
        "model: select.0 needs a sequence of [positions x features], not [6]");
  CHECK(refusal([&](auto& g) { g.select(sequence(g), 4); }) ==
        "model: select.0 selects position 4 of a sequence of [4x6]");
  CHECK(refusal([&](auto& g) { g.mean(features(g)); }) ==
        "model: mean.0 needs a sequence of [positions x features], not [6]");
  CHECK(refusal([&](auto& g) { g.mean(sequence(g), g.input("x", {})); }) ==
        "model: mean.0 needs an input of another element type than that of []");
  CHECK(refusal([&](auto& g) { g.mean(sequence(g), ids(g, {4})); }) ==
        "model: mean.0 needs lengths that are one number a row, not [4]");
  const auto vector = [](auto& g, int n) { return g.parameter(concat("p", n), {n}); };
  CHECK(refusal([&](auto& g) { g.layer_norm(features(g), vector(g, 6), vector(g, 5), {.name = "norm"}); }) ==
        "model: norm needs a parameter of [6], not one of [5]");
  CHECK(refusal([&](auto& g) {
          g.linear(features(g), g.parameter("weight", {4, 6}), vector(g, 5), {.name = "fc"});
        }) == "model: fc needs a parameter of [5x6], not one of [4x6]");
  CHECK(refusal([&](auto& g) {
          g.linear(features(g), g.parameter("weight", {4, 6}), g.parameter("bias", {4, 1}), {.name = "fc"});
        }) == "model: fc needs a parameter of [4], not one of [4x1]");
  CHECK(refusal([&](auto& g) { g.gelu(ids(g, {2})); }) ==
        "model: gelu.0 needs an input of another element type than that of [2]");
  CHECK(refusal([&](auto& g) {
          g.cross_entropy(features(g), g.label("label", 6), {.smoothing = -0.5f, .name = "loss"});
        }) == "model: loss smooths labels by what is not at least 0 and below 1");
  CHECK(refusal([&](auto& g) {
          g.concat({features(g), g.input("two", {2, 6})});
        }) == "model: concat.0 cannot join [6] and [2x6]");
  CHECK(refusal([&](auto& g) { g.concat({}); }) == "model: concat.0 joins nothing");
  CHECK(refusal([&](auto& g) { g.mse_loss(features(g), g.input("target", {5})); }) ==
        "model: mse_loss.0 needs two inputs of one shape, not [6] and [5]");
  CHECK(refusal([&](auto& g) {
          g.conv2d(g.input("image", {6, 4, 4}), {.channels = 8, .groups = 4});
        }) == "model: conv2d.0 has 4 groups, which do not divide its channels, 6 of input and 8 of output");
  CHECK(refusal([&](auto& g) {
          g.conv2d(g.input("image", {6, 4, 4}), {.channels = 8, .dilation = 0});
        }) == "model: conv2d.0 has an extent that is not positive among [1x0]");
}
