// Compares any Exec with PyTorch's values in test/fixtures: single operations with the gradients of their
// inputs, and the training step of ResNet-18.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "exec_compare.hpp"
#include "fixtures/fixtures.hpp"
#include <convoy/core/philox.hpp>
#include <convoy/exec/canonical.hpp>
#include <convoy/exec/counts.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/dynamic.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/any.hpp>
#include <convoy/optim/arena.hpp>
#include <convoy/optim/sgd.hpp>

namespace exec_fixtures {

using namespace convoy;

/// Passes its input on and keeps the gradient that comes back, so that a test sees the gradient of an input.
/// An Exec need not compute a gradient that reaches no parameter, so `probed` puts a layer with identity
/// weights before it.
template <int which>
struct Probe {
  static inline thread_local std::vector<double> gradient;
  static constexpr Shape shape(Shape x) { return x; }
  template <class T>
  static void forward(View<const T> x, View<T> y) {
    std::copy(x.begin(), x.end(), y.begin());
  }
  template <class T>
  static void backward(View<const T>, View<const T>, View<const T> dy, View<T> dx) {
    std::copy(dy.begin(), dy.end(), dx.begin());
    gradient.assign(dy.begin(), dy.end());
  }
};

/// The inner product of two rows. As a loss, its gradient with respect to the first row is the second row.
struct InnerProduct {
  template <class T>
  static void forward(View<const T> a, View<const T> b, View<T> y) {
    for (int r = 0; r < a.rows; ++r) {
      T sum = 0;
      for (std::size_t i = 0; i < a.row(r).size(); ++i) sum += a.row(r)[i] * b.row(r)[i];
      y[static_cast<std::size_t>(r)] = sum;
    }
  }
  template <class T>
  static void backward(View<const T> a, View<const T> b, View<const T>, View<const T> dy, View<T> da,
                       View<T> db) {
    const auto n = static_cast<std::size_t>(a.shape.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      da[i] = dy[i / n] * b[i];
      db[i] = dy[i / n] * a[i];
    }
  }
};

/// The shape of one row of a fixture's tensor.
inline Shape row_shape(const fixtures::Tensor& tensor) {
  Shape shape;
  for (std::size_t i = 1; i < tensor.dims.size(); ++i)
    shape.extent[shape.rank++] = static_cast<int>(tensor.dims[i]);
  return shape;
}

/// The input `name` followed by an identity layer and Probe<which>.
template <int which, class G>
graph::Tensor probed(G& g, std::string_view name, Shape shape) {
  auto x = g.input(name, shape);
  const auto identity = concat("identity", which);
  if (shape.rank == 3)
    x = g.conv2d(x, {.channels = shape[0], .kernel = 1, .name = identity});
  else
    x = g.linear(x, {.features = shape.last(), .bias = false, .name = identity});
  return g.custom(Probe<which>{}, x);
}
inline bool is_identity(const graph::Parameter& parameter) {
  return parameter.name.view().substr(0, 8) == "identity";
}

/// Builds the operation of a case in operations.txt. Its parameters are called `op.weight`, `op.bias`, or as
/// in the fixture (the residual block).
template <class G>
graph::Tensor build_operation(G& g, const fixtures::File& file, const std::string& name, graph::Tensor x,
                              graph::Tensor right) {
  const auto setting = [&](const char* key) { return static_cast<int>(file[name + "/" + key].scalar()); };
  const auto is = [&](std::string_view kind) { return name.substr(0, kind.size()) == kind; };
  const bool bias = file.has(name + "/bias");
  const auto real = [&](const char* key) { return static_cast<float>(file[name + "/" + key].scalar()); };
  if (is("conv2d"))
    return g.conv2d(x, {.channels = static_cast<int>(file[name + "/weight"].dims[0]),
                        .kernel = setting("kernel"),
                        .stride = setting("stride"),
                        .padding = setting("padding"),
                        .groups = file.has(name + "/groups") ? setting("groups") : 1,
                        .dilation = file.has(name + "/dilation") ? setting("dilation") : 1,
                        .bias = bias,
                        .name = "op"});
  if (is("batch_norm"))
    return g.batch_norm(x, {.epsilon = real("epsilon"), .momentum = real("momentum"), .name = "op"});
  const auto pool = [&] {
    return graph::PoolOptions{
        .kernel = setting("kernel"), .stride = setting("stride"), .padding = setting("padding")};
  };
  if (is("max_pool")) return g.max_pool(x, pool());
  if (is("avg_pool")) return g.avg_pool(x, pool());
  if (is("global_avg_pool")) return g.global_avg_pool(x);
  if (is("relu")) return g.relu(x);
  if (is("add")) return g.add(x, right);
  if (is("layer_norm")) return g.layer_norm(x, {.epsilon = real("epsilon"), .bias = bias, .name = "op"});
  if (is("gelu.erf")) return g.gelu(x);
  if (is("gelu.tanh")) return g.gelu(x, {.form = GeluForm::tanh});
  if (is("embedding")) {
    const auto& weight = file[name + "/weight"].dims;
    return g.embedding(
        x, {.entries = static_cast<int>(weight[0]), .features = static_cast<int>(weight[1]), .name = "op"});
  }
  if (is("position_embedding"))
    return g.position_embedding(
        x, {.positions = static_cast<int>(file[name + "/weight"].dims[0]), .name = "op"});
  if (is("gather"))
    return g.gather(x, g.input("positions", row_shape(file[name + "/positions"]), {.dtype = DType::i32}));
  if (is("select")) return g.select(x, 2);
  if (is("mean.lengths")) return g.mean(x, g.input("lengths", {}, {.dtype = DType::i32}));
  if (is("mean.all")) return g.mean(x);
  if (is("multiply")) return g.multiply(x, right);
  if (is("sigmoid")) return g.sigmoid(x);
  if (is("tanh")) return g.tanh(x);
  if (is("concat")) return g.concat({x, right});
  if (is("attention")) {
    const graph::AttentionOptions options{.heads = setting("heads"), .causal = setting("causal") != 0};
    const bool pair = is("attention.pair");
    if (!file.has(name + "/lengths"))
      return pair ? g.attention(x, right, right, options) : g.attention(x, options);
    const auto lengths = g.input("lengths", {}, {.dtype = DType::i32});
    return pair ? g.attention(x, right, right, lengths, options) : g.attention(x, lengths, options);
  }
  if (is("mse_loss")) return g.mse_loss(x, right);
  if (is("bce_with_logits")) return g.bce_with_logits(x, right);
  if (is("cross_entropy")) {
    const auto label = g.label("label", x.shape.last(), {.ignore = -100});
    return g.cross_entropy(x, label, {.smoothing = file.has(name + "/smoothing") ? real("smoothing") : 0});
  }
  if (is("linear"))
    return g.linear(
        x, {.features = static_cast<int>(file[name + "/weight"].dims[0]), .bias = bias, .name = "op"});
  if (is("residual_block")) {
    auto y = g.conv2d(x, {.channels = 6, .stride = 2, .name = "conv1"});
    y = g.relu(g.batch_norm(y, {.name = "bn1"}));
    y = g.batch_norm(g.conv2d(y, {.channels = 6, .name = "conv2"}), {.name = "bn2"});
    x = g.conv2d(x, {.channels = 6, .kernel = 1, .stride = 2, .name = "downsample.0"});
    return g.relu(g.add(y, g.batch_norm(x, {.name = "downsample.1"})));
  }
  throw std::runtime_error("no operation for the fixture " + name);
}

/// A message about the first value of a case in which `E` differs from PyTorch; empty if there is none.
template <class E>
std::string operation_difference(const fixtures::File& file, const std::string& name, double tolerance) {
  using T = typename E::Scalar;
  const bool label = file.has(name + "/label"), pair = file.has(name + "/left"),
             ids = file.has(name + "/ids"), lengths = file.has(name + "/lengths"),
             positions = file.has(name + "/positions");
  const bool loss = file[name + "/output"].dims.empty();
  const std::string input_key = name + (pair ? "/left" : ids ? "/ids" : "/input");
  const fixtures::Tensor& input = file[input_key];
  const int rows = static_cast<int>(input.dims[0]);
  const DynamicPlan dynamic([&](auto& g) {
    auto x = ids ? g.input("input", row_shape(input), {.dtype = DType::i32})
                 : probed<0>(g, "input", row_shape(input));
    auto right = x;
    if (pair) right = probed<1>(g, "right", row_shape(file[name + "/right"]));
    x = build_operation(g, file, name, x, right);
    g.output("output", x);
    if (loss)
      g.loss(x);
    else
      g.loss(
          g.custom_loss(InnerProduct{}, x, g.input("output_grad", row_shape(file[name + "/output_grad"]))));
  });
  const Plan& plan = dynamic;
  E e(plan, rows);

  const auto fixture_name = [&](std::string_view parameter) {
    return name + "/" + std::string(parameter.substr(0, 3) == "op." ? parameter.substr(3) : parameter);
  };
  for (std::size_t i = 0; i < plan.parameter_list.size(); ++i) {
    const auto& parameter = plan.parameter_list[i];
    if (is_identity(parameter)) {
      const auto size = static_cast<std::size_t>(parameter.shape[0]);
      std::vector<T> ones(size * size);
      for (std::size_t k = 0; k < size; ++k) ones[k * size + k] = 1;
      e.write_parameter(static_cast<int>(i), ones);
      continue;
    }
    const auto& values = file[fixture_name(parameter.name)].values;
    e.write_parameter(static_cast<int>(i), std::vector<T>(values.begin(), values.end()));
  }
  const auto ranges = exec::statistic_ranges(plan);
  const bool statistics = file.has(name + "/running_mean");
  for (std::size_t i = 0; i < ranges.size(); ++i)
    for (auto k = ranges[i].begin; k < ranges[i].end; ++k) {
      T& value = e.statistics()[static_cast<std::size_t>(k)];
      value = static_cast<T>(plan.statistic_list[i].start);
      if (statistics)
        value = static_cast<T>(file[name + (i == 0 ? "/running_mean" : "/running_var")]
                                   .values[static_cast<std::size_t>(k - ranges[i].begin)]);
    }

  std::vector<std::vector<float>> values;
  std::vector<i32> integers;
  std::vector<const void*> fields;
  if (label || ids || lengths || positions)
    for (const double value : file[name + (label     ? "/label"
                                           : ids     ? "/ids"
                                           : lengths ? "/lengths"
                                                     : "/positions")]
                                  .values)
      integers.push_back(static_cast<i32>(value));
  if (!ids) values.push_back(input.floats());
  if (pair) values.push_back(file[name + "/right"].floats());
  if (!loss) values.push_back(file[name + "/output_grad"].floats());
  if (ids) fields.push_back(integers.data());
  for (const auto& field : values) fields.push_back(field.data());
  if (label) fields.push_back(integers.data());
  if (lengths || positions) fields.insert(fields.end() - 1, integers.data());  // before the incoming gradient

  exec_compare::Differences found(tolerance);
  const bool training = name.find("evaluation") == std::string::npos;
  const exec::Result result =
      exec_compare::forward(e, {fields, rows}, training ? exec::Mode::train : exec::Mode::evaluate);
  // The fixtures hold gradients of the mean over the rows, or over the labels that count. 1 / count may not
  // be exact in a float, and loss scales are floats.
  double count = exec::known_count(plan, 0, rows);
  if (count < 0) {
    count = 0;
    exec::add_counts_by_value(plan, {fields, rows}, {&count, 1});
  }
  const double mean = loss ? 1.0 / count : 1.0;
  const auto scaled = [&](std::vector<double> gradient) {
    for (double& value : gradient) value *= mean;
    return gradient;
  };
  if (loss)
    found.compare(name + " loss", result.loss() * mean, file[name + "/output"].scalar());
  else
    found.compare(name + " output", e.output(0), file[name + "/output"].values, 1e-3);
  if (!training) return found.first();
  if (file.has(name + "/running_mean_after"))
    for (std::size_t i = 0; i < 2; ++i)
      found.compare(name + (i == 0 ? " running_mean" : " running_var"),
                    e.statistics().subspan(static_cast<std::size_t>(ranges[i].begin),
                                           static_cast<std::size_t>(ranges[i].size())),
                    file[name + (i == 0 ? "/running_mean_after" : "/running_var_after")].values, 1e-3);
  exec_compare::backward(e, plan);
  if (!ids)
    found.compare(name + " gradient of the input", scaled(Probe<0>::gradient),
                  file[input_key + "_grad"].values, 1e-3);
  if (pair)
    found.compare(name + " gradient of the right", scaled(Probe<1>::gradient),
                  file[name + "/right_grad"].values, 1e-3);
  for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p) {
    const auto& parameter = plan.parameter_list[static_cast<std::size_t>(p)];
    if (is_identity(parameter)) continue;
    const std::string key = fixture_name(parameter.name);
    found.compare(key + " gradient", scaled(exec_compare::gradient(e, plan, p)), file[key + "_grad"].values,
                  1e-3);
  }
  return found.first();
}

