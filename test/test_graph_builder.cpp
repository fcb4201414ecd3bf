// The builder: names and scopes, shapes, the errors for invalid models at run time, and the equality of plans
// made at run time and while compiling.
#include <limits>
#include <utility>

#include <doctest/doctest.h>

#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>

using namespace convoy;

namespace {

/// A user's own model, as in the README.
template <Image In, int Classes>
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("image", In);
    for (int width : {32, 64}) x = g.relu(g.batch_norm(g.conv2d(x, {.channels = width, .kernel = 3})));
    x = g.linear(g.flatten(g.max_pool(x, {.kernel = 2})), {.features = Classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", Classes)));
  }
};
constexpr const auto& net = plan_of<Net<Image{1, 28, 28}, 10>>;

/// Custom operations without functions for a device, with both of them, and with functions that accept any
/// arguments, which do not count as functions for a device.
struct OnHost {
  static constexpr Shape shape(Shape x) { return x; }
  template <class T>
  static void forward(View<const T>, View<T>) {}
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T>, View<T>) {}
};
struct OnBoth : OnHost {
  using OnHost::backward;
  using OnHost::forward;
  static void forward(CUstream_st*, View<const float>, View<float>) {}
  static void backward(CUstream_st*, View<const float>, View<const float>, View<const float>, View<float>) {}
};
struct OneLess : OnHost {
  static constexpr Shape shape(Shape x) { return {x[0] - 1}; }
};
struct Rows {
  static double measure(View<const float> x) { return x.rows; }
};
struct OnWhatever {
  static constexpr Shape shape(Shape x) { return x; }
  static void forward(auto...) {}
  static void backward(auto...) {}
};
struct Customs {
  static constexpr void define(auto& g) {
    auto x = g.custom(OnHost{}, g.input("features", {5}));
    x = g.custom(OnWhatever{}, g.custom(OnBoth{}, x));
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  }
};
constexpr const graph::Graph& customs = plan_of<Customs>.graph;
static_assert(!customs.calls_of(1).on_stream && customs.calls_of(2).on_stream &&
              !customs.calls_of(3).on_stream);
