// Guarantees of every Exec other than its numbers: order of final gradients, frozen parameters, dead taps,
// ragged batches, running statistics, errors as sentences.
#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include "exec_random_models.hpp"
#include "exec_throw.hpp"
#include "near.hpp"
#include <convoy/exec/counts.hpp>

using namespace convoy;
using exec_compare::Batch;

namespace {

using Reference = exec::Reference<double>;

/// The message of the exception that `call` throws; empty if none.
template <class Call>
std::string sentence(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

/// A network in which a 3x3 convolution works on a 1x1 map and one layer is frozen.
DynamicPlan small() {
  return DynamicPlan([](auto& g) {
    auto x = g.input("image", {2, 3, 3});
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 4, .stride = 3, .name = "conv1"}), {.name = "bn1"}),
               {.name = "relu"});
    x = g.relu(g.conv2d(x, {.channels = 5, .bias = true, .name = "conv2"}), {.name = "relu2"});
    x = g.linear(g.flatten(x), {.features = 6, .frozen = true, .name = "fixed"});
    x = g.linear(x, {.features = 3, .name = "fc"});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", 3), {.name = "loss"}));
  });
}

using exec_compare::parameter_named;

std::vector<double> read(Reference& e, const Plan& plan, int p) {
  std::vector<double> values(
      static_cast<std::size_t>(plan.parameter_list[static_cast<std::size_t>(p)].shape.size()));
  e.read_parameter(p, values);
  return values;
}

}  // namespace

TEST_CASE("reference: in float it agrees with itself in double over random models") {
  for (std::uint64_t seed = 1000; seed < 1150; ++seed) {
    const exec_compare::Model model{seed};
    INFO(model.text());
    CHECK(exec_compare::difference<exec::Reference<float>>(model.plan(), {.seed = seed}) == "");
  }
}

TEST_CASE("reference: parameters survive writing and reading, dead taps included") {
  const DynamicPlan plan = small();
  Reference e(plan, 2);
  std::vector<std::vector<double>> written;
  Philox random{5};
  for (int p = 0; p < static_cast<int>(plan.plan().parameter_list.size()); ++p) {
    auto values = read(e, plan, p);
    for (double& value : values) value = random.uniform(-1, 1);
    e.write_parameter(p, values);
    written.push_back(values);
  }
  for (int p = 0; p < static_cast<int>(written.size()); ++p)
    CHECK(read(e, plan, p) == written[static_cast<std::size_t>(p)]);

  // Of conv2's nine taps only the middle one is live: the live slot holds its weights in order.
  const int p = parameter_named(plan, "conv2.weight");
  const auto& slot = plan.plan().slots[static_cast<std::size_t>(p)];
  REQUIRE(slot.live.size() == 5 * 4);
  REQUIRE(slot.dead.size() == 5 * 4 * 8);
  const auto& values = written[static_cast<std::size_t>(p)];
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(e.parameters()[static_cast<std::size_t>(slot.live.begin) + i] == values[i * 9 + 4]);
    for (std::size_t k = 0; k < 8; ++k)
      CHECK(e.parameters()[static_cast<std::size_t>(slot.dead.begin) + i * 8 + k] ==
            values[i * 9 + k + (k >= 4)]);
  }
}

TEST_CASE("reference: gradients become final bucket by bucket, frozen and dead ones are nowhere") {
  const DynamicPlan plan = small();
  Reference e(plan, 3);
  exec_compare::randomize(e, plan, Philox{6});
  const Batch batch(plan, 3, Philox{7});
  e.forward(batch, {});
  std::vector<std::int64_t> finals;
  std::vector<double> then;  // each part of the arena when it became final
  exec_compare::backward(e, plan, 1.0f, [&](std::int64_t n) {
    finals.push_back(n);
    then.insert(then.end(), e.gradients().begin() + static_cast<std::ptrdiff_t>(then.size()),
                e.gradients().begin() + n);
  });
  CHECK(finals.size() == 3);  // fc, conv2, conv1 with bn1; the frozen layer has none
  CHECK(finals.back() == plan.plan().sizes.exchanged);
  CHECK(then == std::vector<double>(e.gradients().begin(), e.gradients().end()));
  for (double value : exec_compare::gradient(e, plan, parameter_named(plan, "fixed.weight")))
    CHECK(value == 0);
  double beyond = 0;  // the layers below a frozen one still learn
  for (double value : exec_compare::gradient(e, plan, parameter_named(plan, "conv1.weight")))
    beyond += std::abs(value);
  CHECK(beyond > 0);

  const std::vector<double> once(e.gradients().begin(), e.gradients().end());
  exec_compare::backward(e, plan, 2.0f);
  for (std::size_t i = 0; i < once.size(); ++i) CHECK(e.gradients()[i] == doctest::Approx(2 * once[i]));
}

