// Deep models are constants within the compilers' default limits for constant expressions: the checks compile
// this file with each compiler, without options that raise the limits.
#include <convoy/graph/plan.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/models/transformer.hpp>

using namespace convoy;

/// A model with as many nodes, parameters and scopes as a transformer of `layers` layers, but of other
/// operations.
template <int layers>
struct Chain {
  static constexpr int width = 768, tokens = 128, classes = 1000;

  static constexpr void define(auto& g) {
    auto x = g.linear(g.input("tokens", {tokens, 64}), {.features = width, .name = "embedding"});
    auto all = g.scope("layers");
    for (int i = 0; i < layers; ++i) {
      auto layer = g.scope(i);
      auto query = g.linear(x, {.features = width, .name = "query"});
      auto key = g.linear(x, {.features = width, .name = "key"});
      auto value = g.linear(x, {.features = width, .name = "value"});
      auto mixed =
          g.add(g.relu(g.add(query, key, {.name = "scores"}), {.name = "weights"}), value, {.name = "mixed"});
      x = g.add(g.linear(mixed, {.features = width, .name = "out"}), x, {.name = "attended"});
      auto wide = g.relu(g.linear(x, {.features = 4 * width, .name = "up"}), {.name = "bent"});
      x = g.add(g.linear(wide, {.features = width, .name = "down"}), x, {.name = "done"});
    }
    x = g.linear(x, {.features = classes, .name = "head"});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes, {.positions = tokens}), {.name = "loss"}));
  }
};

constexpr std::int64_t layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768;
static_assert(plan_of<Chain<48>>.parameters() == 48 * layer + 65 * 768 + 769 * 1000);
static_assert(plan_of<Chain<48>>.nodes.size() == 5 + 48 * 12);
static_assert(plan_of<models::ResNet152<Image{3, 224, 224}, 1000>>.parameters() == 60'192'808);
static_assert(plan_of<models::Transformer<48, 768, 12, 3072, 128, 1000, 5>>.parameters() ==
              48 * (layer + 4 * 768) + (1000 + 128) * 768 + 2 * 768 + 5 * 769);
static_assert(plan_of<models::BertLarge<512, 76>>.parameters() == 336'226'108);
static_assert(plan_of<models::Gpt2Xl<>>.parameters() == 1'557'611'200);
