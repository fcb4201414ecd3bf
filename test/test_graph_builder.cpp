// The builder: names and scopes, shapes, and the equality of plans made at run time and while compiling.
#include <algorithm>
#include <concepts>
#include <span>

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
