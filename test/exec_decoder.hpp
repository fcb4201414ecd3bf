// A linear layer and its cross-entropy as one stage: a plan that ends with it, and the properties of losses
// that every Exec guarantees that computes the logits in blocks.
#pragma once

#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include <convoy/graph/dynamic.hpp>

namespace exec_decoder {

using namespace convoy;

/// A decoder with `classes` classes, whose weight is tied to the embedding of its input.
inline DynamicPlan decoder(int classes, int positions, bool bias, bool logits = false) {
  return DynamicPlan([=](auto& g) {
    const auto weight = g.parameter("shared", {classes, 6}, {.init = graph::Init::normal});
    const auto ids = g.input("ids", {positions}, {.dtype = DType::i32});
    const auto x = g.layer_norm(g.linear(g.embedding(ids, weight), {.features = 6}));
    const auto y = g.linear(x, weight, {.bias = bias, .name = "decoder"});
    const auto label = g.label("label", classes, {.positions = positions, .ignore = -100});
    if (logits) g.output("logits", y);
    g.loss(g.cross_entropy(y, label, {.smoothing = bias ? 0.1f : 0.0f, .name = "loss"}));
  });
}

template <class E>
bool backward_is_refused(E& e, std::span<const float> scales) {
  try {
    e.backward(scales, [](std::int64_t) {});
  } catch (const ExecError&) {
    return true;
  }
  return false;
}

/// Checks that the losses of a decoder of several blocks do not depend on whether backward computes them or
/// the call that asks for them.
template <class E>
void check_losses_whenever_asked(E& e, const Plan& plan) {
  exec_compare::randomize(e, plan, Philox{4, 1});
  const exec_compare::Batch first(plan, 3, Philox{8, 1}), second(plan, 3, Philox{8, 2});
  const std::vector<float> scales{0.25f};
  struct Seen {
    double loss;
    std::int64_t correct, labels;
    bool operator==(const Seen&) const = default;
  };
  const auto taken = [&] {
    const exec::Result result = e.result();
    return Seen{result.loss(), result.correct, result.labels};
  };
  const auto backward = [&] {
    e.backward(scales, [](std::int64_t) {});
    return exec_compare::fetched(e, e.gradients());
  };
  e.forward(first, {});
  const auto gradients = backward();
  const Seen of_first = taken();
  CHECK(of_first.loss > 0);
  CHECK(of_first.labels > 0);

  e.forward(first, {});
  CHECK(taken() == of_first);  // before backward
  CHECK(backward() == gradients);

  e.forward(first, {});  // no backward; the losses are read after the next pass
  e.forward(second, {});
  backward();
  CHECK(taken() == of_first);
  const Seen of_second = taken();
  CHECK(of_second.loss != of_first.loss);
  CHECK(backward_is_refused(e, scales));

  e.forward(first, {});  // the parameters change afterwards
  std::vector<float> values(static_cast<std::size_t>(plan.parameter(0).shape.size()), 0.5f);
  e.write_parameter(0, values);
  CHECK(taken() == of_first);

  e.forward(second, {.mode = exec::Mode::evaluate});
  const Seen evaluated = taken();
  e.forward(second, {});
  backward();
  CHECK(taken() == evaluated);
}

}  // namespace exec_decoder
