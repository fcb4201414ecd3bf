// EMULATES
// Layer normalization of sums on the device equals plain loops in f64 and drops the same elements as the
// host, in any order of blocks and threads.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include "exec_cuda_support.hpp"
#include "sanitized.hpp"
#include <convoy/exec/cuda/kernel/residual_norm.cuh>
#include <convoy/exec/reference/reference.hpp>

using namespace convoy;
using namespace exec_cuda;
namespace cuda = convoy::exec::cuda;
namespace reference = convoy::exec::reference;

namespace {

/// Where the gradient of a summand goes.
enum class To { nowhere, over, added, in_place };

struct Case {
  int rows = 1, batch_row = 1, features = 1;
  bool drops = true;
  float p = 0.3f;
  bool bias = true, second = false;
  To addend = To::in_place, branch = To::over;
};

template <class T>
struct ResidualNormRun {
  Case c;
  // Positions of rows exceed 32 bits.
  exec::Draws from{{.seed = 77, .epoch = 3, .position = (std::int64_t{1} << 32) - 2}, "layer"};
  Array<T> branch, addend, sum, y, dy, second, d_branch, d_addend;
  Array<float> weight, bias, mean, inverse, d_weight, d_bias;
  Array<char> scratch;
  cuda::ResidualNormTask<T> task;

  explicit ResidualNormRun(const Case& of) : c(of) {
    std::mt19937 draws(static_cast<unsigned>(c.rows * 31 + c.features));
    const std::int64_t n = std::int64_t{c.rows} * c.features;
    branch = random<T>(draws, n, 1, 2);
    addend = random<T>(draws, n, 2);
    dy = random<T>(draws, n);
    if (c.second) second = random<T>(draws, n);
    // Existing values, which are either accumulated into or overwritten.
    d_branch = random<T>(draws, n);
    d_addend = random<T>(draws, n);
    sum.resize(branch.size());
    y.resize(branch.size());
    weight = random<float>(draws, c.features, 1, 0.5);
    if (c.bias) bias = random<float>(draws, c.features);
    d_weight.resize(weight.size());
    d_bias.resize(bias.size());
    mean.resize(static_cast<std::size_t>(c.rows));
    inverse.resize(mean.size());
    scratch.resize(static_cast<std::size_t>(cuda::layer_norm_scratch<T>(c.rows, c.features)));
    task.rows = c.rows;
    task.features = c.features;
    task.epsilon = 1e-3f;
    task.weight = weight.data();
    task.bias = pointer(bias);
    task.x = task.sum = sum.data();
    task.y = y.data();
    task.mean = mean.data();
    task.inverse = inverse.data();
    task.dy = dy.data();
    task.second = pointer(second);
    task.d_weight = d_weight.data();
    task.d_bias = pointer(d_bias);
    task.scratch = scratch.data();
    task.draws = c.drops ? &from : nullptr;
    task.rule = exec::DropoutRule(c.p);
    task.batch_row = c.batch_row;
    task.branch = branch.data();
    task.addend = addend.data();
    task.accumulate_addend = c.addend == To::added;
    task.accumulate_branch = c.branch == To::added;
    const auto place = [&](To to, Array<T>& own) {
      return to == To::nowhere ? nullptr : to == To::in_place ? dy.data() : own.data();
    };
    task.d_addend = place(c.addend, d_addend);
    task.d_branch = place(c.branch, d_branch);
  }

  /// The factor by which dropout multiplies element k of a row.
  double factor(int row, int k) const {
    if (!c.drops) return 1;
    const auto e = std::int64_t{row % c.batch_row} * c.features + k;
    return from(row / c.batch_row, e) < task.rule.threshold ? 0 : wide(task.rule.scale);
  }

  void check() {
    const double eps = emulated::epsilon<T>;
    const auto n = static_cast<std::size_t>(c.features);
    std::vector<double> expected(sum.size()), g = widened(dy);
    const auto for_each = [&](auto visit) {
      for (int row = 0; row < c.rows; ++row)
        for (int k = 0; k < c.features; ++k)
          visit(static_cast<std::size_t>(row) * n + static_cast<std::size_t>(k), row, k);
    };
    for_each([&](std::size_t i, int row, int k) {
      expected[i] = wide(addend[i]) + factor(row, k) * wide(branch[i]);
    });
    cuda::residual_norm_forward<T>(nullptr, task);
    check_near("sum", sum, expected, eps, 1e-6);

    // From here on, use the device's own rounded sum.
    const auto x = widened(sum), weights = widened(weight);
    std::vector<double> means, inverses, ds(x.size()), of_weight(n), of_bias(n);
    for (std::size_t row = 0; row < mean.size(); ++row) {
      const reference::Moments<double> m(x.data() + row * n, c.features, wide(task.epsilon));
      means.push_back(m.mean);
      inverses.push_back(m.inverse);
      const auto normal = [&](std::size_t i) { return (x[i] - m.mean) * m.inverse; };
      double of_one = 0, of_normal = 0;
      for (std::size_t k = 0, i = row * n; k < n; ++k, ++i) {
        if (c.second) g[i] += wide(second[i]);
        expected[i] = normal(i) * weights[k] + (c.bias ? wide(bias[k]) : 0);
        of_one += g[i] * weights[k] / static_cast<double>(n);
        of_normal += g[i] * weights[k] * normal(i) / static_cast<double>(n);
        of_weight[k] += g[i] * normal(i);
        of_bias[k] += g[i];
      }
      for (std::size_t k = 0, i = row * n; k < n; ++k, ++i)
        ds[i] = m.inverse * (g[i] * weights[k] - of_one - normal(i) * of_normal);
    }
    check_near("mean", mean, means, 1e-6, 1e-6);
    check_near("inverse", inverse, inverses, 1e-5, 0);
    check_near("y", y, expected, eps, 4e-5);

    std::vector<double> of_addend = ds, of_branch = ds;
    const auto dy_before = widened(dy), addend_before = widened(d_addend), branch_before = widened(d_branch);
    for_each([&](std::size_t i, int row, int k) {
      of_branch[i] *= factor(row, k);
      if (c.addend == To::added) of_addend[i] += addend_before[i];
      if (c.branch == To::added) of_branch[i] += branch_before[i];
    });
    cuda::residual_norm_backward<T>(nullptr, task);
    const double steep = c.features < 8 ? 50 : 1, sums = 1e-5 * std::sqrt(c.rows);
    const bool in_place = c.addend == To::in_place || c.branch == To::in_place;
    if (!in_place) check_near("untouched", dy, dy_before, 0, 0);
    if (c.addend == To::nowhere)
      check_near("untouched", d_addend, addend_before, 0, 0);
    else
      check_near("gradient of the addend", c.addend == To::in_place ? dy : d_addend, of_addend, eps,
                 4e-5 * steep);
    if (c.branch == To::nowhere)
      check_near("untouched", d_branch, branch_before, 0, 0);
    else
      check_near("gradient of the branch", c.branch == To::in_place ? dy : d_branch, of_branch, eps,
                 4e-5 * steep);
    check_near("gradient of the weight", d_weight, of_weight, 1e-5, 4 * sums);
    if (c.bias) check_near("gradient of the bias", d_bias, of_bias, 1e-5, sums);
  }