TEST_CASE("reference: a shared parameter's gradient is the sum of its uses', final after the last of them") {
  // The same model twice: with one weight shared by two layers, and with two equal weights.
  const auto define = [](auto& g, bool shared) {
    auto x = g.input("tokens", {5, 6});
    auto first = g.parameter("first", {6, 6});
    auto second = shared ? first : g.parameter("second", {6, 6});
    x = g.custom(exec_compare::Swish{}, g.linear(x, first, {.bias = false, .name = "in"}));
    x = g.linear(x, {.features = 6, .name = "between"});
    x = g.linear(x, second, {.bias = false, .name = "out"});
    g.loss(g.cross_entropy(x, g.label("label", 6, {.positions = 5})));
  };
  const DynamicPlan one([&](auto&g) { define(g, true); }), two([&](auto&g) { define(g, false); });
  Reference shared(one, 3), apart(two, 3);
  const auto fill = [&](Reference& e, const Plan& plan, std::string_view name, std::uint64_t seed) {
    auto values = read(e, plan, parameter_named(plan, name));
    Philox random{seed};
    for (double& value : values) value = random.uniform(-1, 1);
    e.write_parameter(parameter_named(plan, name), values);
  };
  for (const auto name : {"first", "between.weight", "between.bias"}) {
    fill(shared, one, name, std::string_view(name).size());
    fill(apart, two, name, std::string_view(name).size());
  }
  fill(apart, two, "second", 5);  // as "first"
  const Batch batch(one, 3, Philox{4});
  CHECK(exec_compare::forward(shared, batch).loss() == exec_compare::forward(apart, batch).loss());
  exec_compare::backward(apart, two);
  std::vector<std::int64_t> finals;
  exec_compare::backward(shared, one, 1.0f, [&](std::int64_t n) { finals.push_back(n); });
  const auto sum = exec_compare::gradient(shared, one, parameter_named(one, "first"));
  const auto first = exec_compare::gradient(apart, two, parameter_named(two, "first"));
  const auto second = exec_compare::gradient(apart, two, parameter_named(two, "second"));
  for (std::size_t i = 0; i < sum.size(); ++i) CHECK(sum[i] == doctest::Approx(first[i] + second[i]));
  // Before backward reaches "in", nothing of the shared weight is final.
  const std::int64_t begin = one.plan().slot(parameter_named(one, "first")).live.begin;
  CHECK(finals == std::vector<std::int64_t>{begin, one.plan().sizes.exchanged});
}

