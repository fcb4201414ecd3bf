// NEEDS: cuda
// SANITIZE: none
// TIMEOUT: 600
// DRIVER: pretended
// cuDNN has a plan in 16 bits for every attention of the models, forward and backward, that gives the same
// bits in every run and fits its workspace limit, on GPUs that need not be present. cuDNN compiles such plans
// when they are created, and needs a driver to load them.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "exec_cuda_gpus.hpp"
#include <convoy/exec/cuda/cudnn.cuh>
#include <convoy/models/bert.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/transformer.hpp>

using namespace convoy;
using namespace convoy::exec::cuda;
using namespace exec_cuda;

namespace {

constexpr std::size_t limit = std::size_t{256} << 20;

/// The distinct attentions of a step, with the model's dropout and without.
std::vector<FusedAttention> attentions(const Plan& plan, DType element, int rows) {
  std::vector<FusedAttention> all;
  for (int n = 0; n < plan.graph.count.nodes; ++n) {
    if (!graph::is<graph::Attention>(plan.node(n))) continue;
    for (const bool backward : {false, true}) {
      FusedAttention a = fused_attention_of(plan, n, element, rows, backward);
      for (int drops = a.drops; drops >= 0; --drops) {
        a.drops = drops != 0;
        if (std::find(all.begin(), all.end(), a) == all.end()) all.push_back(a);
      }
    }
  }
  return all;
}

/// Each GPU makes the plans of one type, the next one those of the other: cuDNN takes a second to compile a
/// plan.
void check(std::string_view model, const Plan& plan, int rows, DType element) {
  for (const Gpu& gpu : gpus) {
    const Cudnn cudnn{std::string_view(properties(gpu))};
    const auto all = attentions(plan, element, rows);
    CHECK(all.size() == 4);
    for (const FusedAttention& a : all) {
      INFO(model, ' ', gpu.name, ' ', name_of(element), a.backward ? " backward" : " forward",
           a.drops ? " that drops" : "");
      CHECK(a.is_aligned());
      const auto plans = cudnn.plans(a, a.most_workspace(limit), 1);
      REQUIRE(plans.size() == 1);
      CHECK(plans[0].workspace + a.mask_bytes() <= limit);
      // A plan that sums the gradients of queries in a varying order would need less workspace.
      CHECK((plans[0].workspace > 1024) == a.backward);
    }
    element = element == DType::bf16 ? DType::f16 : DType::bf16;
  }
}

using Bert = models::BertBase<128>;
using Gpt2 = models::Gpt2Small<>;
using Sst5 = models::Transformer<6, 256, 4, 1024, 256, 20'000, 5>;

}  // namespace

TEST_CASE("cudnn: every attention of BERT-base, GPT-2 and the Transformer of SST-5 has a plan") {
  check("BERT-base", plan_of<Bert>, 64, DType::bf16);
  check("GPT-2", plan_of<Gpt2>, 4, DType::f16);
  check("Transformer", plan_of<Sst5>, 32, DType::bf16);
}

TEST_CASE("cudnn: attentions of heads of 8 to 128 features have plans, and such of other features none") {
  const Cudnn cudnn{std::string_view(properties(gpus[1]))};
  const auto has_plan = [&](bool backward, bool causal, int key_features, int value_features) {
    const FusedAttention a{.backward = backward,
                           .causal = causal,
                           .rows = 3,
                           .heads = 2,
                           .queries = 70,
                           .keys = 25,
                           .key_features = key_features,
                           .value_features = value_features,
                           .step = {2 * key_features, 2 * key_features, 2 * value_features}};
    return !cudnn.plans(a, limit, 1).empty();
  };
  for (const bool backward : {false, true})
    for (const bool causal : {false, true}) {
      for (const int features : {8, 32, 64, 128}) CHECK(has_plan(backward, causal, features, features));
      CHECK(has_plan(backward, causal, 64, 32));
      CHECK(!has_plan(backward, causal, 20, 20));
    }
}

TEST_CASE("cudnn: backward of a large attention wants more than the usual workspace") {
  const Cudnn cudnn{std::string_view(properties(gpus[1]))};
  const FusedAttention a = attentions(plan_of<Gpt2>, DType::bf16, 16).back();
  REQUIRE(a.backward);
  CHECK(cudnn.plans(a, limit, 1).empty());
  CHECK(cudnn.plans(a, 2 * limit, 1).size() == 1);
}

TEST_CASE(
    "cudnn: plans that are compiled side by side are those compiled one after another, in their order") {
  const Cudnn alone{std::string_view(properties(gpus[1])), 1},
      together{std::string_view(properties(gpus[1])), 3};
  const FusedAttention a = attentions(plan_of<Sst5>, DType::f16, 32).front();
  // An accepting function sees one plan at a time, and refusals are made up for.
  for (const std::size_t refused : {std::size_t{0}, std::size_t{1}}) {
    // What tells a plan from others; the data of its kernels contain addresses.
    const auto texts = [&](const Cudnn& cudnn) {
      std::vector<std::string> all;
      std::size_t seen = 0;
      for (const CudnnPlan& plan :
           cudnn.plans(a, limit, 2, [&](const CudnnPlan&) { return seen++ >= refused; }))
        all.push_back(concat(plan.workspace, ' ', plan.text().substr(0, plan.text().find("rawData"))));
      CHECK(seen == 2 + refused);
      return all;
    };
    const auto expected = texts(alone);
    REQUIRE(expected.size() == 2);
    CHECK(expected[0] != expected[1]);
    CHECK(texts(together) == expected);
  }
}

TEST_CASE("cudnn: a failure names the work") {
  const Cudnn cudnn{std::string_view(properties(gpus[1]))};
  FusedAttention a = attentions(plan_of<Sst5>, DType::bf16, 32).front();
  a.rows = -1;
  std::string sentence;
  try {
    static_cast<void>(cudnn.plans(a, limit, 1));
  } catch (const device::DeviceError& error) {
    sentence = error.what();
  }
  INFO(sentence);
  CHECK(sentence.starts_with("cudnn: could not describe a tensor: "));
  CHECK(sentence.ends_with(
      ", for an attention of 4 heads of 64 features, 256 queries and 256 keys, over -1 rows in bf16"));
}

TEST_CASE("cudnn: a plan of an attention is made again from its text") {
  const Cudnn cudnn{std::string_view(properties(gpus[1]))};
  for (const FusedAttention& a : attentions(plan_of<Sst5>, DType::bf16, 32)) {
    const auto plans = cudnn.plans(a, limit, 1);
    REQUIRE(plans.size() == 1);
    const CudnnPlan again = cudnn.restored(plans[0].text());
    REQUIRE(again.plan);
    CHECK(again.workspace == plans[0].workspace);
  }
}
