// SANITIZE: none
// Attention in a graph: its shapes, its price, and the errors for invalid inputs and options.
#include <doctest/doctest.h>

#include <convoy/graph/dynamic.hpp>

using namespace convoy;

namespace {

/// Calls every overload of attention.
struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("x", {100, 24});
    auto memory = g.input("memory", {40, 24});
    auto lengths = g.input("lengths", {}, {.dtype = DType::i32});
    auto q = g.linear(x, {.features = 12}), k = g.linear(memory, {.features = 12}),
         v = g.linear(memory, {.features = 20});
    auto y = g.attention(q, k, v, {.heads = 4, .name = "cross"});
    y = g.add(y, g.attention(q, k, v, lengths, {.heads = 2, .name = "padded"}));
    auto z = g.attention(x, {.heads = 2, .causal = true, .name = "causal"});
    z = g.add(z, g.attention(x, lengths, {.heads = 8}));
    z = g.concat({y, z});
    g.loss(g.cross_entropy(g.linear(g.flatten(z), {.features = 3}), g.label("label", 3)));
  }
};
constexpr const auto& plan = plan_of<Net>;
constexpr const graph::Node& node(std::string_view name) { return plan.nodes[plan.find(name)]; }
constexpr graph::Price price(std::string_view name) { return plan.prices[plan.find(name)]; }

static_assert(node("cross").shape == Shape(100, 20) && node("cross").kind == Kind::sequence);
static_assert(node("causal").shape == Shape(100, 8) && node("attention.0").shape == Shape(100, 8));
static_assert(node("cross").inputs == 3 && node("padded").inputs == 4 && node("causal").inputs == 1 &&
              node("attention.0").inputs == 2);
// For each pair of a query and a key: one multiply-accumulate per feature of a key and per feature of a
// value.
static_assert(price("cross").macs == 100 * 40 * (12 + 20));
static_assert(price("cross").forward_flops == 2 * price("cross").macs);
static_assert(price("cross").backward_flops == 2 * 100 * 40 * (3 * 12 + 2 * 20));
static_assert(price("padded").forward_flops == price("cross").forward_flops);
// macs counts all pairs; live_macs of causal attention only half of them and the diagonal.
static_assert(price("causal").macs == 100 * 100 * (8 + 8));
static_assert(price("causal").live_macs == 100 * 101 / 2 * (8 + 8));
// The operands, the output, and one number per head and query: bytes grow linearly with positions.
static_assert(price("cross").forward_bytes == 4 * (100 * 12 + 40 * 32 + 100 * 20 + 4 * 100));

constexpr graph::Attention::Extents of(int queries, int keys) {
  graph::Attention::Extents e;
  e.queries = queries;
  e.keys = keys;
  e.causal = true;
  return e;
}
static_assert(of(5, 3).pairs() == 1 + 2 + 3 + 3 + 3);
static_assert(of(3, 5).pairs() == 1 + 2 + 3);

/// The error message for a model that is invalid at run time; "accepted" if there is none.
template <class Define>
std::string refusal(Define&& define) {
  try {
    DynamicPlan refused(define);
  } catch (const ModelError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("graph: an invalid attention is refused at run time, with a sentence for each fault") {
  const auto x = [](auto& g, Shape shape) { return g.input(concat(shape), shape); };
  const auto lengths = [](auto& g, Shape shape) { return g.input("lengths", shape, {.dtype = DType::i32}); };
  CHECK(refusal([&](auto& g) { g.attention(x(g, {12}), {.heads = 2}); }) ==
        "model: attention.0 needs a sequence of [positions x features], not [12]");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 12}), x(g, {6, 12}), x(g, {3, 4, 4}), {.heads = 2});
        }) == "model: attention.0 needs a sequence of [positions x features], not [3x4x4]");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 12}), x(g, {6, 10}), x(g, {6, 10}), {.heads = 2});
        }) ==
        "model: attention.0 needs keys of as many features as its queries and as many values as keys, not "
        "[6x12] and [6x10]");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 12}), x(g, {6, 12}), x(g, {7, 12}), {.heads = 2});
        }) ==
        "model: attention.0 needs keys of as many features as its queries and as many values as keys, not "
        "[6x12] and [7x12]");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 12}), {.heads = 3});
        }) == "model: attention.0 has 3 heads, which do not divide the features of [6x4]");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 12}), {});
        }) == "model: attention.0 has 0 heads, which do not divide the features of [6x4]");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 13}), {.heads = 1});
        }) ==
        "model: attention.0 needs queries, keys and values side by side, but the features of [6x13] are no "
        "multiple of 3");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 12}), x(g, {}), {.heads = 2});
        }) == "model: attention.0 needs an input of another element type than that of []");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 12}), lengths(g, {6}), {.heads = 2});
        }) == "model: attention.0 needs lengths that are one number a row, not [6]");
  CHECK(refusal([&](auto& g) {
          g.attention(x(g, {6, 12}), {.heads = 2, .dropout = 1});
        }) == "model: attention.0 has a dropout that is not at least 0 and below 1");
  CHECK(refusal([&](auto& g) {
          auto ids = lengths(g, {6, 12});
          g.attention(ids, {.heads = 2});
        }) == "model: attention.0 needs an input of another element type than that of [6x12]");
}