TEST_CASE("reference: linear layers side by side are layers of their own") {
  for (const int features : {16, 5})
    for (const bool bias : {true, false})
      for (const bool frozen : {false, true}) {
        CAPTURE(features);
        CAPTURE(bias);
        CAPTURE(frozen);
        const auto define = [&](auto& g, bool together) {
          const auto x = g.linear(g.input("tokens", {5, 6}), {.features = 7, .name = "in"});
          graph::LinearOptions o{.features = features, .bias = bias, .frozen = frozen, .name = "both"};
          graph::Tensor y;
          if (together) {
            y = g.linears(x, {"query", "key"}, o);
          } else {
            o.name = "query";
            const auto query = g.linear(x, o);
            o.name = "key";
            y = g.concat({query, g.linear(x, o)}, {"both"});
          }
          g.loss(g.cross_entropy(y, g.label("label", 2 * features, {.positions = 5})));
        };
        const DynamicPlan one([&](auto&g) { define(g, true); }), two([&](auto&g) { define(g, false); });
        REQUIRE(one.plan().parameter_list.size() == two.plan().parameter_list.size());
        CHECK((one.plan().find("query") < 0) == (features == 16));
        CHECK(one.plan().find("both") >= 0);
        Reference together(one, 3), apart(two, 3);
        exec_compare::randomize(together, one, Philox{1});
        exec_compare::randomize(apart, two, Philox{1});
        const Batch batch(one, 3, Philox{4});
        CHECK(exec_compare::forward(together, batch).loss() ==
              doctest::Approx(exec_compare::forward(apart, batch).loss()).epsilon(1e-12));
        exec_compare::backward(together, one);
        exec_compare::backward(apart, two);
        for (int p = 0; p < static_cast<int>(one.plan().parameter_list.size()); ++p) {
          const std::string name(one.plan().parameter(p).name.view());
          CAPTURE(name);
          CHECK(one.plan().parameter(p).name == two.plan().parameter(p).name);
          CHECK(one.plan().trained(p) == two.plan().trained(p));
          const auto got = exec_compare::gradient(together, one, p),
                     want = exec_compare::gradient(apart, two, p);
          for (std::size_t i = 0; i < want.size(); ++i)
            CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-12));
        }
      }
}

TEST_CASE("reference: each loss has a scale and a sum of its own") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.linear(g.input("row", {4}), {.features = 3, .name = "fc"});
    g.loss(g.cross_entropy(x, g.label("label", 3)));
    g.loss(g.custom_loss(exec_compare::Energy{}, x));
  });
  Reference e(plan, 2);
  exec_compare::randomize(e, plan, Philox{1});
  const Batch batch(plan, 2, Philox{2});
  const exec::Result result = exec_compare::forward(e, batch);
  REQUIRE(result.losses.size() == 2);
  CHECK(result.loss() == result.losses[0] + result.losses[1]);
  const auto gradient = [&](float a, float b) {
    const float scales[] = {a, b};
    e.backward(scales, [](std::int64_t) {});
    return exec_compare::gradient(e, plan, 0);
  };
  const auto first = gradient(1, 0), second = gradient(0, 1), mixed = gradient(2, -3);
  for (std::size_t i = 0; i < mixed.size(); ++i)
    CHECK(mixed[i] == doctest::Approx(2 * first[i] - 3 * second[i]));
  const float one[] = {1};
  CHECK(sentence([&] { e.backward(one, [](std::int64_t) {}); }) == "exec: 1 scales for 2 losses");
}

TEST_CASE("reference: results come in the order of the passes, each once") {
  const DynamicPlan plan = small();
  Reference e(plan, 2);
  exec_compare::randomize(e, plan, Philox{1});
  const Batch one(plan, 2, Philox{2}), other(plan, 2, Philox{3});
  e.forward(one, {.mode = exec::Mode::evaluate});
  const double of_one = e.result().loss();
  e.forward(other, {.mode = exec::Mode::evaluate});
  const double of_other = e.result().loss();
  CHECK(of_one != of_other);
  e.forward(one, {.mode = exec::Mode::evaluate});
  e.forward(other, {.mode = exec::Mode::evaluate});
  CHECK(e.result().loss() == of_one);
  CHECK(e.result().loss() == of_other);
  CHECK(sentence([&] { e.result(); }) == "exec: a result was asked for before a forward pass");
}

TEST_CASE("reference: bytes are computed with as scale times byte plus offset") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.input("bytes", {2}, {.dtype = DType::u8, .scale = 0.5f, .offset = -3});
    g.output("numbers", g.flatten(x));
    g.loss(g.cross_entropy(x, g.label("label", 2)));
  });
  Reference e(plan, 2);
  const u8 bytes[] = {0, 1, 128, 255};
  const i32 labels[] = {0, 1};
  const void* const fields[] = {bytes, labels};
  exec_compare::forward(e, {fields, 2});
  const double expected[] = {-3, -2.5, 61, 124.5};
  for (std::size_t i = 0; i < 4; ++i) CHECK(e.output(0)[i] == expected[i]);
}

