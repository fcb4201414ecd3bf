// EMULATES
// Batch and layer normalization on the device equal plain loops in f64, in any order of blocks and threads.
#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include "exec_cuda_support.hpp"
#include "sanitized.hpp"
#include <convoy/exec/cuda/kernel/batch_norm.cuh>
#include <convoy/exec/cuda/kernel/layer_norm.cuh>
#include <convoy/exec/reference/reference.hpp>

using namespace convoy;
using namespace exec_cuda;
namespace cuda = convoy::exec::cuda;
namespace reference = convoy::exec::reference;

namespace {

struct NormCase {
  std::int64_t positions = 1;
  int channels = 1;
  bool relu = false, addend = false, second = false, accumulate = false, frozen = false, dx = true;
  bool accumulate_addend = accumulate;
  double mean = 0, deviation = 1;
};

template <class T>
struct BatchNormRun {
  NormCase c;
  reference::Normalization extents;
  Array<T> x, addend, dy, second, y, dx, d_addend;
  Array<float> weight, bias, running_mean, running_variance, mean, inverse, d_weight, d_bias;
  Array<char> scratch;
  cuda::BatchNormTask<T> task;

  explicit BatchNormRun(const NormCase& of) : c(of), extents{static_cast<int>(of.positions), of.channels, 1} {
    std::mt19937 draws(static_cast<unsigned>(of.positions * 31 + of.channels));
    const std::int64_t n = c.positions * c.channels;
    x = random<T>(draws, n, c.mean, c.deviation);
    dy = random<T>(draws, n);
    y.resize(x.size());
    if (c.addend) addend = random<T>(draws, n);
    if (c.second) second = random<T>(draws, n);
    // Existing values, which are either accumulated into or overwritten.
    if (c.dx) dx = random<T>(draws, n);
    if (c.addend) d_addend = random<T>(draws, n);
    weight = random<float>(draws, c.channels, 1, 0.5);
    bias = random<float>(draws, c.channels);
    running_mean = random<float>(draws, c.channels);
    running_variance = random<float>(draws, c.channels, 2, 0.2);
    if (!c.frozen) d_weight = random<float>(draws, c.channels);
    if (!c.frozen) d_bias = random<float>(draws, c.channels);
    mean.resize(weight.size());
    inverse.resize(weight.size());
    scratch.resize(static_cast<std::size_t>(cuda::batch_norm_scratch<T>(c.positions, c.channels)));
    task = {.positions = c.positions,
            .channels = c.channels,
            .epsilon = 1e-5f,
            .momentum = 0.1f,
            .relu = c.relu,
            .weight = weight.data(),
            .bias = bias.data(),
            .running_mean = running_mean.data(),
            .running_variance = running_variance.data(),
            .x = x.data(),
            .addend = pointer(addend),
            .y = y.data(),
            .mean = mean.data(),
            .inverse = inverse.data(),
            .scratch = scratch.data(),
            .dy = dy.data(),
            .second = pointer(second),
            .dx = pointer(dx),
            .accumulate_dx = c.accumulate,
            .d_addend = pointer(d_addend),
            .accumulate_addend = c.accumulate_addend,
            .d_weight = pointer(d_weight),
            .d_bias = pointer(d_bias),
            .accumulate_parameters = c.accumulate};
  }

  std::vector<double> normalized(const std::vector<double>& means,
                                 const std::vector<double>& variances) const {
    std::vector<double> expected(x.size());
    const auto wide_weight = widened(weight), wide_bias = widened(bias), wide_x = widened(x);
    reference::normalize(extents, wide(task.epsilon), wide_x.data(), means.data(), variances.data(),
                         wide_weight.data(), wide_bias.data(), expected.data());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (c.addend) expected[i] += wide(addend[i]);
      if (c.relu && expected[i] < 0) expected[i] = 0;
    }
    return expected;
  }

