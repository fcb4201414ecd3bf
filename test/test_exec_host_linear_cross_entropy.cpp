// NEEDS: host
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline
// A linear layer and its cross-entropy as one stage of Host, with one block of labels and with several.
#include <doctest/doctest.h>

#include "exec_decoder.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/graph/dynamic.hpp>

using namespace convoy;
using exec_decoder::decoder;

namespace {

// With a workspace for the logits of few labels: of 128 with 2'001 classes.
class InBlocks : public exec::Host<f32> {
 public:
  InBlocks(const Plan& plan, int batch, Options options)
      : Host(plan, batch, (options.logits_mib = 1, options)) {}
};

}  // namespace

TEST_CASE("host: logits of several blocks of labels agree with the reference") {
  // 129 labels: blocks of 80 and of 49.
  for (const int threads : {1, 2}) {
    const DynamicPlan plan = decoder(2'001, 43, threads == 1);
    CHECK(exec_compare::difference<InBlocks>(plan, {.seed = 5, .batch = 3, .threads = threads}) == "");
  }
}

TEST_CASE("host: a loss of several blocks is the same whether backward computes it or the one who asks") {
  const DynamicPlan plan = decoder(2'001, 43, true);
  InBlocks e(plan, 3, {.threads = 2});
  exec_decoder::check_losses_whenever_asked(e, plan);
}

TEST_CASE("host: a loss of several blocks does not read a batch that was reused after forward") {
  const DynamicPlan plan([](auto& g) {
    const auto x = g.linear(g.input("row", {8}), {.features = 2'001});
    g.loss(g.cross_entropy(x, g.label("label", 2'001)));
  });
  constexpr int rows = 256;
  InBlocks e(plan, rows, {.threads = 1});
  exec_compare::randomize(e, plan, Philox{1});
  std::vector<float> values(rows * 8, 0.5f);
  std::vector<i32> labels(rows, 7);
  const void* const fields[] = {values.data(), labels.data()};
  const double loss = exec_compare::forward(e, {fields, rows}, exec::Mode::evaluate).loss();
  e.forward({fields, rows}, {});
  std::fill(values.begin(), values.end(), 9.0f);
  std::fill(labels.begin(), labels.end(), 8);
  CHECK(e.result().loss() == loss);
}

TEST_CASE("host: logits need some memory") {
  const DynamicPlan plan = decoder(30, 4, false);
  CHECK_THROWS_WITH_AS(exec::Host<f32>(plan, 2, {.logits_mib = 0}),
                       "exec: logits_mib must be at least 1, not 0", ConfigError);
}

TEST_CASE("host: a decoder and its loss are one stage unless the logits are handed out") {
  const auto stages = [](bool logits) {
    const DynamicPlan plan = decoder(30, 4, false, logits);
    const exec::Host<f32> e(plan, 2);
    std::vector<std::string> led;
    for (const auto& stage : e.profile()) led.push_back(stage.name);
    return led;
  };
  CHECK(stages(false).back() == "decoder");
  CHECK(stages(true).back() == "loss");
}