// ---- ResNet-18
// ---------------------------------------------------------------------------------------------------------

/// The step's batch in the form that an Exec takes.
struct ResNetBatch {
  std::vector<float> images = fixtures::resnet18_step::images();
  std::vector<i32> labels;
  std::vector<const void*> fields;

  ResNetBatch() {
    for (const int label : fixtures::resnet18_step::labels()) labels.push_back(label);
    fields = {images.data(), labels.data()};
  }
  operator exec::BatchView() const { return {fields, fixtures::resnet18_step::batch}; }
};

inline const Plan& resnet18() { return plan_of<models::ResNet18<Image{1, 28, 28}, 10>>; }

/// Sets an exec's parameters by the step's formula.
template <class E>
void write_resnet18(E& e) {
  using T = typename E::Scalar;
  const Plan& plan = resnet18();
  for (std::size_t i = 0; i < plan.parameter_list.size(); ++i) {
    const auto& p = plan.parameter_list[i];
    std::vector<std::int64_t> dims(p.shape.extent, p.shape.extent + p.shape.rank);
    const auto values = fixtures::resnet18_step::parameter(i, p.name.view(), dims);
    e.write_parameter(static_cast<int>(i), std::vector<T>(values.begin(), values.end()));
  }
  const auto ranges = exec::statistic_ranges(plan);
  for (std::size_t i = 0; i < ranges.size(); ++i)
    for (auto k = ranges[i].begin; k < ranges[i].end; ++k)
      e.statistics()[static_cast<std::size_t>(k)] = static_cast<T>(plan.statistic_list[i].start);
}