  void check() {
    const double tight = 4e-6 * (1 + std::abs(c.mean) / c.deviation), eps = emulated::epsilon<T>;
    const auto n = static_cast<std::size_t>(c.channels);
    const auto wide_x = widened(x), wide_weight = widened(weight);
    std::vector<double> means(n), variances(n), run_mean = widened(running_mean),
                                                run_variance = widened(running_variance);

    cuda::batch_norm_forward_evaluate<T>(nullptr, task);
    check_near("evaluated", y, normalized(run_mean, run_variance), eps, 1e-5 * (1 + std::abs(c.mean)));

    reference::measure(extents, extents.own_count(), wide_x.data(), means.data(), variances.data());
    reference::move_running(extents.channels, extents.own_count(), wide(task.momentum), means.data(),
                            variances.data(), run_mean.data(), run_variance.data());
    cuda::batch_norm_forward_train<T>(nullptr, task);
    std::vector<double> inverses;
    for (const double variance : variances) inverses.push_back(1 / std::sqrt(variance + wide(task.epsilon)));
    check_near("mean", mean, means, 1e-6, 1e-6);
    if (c.positions > 1) check_near("inverse", inverse, inverses, tight, 0);
    check_near("running mean", running_mean, run_mean, 1e-6, 1e-6);
    check_near("running variance", running_variance, run_variance, tight, 0);
    // A single position has no deviation: the normalized value is the rounding error of its mean, which is 0.
    check_near("y", y, normalized(means, variances), eps, 4 * tight);

    // Backward masks by the device's own y, whose sign may differ near 0.
    std::vector<double> g = widened(dy), expected_dx(x.size()), expected_weight(n), expected_bias(n);
    for (std::size_t i = 0; i < g.size(); ++i) {
      if (c.second) g[i] += wide(second[i]);
      if (c.relu && !(wide(y[i]) > 0)) g[i] = 0;
    }
    std::vector<double> expected_addend = g;
    if (c.accumulate_addend)
      for (std::size_t i = 0; i < d_addend.size(); ++i) expected_addend[i] += wide(d_addend[i]);
    if (c.accumulate) {
      for (std::size_t i = 0; i < dx.size(); ++i) expected_dx[i] = wide(dx[i]);
      if (!c.frozen) expected_weight = widened(d_weight);
      if (!c.frozen) expected_bias = widened(d_bias);
    }
    reference::normalize_backward(extents, wide(task.epsilon), wide_x.data(), means.data(), variances.data(),
                                  wide_weight.data(), g.data(), expected_dx.data(), expected_weight.data(),
                                  expected_bias.data());
    if (!c.addend) std::fill(y.begin(), y.end(), round<T>(NAN));  // no longer needed
    cuda::batch_norm_backward<T>(nullptr, task);
    const double sum = 1e-5 * std::sqrt(static_cast<double>(c.positions)) + 4 * tight;
    const double steep = c.positions == 1 ? 1e3 : 1;  // dy over the root of epsilon, then canceled
    // The batch norm's incoming gradient is rounded where it is stored as the addend's gradient.
    std::vector<double> near_dx(x.size(), (10 * tight + 1e-5) * steep / c.deviation);
    if (c.addend && !c.accumulate_addend)
      for (std::size_t i = 0; i < g.size(); ++i)
        near_dx[i] += eps * std::abs(g[i] * wide_weight[i % n]) * inverses[i % n];
    if (c.dx) check_near("dx", dx, expected_dx, eps, near_dx);
    if (c.addend) check_near("gradient of the addend", d_addend, expected_addend, eps, 1e-6);
    if (c.frozen) return;
    check_near("gradient of the weight", d_weight, expected_weight, 1e-5, sum);
    check_near("gradient of the bias", d_bias, expected_bias, 1e-5, sum);
  }