  static Bytes bytes(const Case& of) {
    ResidualNormRun run(of);
    cuda::residual_norm_forward<T>(nullptr, run.task);
    cuda::residual_norm_backward<T>(nullptr, run.task);
    return Bytes() << run.sum << run.y << run.mean << run.inverse << run.dy << run.d_branch << run.d_addend
                   << run.d_weight << run.d_bias;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("A layer norm of a sum is that of plain loops", T, float, bf16, f16) {
  const Case cases[] = {
      {},
      {.rows = 40, .batch_row = 8, .features = 64},
      {.rows = 21, .batch_row = 7, .features = 768, .second = true},
      {.rows = 9, .batch_row = 3, .features = 2048, .bias = false, .addend = To::added, .branch = To::added},
      {.rows = 4, .batch_row = 2, .features = 2112, .second = true, .addend = To::over},
      {.rows = 2, .batch_row = 1, .features = 4096, .p = 0, .branch = To::nowhere},
      // Rows that begin within chunks of draws.
      {.rows = 12, .batch_row = 4, .features = 40, .addend = To::over, .branch = To::added},
      {.rows = 15, .batch_row = 5, .features = 333, .bias = false, .second = true, .addend = To::nowhere},
      {.rows = 4, .batch_row = 4, .features = 2049, .addend = To::added},
      // Sums without dropout.
      {.rows = 30,
       .batch_row = 5,
       .features = 72,
       .drops = false,
       .addend = To::added,
       .branch = To::in_place},
      {.rows = 6, .batch_row = 2, .features = 75, .drops = false, .second = true},
      {.rows = 3, .batch_row = 1, .features = 2056, .drops = false, .branch = To::added},
      {.rows = 2,
       .batch_row = 1,
       .features = 2051,
       .drops = false,
       .addend = To::nowhere,
       .branch = To::nowhere},
  };
  for (const Case& c : cases) {
    CAPTURE(c.rows);
    CAPTURE(c.features);
    ResidualNormRun<T>(c).check();
  }
}

TEST_CASE_TEMPLATE("A layer norm of a random sum is that of plain loops", T, float, bf16, f16) {
  std::mt19937 draws(6);
  const auto below = [&](unsigned n) { return static_cast<int>(draws() % n); };
  for (int k = 0; k < (sanitized ? 4 : 12); ++k) {
    Case c{.batch_row = 1 + below(9), .features = 8 + below(k % 2 == 0 ? 60 : 600)};
    c.rows = c.batch_row * (1 + below(9));
    if (k % 3 == 0) c.features = (c.features + 63) / 64 * 64;
    c.drops = below(3) > 0, c.p = 0.1f * static_cast<float>(below(9));
    c.bias = below(3) > 0, c.second = below(2);
    c.addend = To{below(4)}, c.branch = To{below(3)};
    CAPTURE(k);
    CAPTURE(c.rows);
    CAPTURE(c.features);
    ResidualNormRun<T>(c).check();
  }
}

TEST_CASE("A summand that is the other, too, has the gradients of both") {
  for (const int features : {64, 40}) {
    const Case both{.rows = 6, .batch_row = 3, .features = features, .addend = To::over};
    ResidualNormRun<float> apart(both), together(both);
    together.task.d_branch = together.task.d_addend = together.dy.data();
    together.task.accumulate_branch = true;
    for (auto* run : {&apart, &together}) {
      cuda::residual_norm_forward<float>(nullptr, run->task);
      cuda::residual_norm_backward<float>(nullptr, run->task);
    }
    for (std::size_t i = 0; i < apart.dy.size(); ++i)
      CHECK(together.dy[i] == apart.d_addend[i] + apart.d_branch[i]);
  }
}

TEST_CASE("A layer norm of a sum has the same bits in any order") {
  for (const int features : {64, 75, 2112})
    for (const bool drops : {true, false})
      check_in_all_orders([&] {
        return ResidualNormRun<bf16>::bytes(
            {.rows = 20, .batch_row = 5, .features = features, .drops = drops, .second = true});
      });
}