TEST_CASE("reference: evaluation does not depend on the batch and moves nothing") {
  const DynamicPlan plan = small();
  Reference e(plan, 4);
  exec_compare::randomize(e, plan, Philox{8});
  const Batch batch(plan, 4, Philox{9});
  const std::vector<double> statistics(e.statistics().begin(), e.statistics().end());
  e.forward(batch, {.mode = exec::Mode::evaluate});
  CHECK(statistics == std::vector<double>(e.statistics().begin(), e.statistics().end()));
  const std::vector<double> logits(e.output(0).begin(), e.output(0).end());
  const exec::BatchView one{batch.view().fields, 1};
  e.forward(one, {.mode = exec::Mode::evaluate});
  CHECK(e.output(0).size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(e.output(0)[i] == logits[i]);
  e.forward(batch, {});
  CHECK(statistics != std::vector<double>(e.statistics().begin(), e.statistics().end()));
}

TEST_CASE("reference: a single value a channel normalizes to the bias and leaves the running variance") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.batch_norm(g.input("image", {2, 1, 1}), {.name = "bn"});
    g.output("y", x);
    g.loss(g.cross_entropy(g.flatten(x), g.label("label", 2)));
  });
  Reference e(plan, 1);
  exec_compare::randomize(e, plan, Philox{10});
  const double variance = e.statistics()[16], mean = e.statistics()[0];
  e.forward(Batch(plan, 1, Philox{11}), {});
  std::vector<double> bias(2);
  e.read_parameter(1, bias);
  CHECK(e.output(0)[0] == bias[0]);
  CHECK(e.output(0)[1] == bias[1]);
  CHECK(e.statistics()[16] == variance);
  CHECK(e.statistics()[0] != mean);
}

TEST_CASE("reference: a pass in which a user's operation throws has no result, no output and no backward") {
  exec_compare::check_after_a_throw<Reference>();
}

TEST_CASE("reference: a class whose logit is minus infinity adds nothing to the loss of another label") {
  const DynamicPlan plan([](auto& g) {
    const auto x = g.input("scores", {3});
    g.loss(g.cross_entropy(x, g.label("label", 3)));
  });
  Reference e(plan, 1);
  const float scores[] = {1, -std::numeric_limits<float>::infinity(), 0};
  const i32 label[] = {0};
  const void* const fields[] = {scores, label};
  CHECK(exec_compare::forward(e, {fields, 1}).loss() == doctest::Approx(std::log1p(std::exp(-1.0))));
}

TEST_CASE("reference: counts what is right, sums losses and metrics over the rows") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.input("scores", {3});
    auto label = g.label("label", 3);
    g.metric("distance", exec_compare::Distance{}, x, label);
    g.output("scores", x);
    g.loss(g.cross_entropy(x, label));
    g.loss(g.custom_loss(exec_compare::Energy{}, x));
  });
  Reference e(plan, 4);
  const std::vector<float> scores = {1, 2, 3, /**/ 5, 5, 0, /**/ 0, 1, 0, /**/ -1, -2, -3};
  const std::vector<i32> labels = {2, 0, 2, 1};
  const void* const fields[] = {scores.data(), labels.data()};
  const exec::Result result = exec_compare::forward(e, {fields, 4});
  CHECK(result.correct == 2);  // of equal scores the first one counts
  double loss = 0, distance = 0;
  for (std::size_t r = 0; r < 4; ++r) {
    double sum = 0, squares = 0, mean = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      const double x = static_cast<double>(scores[3 * r + k]);
      sum += std::exp(x);
      squares += x * x;
      mean += x / 3;
    }
    loss += std::log(sum) - static_cast<double>(scores[3 * r + static_cast<std::size_t>(labels[r])]) +
            squares / 6;
    distance += std::abs(mean - labels[r]);
  }
  CHECK(result.loss() == doctest::Approx(loss));
  CHECK(result.metrics[0] == doctest::Approx(distance));
}