  static Bytes bytes(const NormCase& of) {
    BatchNormRun run(of);
    cuda::batch_norm_forward_train<T>(nullptr, run.task);
    cuda::batch_norm_backward<T>(nullptr, run.task);
    return Bytes() << run.y << run.dx << run.d_addend << run.mean << run.inverse << run.running_mean
                   << run.running_variance << run.d_weight << run.d_bias;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("A batch norm is that of plain loops", T, float, bf16, f16) {
  const NormCase cases[] = {
      {.positions = 1, .channels = 8},
      {.positions = 2, .channels = 3, .relu = true},
      {.positions = 5, .channels = 1, .accumulate = true},
      {.positions = 37, .channels = 24, .relu = true, .addend = true, .second = true, .accumulate = true},
      {.positions = 130, .channels = 40, .relu = true, .second = true},
      {.positions = 211, .channels = 19, .relu = true, .addend = true, .accumulate_addend = true},
      {.positions = 333, .channels = 48, .addend = true, .accumulate = true, .frozen = true},
      {.positions = 64, .channels = 264, .relu = true, .accumulate = true},
      {.positions = 50, .channels = 16, .relu = true, .addend = true, .frozen = true, .dx = false},
      {.positions = 3001, .channels = 8, .relu = true},
  };
  for (const NormCase& c : cases) {
    CAPTURE(c.positions);
    CAPTURE(c.channels);
    BatchNormRun<T>(c).check();
  }
}

TEST_CASE_TEMPLATE("A batch norm of random extents is that of plain loops", T, float, bf16, f16) {
  std::mt19937 draws(5);
  const auto below = [&](unsigned n) { return static_cast<int>(draws() % n); };
  for (int k = 0; k < (sanitized ? 4 : 12); ++k) {
    NormCase c{.positions = 2 + below(k % 2 == 0 ? 40 : 900), .channels = 1 + below(70)};
    if (k % 3 == 0) c.channels *= 8;
    c.relu = below(2), c.addend = below(2), c.second = below(2), c.accumulate = below(2);
    c.frozen = below(3) == 0, c.dx = below(4) > 0, c.accumulate_addend = below(2);
    CAPTURE(k);
    CAPTURE(c.positions);
    CAPTURE(c.channels);
    BatchNormRun<T>(c).check();
  }
}

TEST_CASE("Statistics far from 0 lose nothing") {
  for (const std::int64_t positions : {7, 1000, 2500})
    for (const int channels : {4, 5}) {
      CAPTURE(positions);
      BatchNormRun<float> run({.positions = positions, .channels = channels, .mean = 1000});
      std::vector<double> means(static_cast<std::size_t>(channels)), variances(means.size()), inverses;
      reference::measure(run.extents, run.extents.own_count(), widened(run.x).data(), means.data(),
                         variances.data());
      for (const double variance : variances) inverses.push_back(1 / std::sqrt(variance + 1e-5));
      cuda::batch_norm_forward_train<float>(nullptr, run.task);
      check_near("mean", run.mean, means, 1e-7, 0);
      // Rounding a mean of 1000 is off by 3e-5 of the deviation.
      check_near("inverse", run.inverse, inverses, 4e-5, 0);
      check_near("y", run.y, run.normalized(means, variances), 0, 2e-4);
    }
  // Only the first value is far away.
  BatchNormRun<float> run({.positions = 2000, .channels = 4});
  for (std::size_t k = 0; k < 4; ++k) run.x[k] = 3000;
  std::vector<double> means(4), variances(4), inverses;
  reference::measure(run.extents, run.extents.own_count(), widened(run.x).data(), means.data(),
                     variances.data());
  for (const double variance : variances) inverses.push_back(1 / std::sqrt(variance + 1e-5));
  cuda::batch_norm_forward_train<float>(nullptr, run.task);
  check_near("inverse", run.inverse, inverses, 1e-5, 0);
}

TEST_CASE("A batch norm takes sums that come with its input") {
  for (const double mean : {0.0, 3.0, -40.0})
    for (const int channels : {1, 8, 37}) {
      CAPTURE(mean);
      const NormCase c{.positions = 211, .channels = channels, .relu = true, .mean = mean};
      BatchNormRun<f16> run(c), own(c);
      Array<float> sums(static_cast<std::size_t>(2 * channels));
      for (std::size_t i = 0; i < run.x.size(); ++i) {
        const auto x = static_cast<float>(run.x[i]);
        const std::size_t column = i % static_cast<std::size_t>(channels);
        sums[column] += x;
        sums[column + static_cast<std::size_t>(channels)] += x * x;
      }
      run.task.sums = sums.data();
      cuda::batch_norm_forward_train<f16>(nullptr, run.task);
      cuda::batch_norm_forward_train<f16>(nullptr, own.task);
      // The rounding error of f32, with values summed one by one here.
      const double lost = 211 * 0x1p-24 * (1 + mean * mean);
      check_near("mean", run.mean, widened(own.mean), 1e-4, 1e-4);
      check_near("inverse", run.inverse, widened(own.inverse), lost, 0);
      check_near("running mean", run.running_mean, widened(own.running_mean), 1e-4, 1e-4);
      check_near("running variance", run.running_variance, widened(own.running_variance), lost, 0);
      check_near("y", run.y, widened(own.y), emulated::epsilon<f16> + lost, 1e-3 + 2 * lost);

      // With sums that do not match x, the result shows that x is not read for them.
      std::fill(sums.begin(), sums.begin() + channels, 211.0f);
      std::fill(sums.begin() + channels, sums.end(), 5 * 211.0f);
      cuda::batch_norm_forward_train<f16>(nullptr, run.task);
      check_near("mean of given sums", run.mean, std::vector<double>(run.mean.size(), 1), 0, 0);
      check_near("inverse of given sums", run.inverse, std::vector<double>(run.mean.size(), 0.5), 1e-5, 0);
    }
}

TEST_CASE("A batch norm takes the gradients of its parameters that come with a masked gradient") {
  // Alone, or as the only rank of a synchronized batch norm.
  for (const bool addend : {false, true})
    for (const bool ranks : {false, true}) {
      const bool accumulate = addend != ranks;
      CAPTURE(addend);
      CAPTURE(ranks);
      const NormCase c{
          .positions = 211, .channels = 24, .relu = true, .addend = addend, .accumulate = accumulate};
      BatchNormRun<float> run(c), own(c);
      for (BatchNormRun<float>* each : {&run, &own})
        cuda::batch_norm_forward_train<float>(nullptr, each->task);
      cuda::batch_norm_backward<float>(nullptr, own.task);

      Array<float> sums(2 * 24);
      for (std::size_t i = 0; i < run.x.size(); ++i) {
        const std::size_t column = i % 24;
        if (!(run.y[i] > 0)) run.dy[i] = 0;
        sums[column] += run.dy[i] * (run.x[i] - run.mean[column]) * run.inverse[column];
        sums[column + 24] += run.dy[i];
      }
      run.task.parameter_sums = sums.data();
      std::fill(run.y.begin(), run.y.end(), NAN);  // not needed for a mask
      std::vector<double> of_ranks(2 * 24);
      cuda::batch_norm_backward<float>(nullptr, run.task, ranks ? of_ranks.data() : nullptr,
                                       [](double*) { return 211.0; });
      CHECK((of_ranks[0] != 0) == ranks);
      check_near("dx", run.dx, widened(own.dx), 1e-5, 1e-5);
      check_near("gradient of the addend", run.d_addend, widened(own.d_addend), 0, 0);
      check_near("gradient of the weight", run.d_weight, widened(own.d_weight), 1e-5, 1e-4);
      check_near("gradient of the bias", run.d_bias, widened(own.d_bias), 1e-5, 1e-4);
    }
}

TEST_CASE("A batch norm overwrites its gradient where it may") {
  const NormCase c{.positions = 90, .channels = 24, .relu = true};
  BatchNormRun<bf16> apart(c), in_place(c);
  in_place.task.dx = in_place.dy.data();
  for (BatchNormRun<bf16>* run : {&apart, &in_place}) {
    cuda::batch_norm_forward_train<bf16>(nullptr, run->task);
    cuda::batch_norm_backward<bf16>(nullptr, run->task);
  }
  CHECK((Bytes() << apart.dx).all == (Bytes() << in_place.dy).all);
}

TEST_CASE_TEMPLATE("A batch norm has the same bits in any order", T, float, f16) {
  for (const int channels : {40, 7})
    check_in_all_orders([&] {
      return BatchNormRun<T>::bytes({.positions = 301,
                                     .channels = channels,
                                     .relu = true,
                                     .addend = true,
                                     .second = true,
                                     .accumulate = true});
    });
}

TEST_CASE("Columns are shared so that every row and column has one thread, and all processors work") {
  struct Extents {
    std::int64_t rows;
    int columns;
  };
  const auto check = [](const cuda::Columns& c) {
    const int vectors = c.columns / c.width;
    CHECK(c.columns % c.width == 0);
    CHECK(c.tiles * c.tile >= vectors);
    CHECK((c.tiles - 1) * c.tile < vectors);
    CHECK(c.chunks * c.chunk_rows >= c.rows);
    CHECK((c.chunks - 1) * c.chunk_rows < c.rows);
    CHECK(c.threads % 32 == 0);
    CHECK(c.threads <= cuda::Columns::most_threads);
    CHECK(c.threads % c.tile == 0);
    CHECK((c.lines() & (c.lines() - 1)) == 0);
  };
  for (const std::int64_t rows : {1, 2, 31, 128, 1000, 50176, 3211264})
    for (const int columns : {1, 2, 3, 8, 10, 12, 24, 64, 96, 100, 512, 768, 2048, 16384, 50257}) {
      CAPTURE(rows);
      CAPTURE(columns);
      check(cuda::share_columns<float>(rows, columns));
      check(cuda::share_columns<bf16>(rows, columns));
    }
  for (const Extents e : {Extents{128, 512}, Extents{256 * 112 * 112, 64}, Extents{256 * 49, 2048}}) {
    const auto blocks = [](const cuda::Columns& c) { return c.chunks * c.tiles; };
    CHECK(blocks(cuda::share_columns<float>(e.rows, e.columns)) >= 128);
    CHECK(blocks(cuda::share_columns<bf16>(e.rows, e.columns)) >= 128);
    CHECK(blocks(cuda::share_columns<bf16>(e.rows, e.columns)) <= 132 * 4);
  }
  CHECK(cuda::batch_norm_scratch<bf16>(256 * 112 * 112, 64) < 1 << 20);
}

namespace {

struct LayerCase {
  std::int64_t rows = 1;
  int features = 1;
  bool bias = true, second = false, accumulate = false, frozen = false, dx = true;
};

template <class T>
struct LayerNormRun {
  LayerCase c;
  Array<T> x, dy, second, y, dx;
  Array<float> weight, bias, mean, inverse, d_weight, d_bias;
  Array<char> scratch;
  cuda::LayerNormTask<T> task;

  explicit LayerNormRun(const LayerCase& of) : c(of) {
    std::mt19937 draws(static_cast<unsigned>(of.rows * 31 + of.features));
    const std::int64_t n = c.rows * c.features;
    x = random<T>(draws, n, 3);
    dy = random<T>(draws, n);
    y.resize(x.size());
    if (c.second) second = random<T>(draws, n);
    if (c.dx) dx = random<T>(draws, n);
    weight = random<float>(draws, c.features, 1, 0.5);
    if (c.bias) bias = random<float>(draws, c.features);
    if (!c.frozen) d_weight = random<float>(draws, c.features);
    if (!c.frozen && c.bias) d_bias = random<float>(draws, c.features);
    mean.resize(static_cast<std::size_t>(c.rows));
    inverse.resize(mean.size());
    scratch.resize(static_cast<std::size_t>(cuda::layer_norm_scratch<T>(c.rows, c.features)));
    task = {.rows = c.rows,
            .features = c.features,
            .epsilon = 1e-3f,
            .weight = weight.data(),
            .bias = pointer(bias),
            .x = x.data(),
            .y = y.data(),
            .mean = mean.data(),
            .inverse = inverse.data(),
            .dy = dy.data(),
            .second = pointer(second),
            .dx = pointer(dx),
            .accumulate_dx = c.accumulate,
            .d_weight = pointer(d_weight),
            .d_bias = pointer(d_bias),
            .accumulate_weight = c.accumulate,
            .accumulate_bias = c.accumulate,
            .scratch = scratch.data()};
  }

  void check() {
    const auto wide_x = widened(x), wide_weight = widened(weight);
    std::vector<double> expected(x.size()), means, inverses, expected_dx(x.size()), g = widened(dy);
    std::vector<double> expected_weight(weight.size()), expected_bias(weight.size());
    if (c.accumulate) {
      if (c.dx) expected_dx = widened(dx);
      if (!c.frozen) expected_weight = widened(d_weight);
      if (!c.frozen && c.bias) expected_bias = widened(d_bias);
    }
    const auto n = static_cast<std::size_t>(c.features);
    for (std::size_t row = 0; row < mean.size(); ++row) {
      const reference::Moments<double> m(wide_x.data() + row * n, c.features, wide(task.epsilon));
      means.push_back(m.mean);
      inverses.push_back(m.inverse);
      double sum = 0, dot = 0;
      const auto normal = [&](std::size_t i) { return (wide_x[i] - m.mean) * m.inverse; };
      for (std::size_t k = 0; k < n; ++k) {
        const std::size_t i = row * n + k;
        if (c.second) g[i] += wide(second[i]);
        expected[i] = normal(i) * wide_weight[k] + (c.bias ? wide(bias[k]) : 0);
        sum += g[i] * wide_weight[k];
        dot += g[i] * wide_weight[k] * normal(i);
        expected_weight[k] += g[i] * normal(i);
        expected_bias[k] += g[i];
      }
      for (std::size_t k = 0; k < n; ++k) {
        const std::size_t i = row * n + k;
        expected_dx[i] += m.inverse * (g[i] * wide_weight[k] - sum / static_cast<double>(n) -
                                       normal(i) * dot / static_cast<double>(n));
      }
    }
    const double eps = emulated::epsilon<T>;
    cuda::layer_norm_forward<T>(nullptr, task);
    check_near("mean", mean, means, 1e-6, 1e-6);
    check_near("inverse", inverse, inverses, 1e-5, 0);
    check_near("y", y, expected, eps, 4e-5);
    cuda::layer_norm_backward<T>(nullptr, task);
    const double sums = 1e-5 * std::sqrt(static_cast<double>(c.rows));
    // A row of few features may have almost no deviation.
    const double steep = c.features < 8 ? 50 : 1;
    if (c.dx) check_near("dx", dx, expected_dx, eps, 4e-5 * steep);
    if (!d_weight.empty()) check_near("gradient of the weight", d_weight, expected_weight, 1e-5, 4 * sums);
    if (!d_bias.empty()) check_near("gradient of the bias", d_bias, expected_bias, 1e-5, sums);
  }

  static Bytes bytes(const LayerCase& of) {
    LayerNormRun run(of);
    cuda::layer_norm_forward<T>(nullptr, run.task);
    cuda::layer_norm_backward<T>(nullptr, run.task);
    return Bytes() << run.y << run.dx << run.mean << run.inverse << run.d_weight << run.d_bias;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("A layer norm is that of plain loops", T, float, bf16, f16) {
  const LayerCase cases[] = {
      {.rows = 1, .features = 1},
      {.rows = 9, .features = 7, .bias = false, .second = true},
      {.rows = 40, .features = 64, .accumulate = true},
      {.rows = 21, .features = 768, .second = true, .accumulate = true},
      {.rows = 17, .features = 333, .dx = false},
      {.rows = 3, .features = 2048, .bias = false, .accumulate = true},
      {.rows = 3, .features = 2049, .second = true},
      {.rows = 2, .features = 4096, .frozen = true},
      {.rows = 2, .features = 16384, .accumulate = true},
      {.rows = 300, .features = 16},
  };
  for (const LayerCase& c : cases) {
    CAPTURE(c.rows);
    CAPTURE(c.features);
    LayerNormRun<T>(c).check();
  }
}

TEST_CASE_TEMPLATE("A layer norm of random extents is that of plain loops", T, float, bf16, f16) {
  std::mt19937 draws(6);
  const auto below = [&](unsigned n) { return static_cast<int>(draws() % n); };
  for (int k = 0; k < (sanitized ? 4 : 10); ++k) {
    LayerCase c{.rows = 1 + below(90), .features = 8 + below(k % 2 == 0 ? 60 : 600)};
    if (k % 3 == 0) c.features = c.features / 8 * 8;
    c.bias = below(3) > 0, c.second = below(2), c.accumulate = below(2);
    c.frozen = below(3) == 0, c.dx = below(4) > 0;
    CAPTURE(k);
    CAPTURE(c.rows);
    CAPTURE(c.features);
    LayerNormRun<T>(c).check();
  }
}

TEST_CASE("A layer norm of an evaluation keeps no moments") {
  LayerNormRun<float> kept({.rows = 5, .features = 24}), not_kept({.rows = 5, .features = 24});
  not_kept.task.mean = not_kept.task.inverse = nullptr;
  cuda::layer_norm_forward<float>(nullptr, kept.task);
  cuda::layer_norm_forward<float>(nullptr, not_kept.task);
  CHECK((Bytes() << kept.y).all == (Bytes() << not_kept.y).all);
}

TEST_CASE("A layer norm has the same bits in any order") {
  for (const int features : {72, 75, 2056})
    check_in_all_orders([&] {
      return LayerNormRun<bf16>::bytes(
          {.rows = 50, .features = features, .second = true, .accumulate = true});
    });
}