static_assert(net.parameters() == 288 + 64 + 18'432 + 128 + 64 * 14 * 14 * 10 + 10);
static_assert(net.parameter_list[0].name == "conv2d.0.weight");
static_assert(net.parameter_list[3].name == "conv2d.1.weight");
static_assert(net.statistic_list[1].name == "batch_norm.0.running_var");
static_assert(net.statistic_list[1].start == 1);
static_assert(net.find("linear.0") >= 0 && net.find("linear.1") == -1);
static_assert(net.outputs[0].name == "logits" && net.outputs[0].node == net.find("linear.0"));
static_assert(net.parameter_list.back().group == Group::no_decay);

/// Linear layers side by side, trained and frozen: weights one after another, and so their biases, though the
/// parameters are listed layer by layer.
struct SideBySide {
  static constexpr void define(auto& g) {
    auto x = g.linears(g.input("features", {3}), {"a", "b", "c"}, {.features = 16, .name = "trained"});
    x = g.linears(x, {"d", "e"}, {.features = 32, .frozen = true});
    g.loss(g.cross_entropy(x, g.label("label", 64)));
  }
  static constexpr bool in_rows(const Plan& plan, int first, int layers) {
    const int weight = first, bias = first + 1;
    bool all = true;
    for (int k = 1; k < layers; ++k)
      for (const int p : {weight, bias})
        all = all && plan.slot(p + 2 * k).live.begin == plan.slot(p + 2 * k - 2).live.end;
    return all;
  }
};
constexpr const Plan& side_by_side = plan_of<SideBySide>;
static_assert(side_by_side.parameter(2).name == "b.weight" && side_by_side.parameter(3).name == "b.bias");
static_assert(side_by_side.parameter(9).name == "e.bias" && side_by_side.parameter_list.size() == 10);
static_assert(SideBySide::in_rows(side_by_side, 0, 3) && SideBySide::in_rows(side_by_side, 6, 2));
static_assert(side_by_side.node(side_by_side.find("trained")).shape == Shape{48});
static_assert(graph::Linear::layers(side_by_side.graph, side_by_side.find("trained")) == 3);
static_assert(graph::Linear::bias(side_by_side.graph, side_by_side.find("trained")) == 1);

/// A model with its own sizes of buckets.
struct Bucketed {
  static constexpr BucketOptions buckets = {.first = 64, .others = 64};
  static constexpr void define(auto& g) { Net<Image{1, 28, 28}, 10>::define(g); }
};
static_assert(plan_of<Bucketed>.buckets.size() > net.buckets.size());

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

bool same(const graph::Node& a, const graph::Node& b) {
  return a.op == b.op && a.dtype == b.dtype && a.kind == b.kind && a.given == b.given && a.shape == b.shape &&
         a.input == b.input && a.inputs == b.inputs && a.use == b.use && a.uses == b.uses &&
         a.statistic == b.statistic && a.statistics == b.statistics && a.word == b.word &&
         a.words == b.words && a.call == b.call && a.name == b.name;
}
bool same(const graph::Parameter& a, const graph::Parameter& b) {
  return a.name == b.name && a.shape == b.shape && a.fan_in == b.fan_in && a.fan_out == b.fan_out &&
         a.init == b.init && a.group == b.group;
}
bool same(const graph::Statistic& a, const graph::Statistic& b) {
  return a.name == b.name && a.shape == b.shape && a.start == b.start;
}
bool same(const graph::Output& a, const graph::Output& b) { return a.name == b.name && a.node == b.node; }
bool same(const graph::Metric& a, const graph::Metric& b) {
  return a.name == b.name && a.input == b.input && a.inputs == b.inputs && a.call == b.call &&
         a.identity == b.identity;
}
bool same(const graph::Slot& a, const graph::Slot& b) {
  return a.live == b.live && a.dead == b.dead && a.stages == b.stages && a.first == b.first &&
         a.last == b.last;
}
bool same(const graph::Lifetime& a, const graph::Lifetime& b) {
  return a.begin == b.begin && a.end == b.end && a.bytes == b.bytes;
}
bool same(const graph::Price& a, const graph::Price& b) {
  return a.macs == b.macs && a.live_macs == b.live_macs && a.forward_flops == b.forward_flops &&
         a.backward_flops == b.backward_flops && a.forward_bytes == b.forward_bytes &&
         a.backward_bytes == b.backward_bytes;
}
template <class T>
requires std::equality_comparable<T>
bool same(const T& a, const T& b) { return a == b; }
template <class T>
bool same(std::span<const T> a, std::span<const T> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return same(x, y); });
}

