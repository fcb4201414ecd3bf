// SANITIZE: none
// Small models on the reference against PyTorch and Hugging Face's transformers: outputs, losses and every
// gradient; and the names, shapes and order of the parameters of large models.
#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "fixtures/fixtures.hpp"
#include "model_fixtures.hpp"
#include <convoy/exec/counts.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/convnet.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/mlp.hpp>
#include <convoy/models/transformer.hpp>

using namespace convoy;
using model_fixtures::IsTransposed;
using model_fixtures::never;
using model_fixtures::stored;

namespace {

/// A message about the first value of a training step that differs from PyTorch's; empty if there is none.
template <class T>
std::string step_difference(const Plan& plan, const std::string& model, double tolerance,
                            IsTransposed is_transposed = never) {
  const fixtures::File file("model_steps.txt");
  std::vector<std::vector<float>> numbers;
  std::vector<std::vector<i32>> integers;
  std::vector<const void*> fields;
  int rows = 0;
  for (const auto& node : plan.nodes) {
    if (!node.given) continue;
    const auto& field = file[concat(model, "/field/", node.name)];
    rows = static_cast<int>(field.dims[0]);
    if (node.dtype == DType::f32) {
      fields.push_back(numbers.emplace_back(field.floats()).data());
    } else {
      fields.push_back(integers.emplace_back(field.values.begin(), field.values.end()).data());
    }
  }
  const exec::BatchView batch{fields, rows};

  exec::Reference<T> e(plan, rows);
  for (std::size_t i = 0; i < plan.parameter_list.size(); ++i)
    e.write_parameter(static_cast<int>(i), model_fixtures::first_values<T>(plan, i, is_transposed));

  exec_compare::Differences found(tolerance);
  const exec::Result result = exec_compare::forward(e, batch);
  std::vector<double> counts(plan.losses.size());
  std::vector<float> scales;
  for (std::size_t l = 0; l < counts.size(); ++l) {
    counts[l] = std::max(0.0, exec::known_count(plan, l, rows));
  }
  exec::add_counts_by_value(plan, batch, counts);
  for (std::size_t l = 0; l < counts.size(); ++l) {
    const auto& name = plan.node(plan.losses[l].node).name;
    found.compare(concat(model, " ", name), result.losses[l] / counts[l],
                  file[concat(model, "/loss/", name)].scalar());
    scales.push_back(static_cast<float>(1 / counts[l]));
  }
  for (std::size_t k = 0; k < plan.outputs.size(); ++k)
    found.compare(concat(model, " ", plan.outputs[k].name), e.output(static_cast<int>(k)),
                  file[concat(model, "/output/", plan.outputs[k].name)].values, 1e-3);

  e.backward(scales, [](std::int64_t) {});
  for (int i = 0; i < static_cast<int>(plan.parameter_list.size()); ++i) {
    const auto& p = plan.parameter(i);
    auto gradient = exec_compare::gradient(e, plan, i);
    if (is_transposed(p.name)) gradient = model_fixtures::transposed(gradient, stored(p, is_transposed));
    double squares = 0;
    for (const double value : gradient) squares += value * value;
    std::vector<double> some{std::sqrt(squares)};
    for (std::size_t k = 0; k < gradient.size(); k += std::max<std::size_t>(1, gradient.size() / 256))
      some.push_back(gradient[k]);
    found.compare(concat("gradient of ", p.name, " of ", model), some,
                  file[concat(model, "/gradient/", p.name)].values, 1e-3);
  }
  if (file.names(model + "/gradient/").size() != plan.parameter_list.size())
    return concat(model, " has ", plan.parameter_list.size(), " parameters");
  return found.first();
}

/// A message about the first parameter whose name or shape differs from PyTorch's; empty if there is none.
std::string name_difference(const Plan& plan, const std::string& model, IsTransposed is_transposed = never) {
  const auto expected = fixtures::names_of("model_names.txt", model);
  if (expected.size() != plan.parameter_list.size())
    return concat(model, " has ", plan.parameter_list.size(), " parameters, not ", expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    Shape shape;
    for (const auto dim : expected[i].dims) shape.extent[shape.rank++] = static_cast<int>(dim);
    const auto& p = plan.parameter_list[i];
    if (is_transposed(p.name)) std::swap(shape.extent[0], shape.extent[1]);
    if (!(p.name == expected[i].name) || !(p.shape == shape))
      return concat(model, ": parameter ", i, " is ", p.name, " ", p.shape, ", not ", expected[i].name, " ",
                    shape);
  }
  return {};
}

}  // namespace

TEST_CASE("reference: steps of small models agree with PyTorch") {
  const auto check = [](const Plan& plan, const std::string& model, IsTransposed is_transposed = never) {
    CHECK(step_difference<double>(plan, model, 1e-6, is_transposed) == "");
    CHECK(step_difference<float>(plan, model, 1e-4, is_transposed) == "");
  };
  check(plan_of<models::Mlp<Image{1, 3, 4}, 4, 7, 5>>, "mlp");
  check(plan_of<models::ConvNet<Image{2, 8, 8}, 4>>, "convnet");
  check(plan_of<models::Transformer<2, 8, 2, 12, 6, 11, 5, models::NormPlace::before, 0>>, "transformer");
  check(plan_of<models::Transformer<2, 8, 2, 12, 6, 11, 5, models::NormPlace::after, 0>>,
        "transformer.after");
  check(plan_of<models::Bert<2, 8, 2, 12, 6, 13, 3, 7, 0, true>>, "bert");
  check(plan_of<models::Gpt2<2, 8, 2, 6, 13, 7, 0, true>>, "gpt2", models::gpt2_is_transposed);
}

TEST_CASE("graph: parameters of models have the names, shapes and order of PyTorch's") {
  CHECK(name_difference(plan_of<models::ConvNet<>>, "convnet") == "");
  CHECK(name_difference(plan_of<models::Transformer<6, 256, 4, 1024, 256, 18'280, 5>>, "transformer") == "");
  CHECK(name_difference(plan_of<models::BertBase<>>, "bert_base") == "");
  CHECK(name_difference(plan_of<models::Gpt2Small<>>, "gpt2", models::gpt2_is_transposed) == "");
}