/// Compares the first training step: loss, logits, every gradient (sum, norm, four elements), every running
/// statistic. `slack` is a further tolerance in units of the error of PyTorch's own float32 on that gradient.
template <class E>
std::string resnet18_difference(double tolerance, double slack) {
  const fixtures::File file("resnet18_step.txt");
  const Plan& plan = resnet18();
  E e(plan, fixtures::resnet18_step::batch);
  write_resnet18(e);
  const ResNetBatch batch;
  const int rows = fixtures::resnet18_step::batch;
  exec_compare::Differences found(tolerance);
  const exec::Result result = exec_compare::forward(e, batch);
  found.compare("loss", result.loss() / rows, file["step/loss"].scalar());
  found.compare("logits", e.output(0), file["step/logits"].values, 1.0);
  exec_compare::backward(e, plan);
  for (int p = 0; p < static_cast<int>(plan.parameter_list.size()); ++p) {
    const std::string name(plan.parameter_list[static_cast<std::size_t>(p)].name.view());
    const auto& expected = file["parameter/" + name].values;
    auto gradient = exec_compare::gradient(e, plan, p);
    for (double& value : gradient) value /= rows;
    double sum = 0, squares = 0;
    for (const double value : gradient) {
      sum += value;
      squares += value * value;
    }
    const double norm = expected[2], lost = slack * expected[7], most = slack * expected[8];
    const auto near = [&](const char* what, double given, double wanted, double room) {
      found.within(concat(what, " of the gradient of ", name), given, wanted, tolerance * norm + room);
    };
    // If the errors of n elements have the norm `lost`, their sum is off by at most sqrt(n) * lost.
    near("the sum", sum, expected[1],
         std::sqrt(static_cast<double>(gradient.size())) * (tolerance * norm + lost));
    near("the norm", std::sqrt(squares), norm, lost);
    for (std::size_t k = 0; k < 4; ++k)
      near("an element", gradient[static_cast<std::size_t>(file["position/" + name].values[k])],
           expected[3 + k], most);
  }
  const auto ranges = exec::statistic_ranges(plan);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::string_view name = plan.statistic_list[i].name;
    const auto dot = name.rfind('.');
    const auto& expected = file[concat(name.substr(dot + 1), '/', name.substr(0, dot))].values;
    double sum = 0, squares = 0;
    for (auto k = ranges[i].begin; k < ranges[i].end; ++k) {
      const auto value = static_cast<double>(e.statistics()[static_cast<std::size_t>(k)]);
      sum += value;
      squares += value * value;
    }
    const double given[] = {sum, std::sqrt(squares),
                            static_cast<double>(e.statistics()[static_cast<std::size_t>(ranges[i].begin)])};
    found.compare(std::string(name), given, expected, 1e-3);
  }
  return found.first();
}

