// What an Exec on the host keeps of a pass in which a user's operation threw: nothing.
#pragma once

#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_random_models.hpp"

namespace exec_compare {

template <class E>
void check_after_a_throw() {
  const DynamicPlan plan([](auto& g) {
    const auto x = g.custom(Faulty{}, g.linear(g.input("row", {4}), {.features = 3}));
    g.output("scores", x);
    g.loss(g.cross_entropy(x, g.label("label", 3)));
  });
  E e(plan, 2);
  randomize(e, plan, Philox{1});
  const Batch batch(plan, 2, Philox{2});
  const double loss = forward(e, batch).loss();
  Faulty::throws = true;
  CHECK_THROWS_WITH_AS(e.forward(batch, {}), "faulty", Error);
  Faulty::throws = false;
  CHECK_THROWS_WITH_AS(e.result(), "exec: a result was asked for before a forward pass", ExecError);
  CHECK_THROWS_WITH_AS(e.output(0), "exec: output 0 was asked for before a forward pass", ExecError);
  CHECK_THROWS_WITH_AS(backward(e, plan), "exec: backward needs a forward pass in Mode::train before it",
                       ExecError);
  const exec::Result again = forward(e, batch);
  CHECK(again.loss() == loss);
  CHECK(again.labels == 2);
}

}  // namespace exec_compare
