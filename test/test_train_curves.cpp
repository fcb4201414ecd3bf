// NEEDS: host
// SANITIZE: none
// BERT and GPT-2 learn as Hugging Face's models do in PyTorch: the loss and the norm of the gradient at each
// of fifty steps from the same weights and batches, with weight decay, warm-up and clipping.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "fixtures/fixtures.hpp"
#include "model_fixtures.hpp"
#include <convoy/comm/policy/none.hpp>
#include <convoy/data/dataset.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/optim/adamw.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

namespace {

constexpr int rows_of_a_step = 4;

/// Relative to the expected value. PyTorch's values are in doubles; fifty steps in floats were seen to end
/// 6e-7 away.
constexpr double tolerance = 1e-5;

/// A model's rows in curves.txt, read in file order whatever the order of the epoch.
class Rows {
 public:
  Rows(const fixtures::File& file, const std::string& model) {
    for (const auto& name : file.names(model + "/field/")) {
      const fixtures::Tensor& tensor = file[concat(model, "/field/", name)];
      data::Field field{Name(name), DType::i32, {}};
      for (std::size_t i = 1; i < tensor.dims.size(); ++i)
        field.shape.extent[field.shape.rank++] = static_cast<int>(tensor.dims[i]);
      fields_.push_back(field);
      columns_.emplace_back(tensor.values.begin(), tensor.values.end());
      size_ = static_cast<std::size_t>(tensor.dims[0]);
    }
  }
  std::size_t size() const { return size_; }
  std::span<const data::Field> fields() const { return fields_; }
  void fill(const data::Rows& rows) const {
    for (std::size_t f = 0; f < fields_.size(); ++f) {
      const auto to = rows.column<i32>(f);
      const auto first =
          columns_[f].begin() + static_cast<std::ptrdiff_t>(fields_[f].elements()) * rows.position(0);
      std::copy(first, first + static_cast<std::ptrdiff_t>(to.size()), to.begin());
    }
  }

 private:
  std::vector<data::Field> fields_;
  std::vector<std::vector<i32>> columns_;
  std::size_t size_ = 0;
};

/// Names the first step whose loss or gradient norm is not PyTorch's; empty if there is none.
template <class Model, class Exec>
std::string curve_difference(const std::string& model,
                             model_fixtures::IsTransposed is_transposed = model_fixtures::never) {
  const fixtures::File file("curves.txt");
  const auto setting = [&](const char* name) {
    return static_cast<float>(file[concat(model, "/", name)].scalar());
  };
  const auto &losses = file[model + "/losses"].values, &norms = file[model + "/norms"].values;
  const auto steps = static_cast<std::int64_t>(losses.size());
  const Rows rows(file, model);
  Trainer<Model, optim::AdamW, comm::None, Exec> trainer{
      {.batch = rows_of_a_step,
       .optimizer = {.lr = setting("lr"), .weight_decay = setting("weight_decay")},
       .schedule = {.warmup = static_cast<std::int64_t>(setting("warmup")),
                    .decay = optim::Decay::linear,
                    .total = steps},
       .guard = {.max_norm = setting("max_norm")}}};
  for (std::size_t i = 0; i < trainer.plan.parameter_list.size(); ++i)
    trainer.exec().write_parameter(static_cast<int>(i),
                                   model_fixtures::first_values<float>(trainer.plan, i, is_transposed));
  std::string first;
  const auto compare = [&](const char* what, const train::StepReport& step, double value, double expected) {
    if (!(std::abs(value - expected) <= tolerance * expected) && first.empty())
      first = concat("the ", what, " of ", model, " at step ", step.step, " is ", value, ", not ", expected);
  };
  const auto report =
      trainer.fit(rows, {.epochs = static_cast<int>(losses.size()),
                         .steps = steps,
                         .on_step =
                             [&](const train::StepReport& step) {
                               const auto s = static_cast<std::size_t>(step.step);
                               compare("loss", step, step.loss, losses[s]);
                               compare("gradient's norm", step, *step.gradient_norm, norms[s]);
                               return train::Control::go_on;
                             },
                         .log = nullptr});
  return report.steps == steps ? first : concat(model, " made ", report.steps, " steps, not ", steps);
}

template <class Exec>
void check_curves() {
  CHECK(curve_difference<models::Bert<2, 32, 2, 64, 16, 30, 3, 16, 0>, Exec>("bert") == "");
  CHECK(curve_difference<models::Gpt2<2, 32, 2, 16, 29, 16, 0>, Exec>("gpt2", models::gpt2_is_transposed) ==
        "");
}

}  // namespace

TEST_CASE("the reference's loss curves are PyTorch's") { check_curves<exec::Reference<f32>>(); }

TEST_CASE("the host's loss curves are PyTorch's") { check_curves<exec::Host<f32>>(); }
