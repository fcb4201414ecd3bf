// What the speed of a worker is measured on.
#include <algorithm>
#include <span>

#include <doctest/doctest.h>

#include <convoy/exec/labels.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/transformer.hpp>
#include <convoy/train/speed.hpp>

using namespace convoy;

TEST_CASE("a batch to be timed is one that Execs take, of sequences as long as they may be") {
  constexpr int rows = 3, length = 10, words = 30;
  const DynamicPlan plan([](graph::Builder& g) {
    models::define_transformer(g, {.layers = 1,
                                   .width = 8,
                                   .heads = 2,
                                   .ffn = 16,
                                   .length = length,
                                   .vocabulary = words,
                                   .classes = 5});
  });
  const train::RandomBatch batch(plan, rows);
  exec::expect_batch(plan, batch.view(), rows);
  const auto field = [&](std::size_t f, std::size_t size) {
    return std::span(static_cast<const i32*>(batch.view().fields[f]), size);
  };
  const auto all = [](std::span<const i32> values, i32 wanted) {
    return std::all_of(values.begin(), values.end(), [&](i32 value) { return value == wanted; });
  };
  CHECK(all(field(0, rows * length), words - 1));
  CHECK(all(field(1, rows), length));
  CHECK(all(field(2, rows), 0));
}

TEST_CASE("what is not indexed by is random") {
  const DynamicPlan plan([](graph::Builder& g) {
    auto x = g.linear(g.input("x", Shape{16}), {.features = 5});
    g.loss(g.cross_entropy(x, g.label("label", 5)));
  });
  const train::RandomBatch batch(plan, 2);
  const std::span values(static_cast<const float*>(batch.view().fields[0]), 32);
  CHECK(std::count(values.begin(), values.end(), values[0]) == 1);
  CHECK(static_cast<const i32*>(batch.view().fields[1])[1] == 0);
}