/// The losses before each of ten updates by an optimizer over the whole exchanged arena.
template <class E>
std::vector<double> ten_losses(const optim::Any::Options& options) {
  static_assert(std::is_same_v<typename E::Scalar, float>);
  E e(resnet18(), fixtures::resnet18_step::batch);
  write_resnet18(e);
  const ResNetBatch batch;
  const int rows = fixtures::resnet18_step::batch;
  const Range all{0, resnet18().sizes.exchanged};
  const optim::ArenaTensor tensor{all, {}, 0};
  const optim::Group group;
  memory::Host space;
  optim::Arena<optim::Any> optimizer(space, options, {&tensor, 1}, {&group, 1});
  optimizer.own({&all, 1});
  std::vector<double> result;
  for (int step = 1; step <= 10; ++step) {
    result.push_back(exec_compare::forward(e, batch).loss() / rows);
    exec_compare::backward(e, resnet18(), 1.0f / static_cast<float>(rows));
    optimizer.begin(step, optimizer.optimizer().facts().lr);
    optimizer.update(all, 1.0f, e.parameters().data(), e.gradients().data());
  }
  return result;
}

/// Compares ten losses under Adam and under SGD with PyTorch's in float64. Each may be off by `slack` times
/// the spread of PyTorch's own float32 runs (plain, channels_last, without oneDNN), which differ because
/// rounding errors grow from step to step.
template <class E>
std::string ten_losses_difference(double slack) {
  const fixtures::File file("resnet18_step.txt");
  const auto check = [&](const std::string& name, const optim::Any::Options& options) -> std::string {
    const auto given = ten_losses<E>(options);
    const auto &exact = file[name + "/losses"].values, &rounded = file[name + "/losses_float32"].values;
    for (std::size_t i = 0; i < 10; ++i) {
      double spread = 0;  // relative to the loss; the maximum over the runs and the steps so far
      for (std::size_t j = 0; j <= i; ++j)
        for (std::size_t run = 0; run < 3; ++run)
          spread = std::max(spread, std::abs(rounded[run * 10 + j] - exact[j]) / exact[j]);
      if (!(std::abs(given[i] - exact[i]) <= slack * spread * exact[i]))
        return concat(name, ": loss ", i, " is ", given[i], ", not ", exact[i], " within ", slack * spread);
    }
    return {};
  };
  optim::Adam::Options adam;
  adam.lr = 1e-3f;
  optim::Sgd::Options sgd;
  sgd.lr = 0.01f;
  sgd.momentum = 0.9f;
  sgd.weight_decay = 1e-4f;
  std::string found = check("adam", adam);
  return found.empty() ? check("sgd", sgd) : found;
}

}  // namespace exec_fixtures