TEST_CASE("initialize: follows the seed, the kinds of the parameters and their canonical order") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.relu(
        g.batch_norm(g.conv2d(g.input("image", {8, 2, 2}), {.channels = 64, .bias = true, .name = "conv"}),
                     {.name = "bn"}));
    x = g.flatten(x);
    const auto tied = g.parameter("tied", {40, 256},
                                  {.init = graph::Init::xavier_uniform, .fan_in = 256, .fan_out = 3 * 40});
    x = g.add(x, g.linear(g.tanh(g.linear(x, tied)), {.features = 256, .deviation = 0.02f, .name = "small"}));
    const auto ids = g.input("ids", {2}, {.dtype = DType::i32});
    const auto words = g.embedding(ids, {.entries = 90, .features = 16, .name = "words"});
    g.loss(g.mse_loss(g.position_embedding(words, {.positions = 90, .deviation = 0.5f, .name = "places"}),
                      g.input("target", {2, 16})));
    g.loss(g.cross_entropy(g.linear(x, {.features = 50, .name = "fc"}), g.label("label", 50)));
  });
  exec::Reference<float> a(plan, 1), b(plan, 1), other(plan, 1);
  exec::Reference<double> wide(plan, 1);
  exec::initialize(a, plan, 3);
  exec::initialize(b, plan, 3);
  exec::initialize(wide, plan, 3);
  exec::initialize(other, plan, 4);
  CHECK(std::equal(a.parameters().begin(), a.parameters().end(), b.parameters().begin()));
  CHECK(std::equal(a.parameters().begin(), a.parameters().end(), wide.parameters().begin()));
  CHECK(!std::equal(a.parameters().begin(), a.parameters().end(), other.parameters().begin()));

  const auto moments = [&](std::string_view name) {
    struct {
      double mean = 0, deviation = 0, largest = 0;
    } m;
    const auto values = read(wide, plan, parameter_named(plan, name));
    const auto n = static_cast<double>(values.size());
    for (const double value : values) {
      m.mean += value / n;
      m.deviation += value * value / n;
      m.largest = std::max(m.largest, std::abs(value));
    }
    m.deviation = std::sqrt(m.deviation);
    return m;
  };
  const auto conv = moments("conv.weight"), fc = moments("fc.weight"), conv_bias = moments("conv.bias");
  CHECK(conv.deviation == test::near(std::sqrt(2.0 / (64 * 9)), 0.05));
  CHECK(std::abs(conv.mean) < 0.1 * conv.deviation);
  CHECK(conv.largest > 3 * conv.deviation);
  CHECK(fc.largest <= 1 / std::sqrt(256.0));
  CHECK(fc.deviation == test::near(1 / std::sqrt(3 * 256.0), 0.05));
  CHECK(conv_bias.largest <= 1 / std::sqrt(72.0));
  const auto tied = moments("tied"), few = moments("small.weight");
  CHECK(tied.largest <= std::sqrt(6.0 / (256 + 120)));
  CHECK(tied.deviation == test::near(std::sqrt(2.0 / (256 + 120)), 0.05));
  CHECK(few.deviation == test::near(0.02, 0.05));
  CHECK(few.largest > 3 * few.deviation);
  CHECK(moments("small.bias").largest == 0);
  CHECK(moments("words.weight").deviation == test::near(1, 0.05));
  CHECK(moments("places.weight").deviation == test::near(0.5, 0.05));
  CHECK(moments("bn.weight").mean == doctest::Approx(1));
  CHECK(moments("bn.bias").largest == 0);
  for (std::size_t i = 0; i < 64; ++i) {
    CHECK(a.statistics()[i] == 0);
    CHECK(a.statistics()[64 + i] == 1);
  }
}