void check_same(const Plan& a, const Plan& b) {
  CHECK(same(a.nodes, b.nodes));
  CHECK(same(a.parameter_list, b.parameter_list));
  CHECK(same(a.statistic_list, b.statistic_list));
  CHECK(same(a.outputs, b.outputs));
  CHECK(same(a.losses, b.losses));
  CHECK(same(a.metrics, b.metrics));
  CHECK(same(a.stages, b.stages));
  CHECK(same(a.members, b.members));
  CHECK(same(a.stage_of, b.stage_of));
  const graph::Counts &counted = a.graph.count, &counted_too = b.graph.count;
  REQUIRE(counted.edges == counted_too.edges);
  REQUIRE(counted.uses == counted_too.uses);
  REQUIRE(counted.words == counted_too.words);
  REQUIRE(counted.calls == counted_too.calls);
  CHECK(std::equal(a.graph.edges, a.graph.edges + counted.edges, b.graph.edges));
  CHECK(std::equal(a.graph.uses, a.graph.uses + counted.uses, b.graph.uses));
  CHECK(std::equal(a.graph.words, a.graph.words + counted.words, b.graph.words));
  CHECK(std::equal(a.graph.calls, a.graph.calls + counted.calls, b.graph.calls));
  CHECK(same(a.taps, b.taps));
  CHECK(same(a.slots, b.slots));
  CHECK(same(a.exchange_order, b.exchange_order));
  CHECK(same(a.buckets, b.buckets));
  CHECK(same(a.prices, b.prices));
  CHECK(same(a.lifetimes, b.lifetimes));
  CHECK(same(a.offsets, b.offsets));
  CHECK(a.sizes.exchanged == b.sizes.exchanged);
  CHECK(a.sizes.parameters == b.sizes.parameters);
  CHECK(a.sizes.statistics == b.sizes.statistics);
  CHECK(same(a.price, b.price));
  CHECK(a.training_bytes == b.training_bytes);
  CHECK(a.used == b.used);
  CHECK(a.fingerprint == b.fingerprint);
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

TEST_CASE("graph: a plan made at run time is the plan made while compiling") {
  using ResNet = models::ResNet18<Image{1, 28, 28}, 10>;
  check_same(DynamicPlan([](auto& g) { ResNet::define(g); }), plan_of<ResNet>);
  check_same(DynamicPlan([](auto& g) { Bucketed::define(g); }, Bucketed::buckets), plan_of<Bucketed>);
}

TEST_CASE("graph: scopes nest names, and unnamed operations are numbered within their scope") {
  const DynamicPlan dynamic([](auto& g) {
    auto x = g.relu(g.input("image", {1, 2, 2}));
    {
      auto outer = g.scope("layer1");
      x = g.relu(x);
      {
        auto inner = g.scope(0);
        x = g.relu(x);
        x = g.relu(x, {.name = "act"});
        x = g.relu(x);
        x = g.max_pool(x);
      }
      x = g.relu(x);
    }
    x = g.flatten(g.relu(x));
    g.loss(g.cross_entropy(x, g.label("label", 1)));
  });
  const std::string_view names[] = {"image",
                                    "relu.0",
                                    "layer1.relu.0",
                                    "layer1.0.relu.0",
                                    "layer1.0.act",
                                    "layer1.0.relu.1",
                                    "layer1.0.max_pool.0",
                                    "layer1.relu.1",
                                    "relu.1",
                                    "flatten.0",
                                    "label",
                                    "cross_entropy.0"};
  const Plan& plan = dynamic;
  REQUIRE(plan.nodes.size() == std::size(names));
  for (std::size_t n = 0; n < plan.nodes.size(); ++n) CHECK(plan.nodes[n].name == names[n]);
}

TEST_CASE("graph: shapes follow the operations") {
  const DynamicPlan dynamic([](auto& g) {
    auto x =
        g.conv2d(g.input("image", {3, 9, 7}), {.channels = 8, .kernel = 3, .stride = 2, .name = "halved"});
    auto y = g.conv2d(x, {.channels = 2, .kernel = 3, .padding = 0, .name = "valid"});
    auto z = g.max_pool(x, {.kernel = 3, .stride = 2, .padding = 1, .name = "pooled"});
    g.output("y", y);
    auto a = g.avg_pool(z, {.kernel = 2, .stride = 1, .name = "averaged"});
    g.output("a", a);
    auto f = g.flatten(g.global_avg_pool(x, {.name = "global"}), {.name = "flat"});
    g.loss(g.cross_entropy(f, g.label("label", 8)));
  });
  const Plan& plan = dynamic;
  const auto shape = [&](std::string_view name) {
    return plan.nodes[static_cast<std::size_t>(plan.find(name))].shape;
  };
  CHECK(shape("halved") == Shape{8, 5, 4});
  CHECK(shape("valid") == Shape{2, 3, 2});
  CHECK(shape("pooled") == Shape{8, 3, 2});
  CHECK(shape("averaged") == Shape{8, 2, 1});
  CHECK(shape("global") == Shape{8, 1, 1});
  CHECK(shape("flat") == Shape{8});
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
