// SANITIZE: none
// The models as constants: numbers of parameters, which parameters decay, and which operations are fused.
#include <doctest/doctest.h>

#include <convoy/graph/dynamic.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/convnet.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/mlp.hpp>
#include <convoy/models/transformer.hpp>

using namespace convoy;

namespace {

constexpr const Plan& convnet = plan_of<models::ConvNet<>>;
static_assert(convnet.parameters() == 421'642);
static_assert(plan_of<models::Mlp<Image{1, 28, 28}, 10, 256, 64>>.parameters() ==
              784 * 256 + 256 + 256 * 64 + 64 + 640 + 10);
static_assert(plan_of<models::Mlp<Image{1, 28, 28}, 10>>.parameters() == 7'850);

constexpr const Plan& sst5 = plan_of<models::Transformer<6, 256, 4, 1024, 256, 18'280, 5>>;
static_assert(sst5.parameters() == 6 * (4 * 256 * 256 + 4 * 256 + 2 * 256 * 1024 + 1024 + 256 + 4 * 256) +
                                       2 * 256 + (18'280 + 256) * 256 + 5 * 257);

constexpr std::int64_t parameters_in(const Plan& plan, std::string_view scope) {
  std::int64_t count = 0;
  for (const auto& p : plan.parameter_list)
    if (p.name.view().substr(0, scope.size()) == scope) count += p.shape.size();
  return count;
}
constexpr const Plan& bert = plan_of<models::BertBase<>>;
static_assert(bert.parameters() == 110'106'428);
static_assert(parameters_in(bert, "bert.") == 109'482'240);

constexpr const Plan& gpt2 = plan_of<models::Gpt2Small<>>;
static_assert(gpt2.parameters() == 124'439'808);

static_assert(plan_of<models::Gpt2Medium<>>.parameters() == 354'823'168);
static_assert(plan_of<models::Gpt2Large<>>.parameters() == 774'030'080);
// Each of 1,024 tokens is multiplied by every matrix. In every layer it also meets each of the 1,024 tokens
// twice: as query and key, and as attention weight and value.
static_assert(gpt2.macs() ==
              1024 * (12 * 12 * std::int64_t{768} * 768 + 50'257 * 768 + 12 * std::int64_t{1024} * 1536));
static_assert(models::gpt2_is_transposed("transformer.h.3.mlp.c_proj.weight"));
static_assert(!models::gpt2_is_transposed("transformer.h.3.mlp.c_proj.bias"));
static_assert(!models::gpt2_is_transposed("transformer.wte.weight"));

/// Whether weight decay applies to matrices and filters, and not to biases and norms.
constexpr bool decays_matrices_alone(const Plan& plan) {
  for (const auto& p : plan.parameter_list)
    if (p.group != (p.shape.rank > 1 ? Group::decay : Group::no_decay)) return false;
  return true;
}
static_assert(decays_matrices_alone(convnet));
static_assert(decays_matrices_alone(sst5));
static_assert(decays_matrices_alone(bert));
static_assert(decays_matrices_alone(gpt2));

/// The number of stages that consist of these operations in this order.
template <class... Ops>
constexpr int stages_of(const Plan& plan) {
  constexpr graph::Pattern wanted = graph::pattern<Ops...>;
  int count = 0;
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    bool same = plan.stage(s).count == wanted.length;
    for (int k = 0; same && k < wanted.length; ++k) same = plan.node(plan.member(s, k)).op == wanted.op[k];
    count += same;
  }
  return count;
}
template <class Op>
constexpr int behind_linear(const Plan& plan) {
  return stages_of<graph::Linear, Op>(plan);
}
static_assert(behind_linear<graph::Gelu>(sst5) == 6);
static_assert(behind_linear<graph::Gelu>(bert) == 13);
static_assert(behind_linear<graph::Gelu>(gpt2) == 12);
static_assert(stages_of<graph::MaxPool, graph::Relu>(convnet) == 2);

// The product that makes the logits is fused with their loss, unless the logits are an output too.
static_assert(behind_linear<graph::CrossEntropy>(sst5) == 0);
static_assert(behind_linear<graph::CrossEntropy>(bert) == 1);
static_assert(behind_linear<graph::CrossEntropy>(gpt2) == 1);
static_assert(behind_linear<graph::CrossEntropy>(plan_of<models::Gpt2<1, 8, 2, 6, 13, 7, 0, true>>) == 0);

// Every sublayer ends in a residual sum. In BERT only a norm reads it. In models with the norm before each
// sublayer, the norm and the next sum read it; only the last sum has the norm as its one reader.
constexpr int norms_of_sums(const Plan& plan) {
  return stages_of<graph::Dropout, graph::Add, graph::LayerNorm>(plan);
}
static_assert(norms_of_sums(bert) == 24);
static_assert(stages_of<graph::Dropout, graph::Add>(bert) == 0);
static_assert(stages_of<graph::LayerNorm>(bert) == 2);  // of the embeddings, and in the head for masked words
static_assert(stages_of<graph::Dropout>(bert) == 1 && stages_of<graph::Add>(bert) == 1);
static_assert(norms_of_sums(sst5) == 1 && stages_of<graph::Dropout, graph::Add>(sst5) == 11);
static_assert(stages_of<graph::LayerNorm>(sst5) == 12 && stages_of<graph::Add>(sst5) == 0);
static_assert(stages_of<graph::Dropout>(sst5) == 7);  // after the embeddings and after each GELU
static_assert(norms_of_sums(gpt2) == 1 && stages_of<graph::Dropout, graph::Add>(gpt2) == 23);
static_assert(stages_of<graph::LayerNorm>(gpt2) == 24 && stages_of<graph::Dropout>(gpt2) == 1);
static_assert(norms_of_sums(plan_of<models::Transformer<2, 8, 2, 8, 6, 9, 5, models::NormPlace::after>>) ==
              4);
// Without dropout.
constexpr const Plan& kept = plan_of<models::Gpt2<3, 8, 2, 6, 13, 7, 0>>;
static_assert(stages_of<graph::Add, graph::LayerNorm>(kept) == 1 && stages_of<graph::Add>(kept) == 5);
static_assert(stages_of<graph::Add, graph::LayerNorm>(plan_of<models::Bert<3, 8, 2, 8, 6, 9, 2, 6, 0>>) == 6);

}  // namespace

TEST_CASE("models: sizes that are known at run time make the same model") {
  const DynamicPlan dynamic([](graph::Builder& g) { models::define_bert(g, {.layers = 3}); });
  const Plan& plan = dynamic;
  const Plan& constant = plan_of<models::Bert<3, 768, 12, 3072, 128, 30'522, 20>>;
  CHECK(plan.fingerprint == constant.fingerprint);
  CHECK(plan.parameters() == constant.parameters());
}

TEST_CASE("models: a sequence that is longer than its table of positions is refused") {
  const auto define = [](graph::Builder& g) { models::define_gpt2(g, {.layers = 1, .length = 1025}); };
  CHECK_THROWS_WITH_AS(DynamicPlan{define},
                       "model: transformer.wpe has vectors for 1024 positions, not for those of [1025x768]",
                       ModelError);
}

TEST_CASE("models: Transformers of no layers are refused") {
  CHECK_THROWS_WITH_AS(DynamicPlan([](graph::Builder& g) { models::define_gpt2(g, {.layers = -1}); }),
                       "model: transformer.h has an extent that is not positive among [-1]", ModelError);
  CHECK_THROWS_WITH_AS(DynamicPlan([](graph::Builder& g) { models::define_bert(g, {.layers = 0}); }),
                       "model: bert.encoder.layer has an extent that is not positive among [0]", ModelError);
  const models::TransformerSizes sizes{
      .width = 8, .heads = 2, .ffn = 16, .length = 4, .vocabulary = 9, .classes = 3};
  CHECK_THROWS_WITH_AS(DynamicPlan([&](graph::Builder& g) { models::define_transformer(g, sizes); }),
                       "model: encoder.layers has an extent that is not positive among [0]", ModelError);
}