TEST_CASE("reference: what cannot work is refused in a sentence") {
  const DynamicPlan plan = small();
  CHECK(sentence([&] { Reference e(plan, 0); }) == "exec: the batch must have at least one row, not 0");
  Reference e(plan, 2);
  CHECK(sentence([&] { exec_compare::backward(e, plan); }) ==
        "exec: backward needs a forward pass in Mode::train before it");
  const Batch batch(plan, 2, Philox{1});
  e.forward(batch, {.mode = exec::Mode::evaluate});
  CHECK(sentence([&] { exec_compare::backward(e, plan); }) ==
        "exec: backward needs a forward pass in Mode::train before it");
  CHECK(sentence([&] {
          e.forward({batch.view().fields, 3}, {});
        }) == "exec: a batch of 3 rows was given to an exec prepared for 1 to 2");
  CHECK(sentence([&] {
          e.forward({batch.view().fields, 0}, {});
        }) == "exec: a batch of 0 rows was given to an exec prepared for 1 to 2");
  CHECK(sentence([&] {
          e.forward({batch.view().fields.first(1), 2}, {});
        }) == "exec: a batch of 1 fields was given to a model of 2 inputs and labels");
  const std::vector<i32> labels = {0, 3};
  const void* const fields[] = {batch.view().fields[0], labels.data()};
  CHECK(sentence([&] {
          e.forward({fields, 2}, {});
        }) == "exec: the label 'label' of row 1 is 3, expected 0 to 2");
  std::vector<double> short_one(7);
  CHECK(sentence([&] { e.read_parameter(0, short_one); }) ==
        "exec: conv1.weight of [4x2x3x3] has 72 elements, not 7");
  CHECK(sentence([&] { e.write_parameter(99, short_one); }) ==
        "exec: there is no parameter 99; the model has 9");
  CHECK(sentence([&] { e.output(1); }) == "exec: the model has no output 1");
  auto kernels = exec::kernels<Reference>;
  kernels[static_cast<std::size_t>(graph::index_of<graph::Relu>)] = {};
  CHECK(sentence([&] { Reference without(plan, 2, {}, memory::host(), kernels); }) ==
        "exec: reference has no kernel for the operation relu of relu");
}

TEST_CASE("reference: ids and labels that are none are refused, and labels that are ignored are not") {
  const DynamicPlan embedding([](auto& g) {
    auto x = g.embedding(g.input("ids", {2}, {.dtype = DType::i32}), {.entries = 3, .features = 4});
    g.loss(g.cross_entropy(x, g.label("label", 4, {.positions = 2, .ignore = -100}), {.name = "loss"}));
  });
  const Plan& plan = embedding;
  Reference e(plan, 2);
  std::vector<i32> ids = {0, 1, 2, 0}, labels = {3, -100, -100, 1};
  const void* const fields[] = {ids.data(), labels.data()};
  CHECK(sentence([&] { e.forward({fields, 2}, {}); }).empty());
  const exec::Result result = e.result();
  CHECK(result.labels == 2);
  double count = 5;
  CHECK(exec::known_count(plan, 0, 2) == -1);
  exec::add_counts_by_value(plan, {fields, 2}, {&count, 1});
  CHECK(count == 7);
  ids[3] = 3;
  CHECK(sentence([&] {
          e.forward({fields, 2}, {});
        }) == "exec: the input 'ids' of row 1 at position 1 is 3, expected 0 to 2");
  ids[3] = 2;
  labels[1] = -1;
  CHECK(sentence([&] {
          e.forward({fields, 2}, {});
        }) ==
        "exec: the label 'label' of row 0 at position 1 is -1, expected 0 to 3, or -100 where there is none");
}

TEST_CASE("reference: positions and lengths beyond a sequence are refused") {
  const DynamicPlan plan([](auto& g) {
    const auto x = g.input("x", {3, 2});
    const auto at = g.input("at", {2}, {.dtype = DType::i32}),
               length = g.input("length", {}, {.dtype = DType::i32});
    g.loss(g.mse_loss(g.flatten(g.gather(x, at)), g.input("target", {4})));
    g.loss(g.mse_loss(g.mean(x, length), g.select(x, 2)));
  });
  Reference e(plan, 2);
  const std::vector<float> x(12), target(8);
  std::vector<i32> at = {0, 2, 1, 1}, lengths = {1, 3};
  const void* const fields[] = {x.data(), at.data(), lengths.data(), target.data()};
  const auto refusal = [&] { return sentence([&] { e.forward({fields, 2}, {}); }); };
  CHECK(refusal() == "");
  at[1] = 3;
  CHECK(refusal() == "exec: the input 'at' of row 0 at position 1 is 3, expected 0 to 2");
  at[1] = -1;
  CHECK(refusal() == "exec: the input 'at' of row 0 at position 1 is -1, expected 0 to 2");
  at[1] = 2;
  lengths[1] = 0;
  CHECK(refusal() == "exec: the input 'length' of row 1 is 0, expected 1 to 3");
  lengths[1] = 4;
  CHECK(refusal() == "exec: the input 'length' of row 1 is 4, expected 1 to 3");
}
