// EMULATES
// Losses, sums and casts on the device equal plain loops in f64, in any order of blocks and threads.
#include <limits>

#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include "exec_cuda_support.hpp"
#include <convoy/exec/cuda/kernel/cross_entropy.cuh>
#include <convoy/exec/cuda/kernel/pointwise_loss.cuh>
#include <convoy/exec/cuda/kernel/reduce.cuh>
#include <convoy/exec/reference/reference.hpp>

using namespace convoy;
using namespace exec_cuda;
namespace cuda = convoy::exec::cuda;
namespace reference = convoy::exec::reference;

namespace {

struct CrossEntropyCase {
  int rows = 1, positions = 1, classes = 2;
  bool ignores = false;
  float smoothing = 0;
  bool accumulate = false;
  double mean = 0;
};

template <class T>
struct CrossEntropyRun {
  CrossEntropyCase c;
  Array<T> logits, d_logits;
  Array<i32> labels;
  Array<float> losses, normalizers, d_losses;
  Array<std::int64_t> tally;
  Array<char> scratch;
  cuda::CrossEntropyTask<T> task;

  explicit CrossEntropyRun(const CrossEntropyCase& of) : c(of) {
    std::mt19937 draws(static_cast<unsigned>(c.rows * 31 + c.classes));
    const int count = c.rows * c.positions;
    logits = random<T>(draws, std::int64_t{count} * c.classes, c.mean, 3);
    d_logits = random<T>(draws, std::int64_t{count} * c.classes);
    for (int i = 0; i < count; ++i) {
      labels.push_back(static_cast<i32>(draws() % static_cast<unsigned>(c.classes)));
      const auto begin = static_cast<std::size_t>(i) * static_cast<std::size_t>(c.classes);
      // Every third label is right; of equal logits the first one counts.
      if (i % 3 == 0) logits[begin + static_cast<std::size_t>(labels.back())] = round<T>(c.mean + 20);
      if (i % 3 == 1)
        logits[begin] = logits[begin + static_cast<std::size_t>(c.classes) - 1] = round<T>(c.mean + 20);
      if (i % 6 == 1) labels.back() = 0;
      if (i % 6 == 4) labels.back() = c.classes - 1;
      if (c.ignores && i % 4 == 2) labels.back() = -100;
    }
    losses.resize(static_cast<std::size_t>(c.rows), NAN);
    normalizers.resize(static_cast<std::size_t>(count), NAN);
    d_losses = random<float>(draws, c.rows);
    tally.resize(2, -1);
    task = {.rows = c.rows,
            .positions = c.positions,
            .classes = c.classes,
            .ignored = -100,
            .ignores = c.ignores,
            .smoothing = c.smoothing,
            .block = {0, count},
            .stride = c.classes,
            .logits = logits.data(),
            .labels = labels.data(),
            .losses = losses.data(),
            .normalizers = normalizers.data(),
            .tally = tally.data(),
            .d_losses = d_losses.data(),
            .d_logits = d_logits.data(),
            .accumulate = c.accumulate};
    scratch.resize(static_cast<std::size_t>(cuda::cross_entropy_scratch(task, count)));
    task.scratch = scratch.data();
  }

  void forward() { cuda::cross_entropy_sums(nullptr, task, cuda::cross_entropy_losses(nullptr, task)); }

  /// As forward and backward, with logits for `labels` labels at a time, in rows padded with NaN, and
  /// gradients in their place, padded with zeros.
  void run_in_blocks(std::int64_t labels) {
    const std::int64_t count = task.count(), classes = c.classes;
    const int stride = (c.classes + 31) / 32 * 32;
    Array<T> at_hand(static_cast<std::size_t>(labels * stride));
    scratch.assign(static_cast<std::size_t>(cuda::cross_entropy_scratch(task, labels)), 0);
    cuda::CrossEntropyTask<T> blocks = task;
    blocks.scratch = scratch.data();
    blocks.stride = stride;
    blocks.logits = blocks.d_logits = at_hand.data();
    blocks.accumulate = false;
    int tallies = 0;
    for (std::int64_t begin = 0; begin < count; begin += labels) {
      blocks.block = {begin, std::min(begin + labels, count)};
      std::fill(at_hand.begin(), at_hand.end(), round<T>(NAN));
      for (std::int64_t i = begin; i < blocks.block.end; ++i)
        std::copy_n(logits.data() + i * classes, classes, at_hand.data() + (i - begin) * stride);
      tallies = cuda::cross_entropy_losses(nullptr, blocks, tallies);
      cuda::cross_entropy_backward(nullptr, blocks);
      for (std::int64_t i = begin; i < blocks.block.end; ++i) {
        const T* const row = at_hand.data() + (i - begin) * stride;
        std::copy_n(row, classes, d_logits.data() + i * classes);
        CHECK(std::all_of(row + classes, row + stride, [](T x) { return wide(x) == 0; }));
      }
    }
    cuda::cross_entropy_sums(nullptr, blocks, tallies);
  }

  void check() {
    const int count = c.rows * c.positions;
    const auto n = static_cast<std::size_t>(count);
    const auto wide_logits = widened(logits);
    const reference::Labels<double> labels_of{labels.data(), c.ignores ? -100 : graph::no_label,
                                              wide(c.smoothing)};
    std::vector<double> each(n), expected_losses(losses.size()), d_each(n), expected(logits.size());
    reference::cross_entropy(count, c.classes, wide_logits.data(), labels_of, each.data());
    std::int64_t counted = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t row = i / static_cast<std::size_t>(c.positions);
      expected_losses[row] += each[i];
      d_each[i] = wide(d_losses[row]);
      counted += labels_of.counts(static_cast<std::int64_t>(i));
    }
    if (c.accumulate) expected = widened(d_logits);
    reference::cross_entropy_backward(count, c.classes, wide_logits.data(), labels_of, d_each.data(),
                                      expected.data());

    forward();
    const double far = 1 + std::abs(c.mean);
    check_near("losses", losses, expected_losses, 2e-6, 2e-6 * far * c.positions);
    CHECK(tally[0] == reference::count_correct(count, c.classes, wide_logits.data(), labels_of));
    CHECK(tally[1] == counted);
    cuda::cross_entropy_backward(nullptr, task);
    check_near("gradient", d_logits, expected, emulated::epsilon<T>, 4e-6 * far);
    if (c.accumulate) return;
    run_in_blocks(count);
    check_near("losses of logits in padded rows", losses, expected_losses, 2e-6, 2e-6 * far * c.positions);
    check_near("gradient in their place", d_logits, expected, emulated::epsilon<T>, 4e-6 * far);
  }

  static Bytes bytes(const CrossEntropyCase& of) {
    CrossEntropyRun run(of);
    run.forward();
    cuda::cross_entropy_backward(nullptr, run.task);
    return Bytes() << run.losses << run.normalizers << run.tally << run.d_logits;
  }
};

}  // namespace

TEST_CASE_TEMPLATE("A cross-entropy is that of plain loops", T, float, bf16, f16) {
  const CrossEntropyCase cases[] = {
      {.rows = 1, .classes = 1},
      {.rows = 37, .classes = 10},
      {.rows = 20, .classes = 10, .smoothing = 0.1f, .accumulate = true},
      {.rows = 7, .positions = 5, .classes = 33, .ignores = true, .smoothing = 0.2f},
      {.rows = 3, .positions = 70, .classes = 3, .ignores = true, .accumulate = true},
      {.rows = 12, .classes = 1000, .smoothing = 0.1f, .mean = 100},
      {.rows = 6, .classes = 1024},
      {.rows = 7, .classes = 1025, .ignores = true, .smoothing = 0.1f},
      {.rows = 2, .positions = 3, .classes = 5003, .ignores = true, .accumulate = true},
      {.rows = 3, .classes = 50257, .smoothing = 0.1f},
  };
  for (const CrossEntropyCase& c : cases) {
    CAPTURE(c.rows);
    CAPTURE(c.classes);
    CrossEntropyRun<T>(c).check();
  }
}

TEST_CASE_TEMPLATE("A cross-entropy of random extents is that of plain loops", T, float, bf16, f16) {
  std::mt19937 draws(7);
  const auto below = [&](unsigned n) { return static_cast<int>(draws() % n); };
  for (int k = 0; k < 12; ++k) {
    CrossEntropyCase c{.rows = 1 + below(30), .positions = 1 + below(k % 2 == 0 ? 1 : 9)};
    c.classes = 1 + below(k % 3 == 0 ? 12 : k % 3 == 1 ? 300 : 1500);
    c.ignores = below(2), c.smoothing = below(2) ? 0.15f : 0.0f, c.accumulate = below(2);
    CAPTURE(k);
    CAPTURE(c.rows);
    CAPTURE(c.classes);
    CrossEntropyRun<T>(c).check();
  }
}

TEST_CASE("A cross-entropy of an evaluation keeps no normalizers, and its gradient may replace the logits") {
  for (const int classes : {45, 2001}) {
    const CrossEntropyCase c{.rows = 9, .classes = classes, .ignores = true};
    CrossEntropyRun<bf16> apart(c), in_place(c), evaluated(c), uncounted(c);
    evaluated.task.normalizers = nullptr;
    uncounted.task.tally = nullptr;
    in_place.task.d_logits = in_place.logits.data();
    for (auto* run : {&apart, &in_place, &evaluated, &uncounted}) run->forward();
    for (auto* run : {&apart, &in_place}) cuda::cross_entropy_backward(nullptr, run->task);
    CHECK((Bytes() << apart.losses << apart.tally).all ==
          (Bytes() << evaluated.losses << evaluated.tally).all);
    CHECK((Bytes() << apart.losses).all == (Bytes() << uncounted.losses).all);
    CHECK((Bytes() << apart.d_logits).all == (Bytes() << in_place.logits).all);
  }
}

TEST_CASE_TEMPLATE("A cross-entropy has the same bits whether logits are at hand at once or block by block",
                   T, float, bf16) {
  for (const CrossEntropyCase& c :
       {CrossEntropyCase{.rows = 5, .positions = 7, .classes = 45, .ignores = true, .smoothing = 0.1f},
        CrossEntropyCase{.rows = 33, .classes = 1030, .ignores = true}})
    for (const std::int64_t labels : {1, 16, 32, 35}) {
      CAPTURE(labels);
      CrossEntropyRun<T> whole(c), blocks(c);
      whole.run_in_blocks(whole.task.count());
      blocks.run_in_blocks(labels);
      const auto bytes = [](const auto& run) {
        return (Bytes() << run.losses << run.normalizers << run.tally << run.d_logits).all;
      };
      CHECK(bytes(whole) == bytes(blocks));
    }
}

TEST_CASE("A cross-entropy bears logits that are infinite or huge") {
  const float infinite = std::numeric_limits<float>::infinity();
  CrossEntropyRun<float> run({.rows = 3, .classes = 5});
  run.labels = {1, 4, 0};
  run.logits = {-infinite, 2, -infinite, 2, -infinite, 3e38f, 0, 0, 0, 3e38f, -3e38f, -3e38f, 0, 1, 2};
  run.task.logits = run.logits.data();
  run.task.labels = run.labels.data();
  run.forward();
  CHECK(run.losses[0] == doctest::Approx(std::log(2.0)));
  CHECK(run.losses[1] == doctest::Approx(0));
  CHECK(run.losses[2] == doctest::Approx(3e38));
  CHECK(run.tally[0] == 1);
  cuda::cross_entropy_backward(nullptr, run.task);
  CHECK(run.d_logits[0] == 0);
  CHECK(run.d_logits[3] == doctest::Approx(0.5 * wide(run.d_losses[0])));
}

TEST_CASE("A cross-entropy has the same bits in any order") {
  for (const int classes : {100, 1031})
    check_in_all_orders([&] {
      return CrossEntropyRun<bf16>::bytes(
          {.rows = 11, .positions = 3, .classes = classes, .ignores = true, .smoothing = 0.1f});
    });
}

namespace {

struct Squared {
  using Device = cuda::SquaredError;
  static double loss(double x, double t) { return (x - t) * (x - t); }
  static double slope(double x, double t) { return 2 * (x - t); }
  static double target_slope(double x, double t) { return 2 * (t - x); }
};
struct Logit {
  using Device = cuda::LogitError;
  static double loss(double x, double t) {
    return std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x)));
  }
  static double slope(double x, double t) { return 1 / (1 + std::exp(-x)) - t; }
  static double target_slope(double x, double) { return -x; }
};

template <class F, class T>
Bytes check_pointwise(std::int64_t rows, std::int64_t n, bool dx, bool d_target, bool accumulate) {
  std::mt19937 draws(static_cast<unsigned>(rows * 31 + n));
  Array<T> x = random<T>(draws, rows * n, 0, 3), target = random<T>(draws, rows * n, 0.5), slopes,
           target_slopes;
  Array<float> losses(static_cast<std::size_t>(rows)), d_losses = random<float>(draws, rows);
  if (n > 2) x[1] = round<T>(200), x[2] = round<T>(-200);
  if (dx) slopes = random<T>(draws, rows * n);
  if (d_target) target_slopes = random<T>(draws, rows * n);
  std::vector<double> expected(losses.size()), expected_slopes(slopes.size()),
      expected_targets(target_slopes.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(n);
    const double each = wide(d_losses[row]) / static_cast<double>(n), a = wide(x[i]), b = wide(target[i]);
    expected[row] += F::loss(a, b) / static_cast<double>(n);
    if (dx) expected_slopes[i] = each * F::slope(a, b) + (accumulate ? wide(slopes[i]) : 0);
    if (d_target)
      expected_targets[i] = each * F::target_slope(a, b) + (accumulate ? wide(target_slopes[i]) : 0);
  }
  const cuda::PointwiseLossTask<T> task{.rows = rows,
                                        .n = n,
                                        .x = x.data(),
                                        .target = target.data(),
                                        .losses = losses.data(),
                                        .d_losses = d_losses.data(),
                                        .dx = pointer(slopes),
                                        .accumulate_dx = accumulate,
                                        .d_target = pointer(target_slopes),
                                        .accumulate_target = accumulate};
  cuda::pointwise_loss_forward<typename F::Device>(nullptr, task);
  cuda::pointwise_loss_backward<typename F::Device>(nullptr, task);
  check_near("losses", losses, expected, 4e-6, 1e-6);
  // A slope may be subnormal in f16.
  check_near("slopes", slopes, expected_slopes, emulated::epsilon<T>, 1e-6);
  check_near("slopes of the target", target_slopes, expected_targets, emulated::epsilon<T>, 1e-6);
  return Bytes() << losses << slopes << target_slopes;
}

}  // namespace

TEST_CASE_TEMPLATE("Losses of elements are those of plain loops", T, float, bf16, f16) {
  check_pointwise<Squared, T>(1, 1, true, true, false);
  check_pointwise<Squared, T>(13, 7, true, false, false);
  check_pointwise<Squared, T>(9, 1024, true, true, true);
  check_pointwise<Squared, T>(3, 5001, false, true, false);
  check_pointwise<Logit, T>(1, 1, true, false, true);
  check_pointwise<Logit, T>(20, 33, true, true, false);
  check_pointwise<Logit, T>(5, 3001, true, true, true);
}

TEST_CASE("Losses of elements have the same bits in any order") {
  check_in_all_orders([] { return check_pointwise<Logit, f16>(9, 77, true, true, true); });
  check_in_all_orders([] { return check_pointwise<Squared, float>(3, 2050, true, true, false); });
}

namespace {

template <class T>
Bytes check_column_sums(std::int64_t rows, int columns, bool accumulate, int gap = 0) {
  std::mt19937 draws(static_cast<unsigned>(rows * 31 + columns));
  const int stride = columns + gap;
  Array<T> x = random<T>(draws, rows * stride, 1);
  Array<float> to = random<float>(draws, columns);
  std::vector<double> expected = accumulate ? widened(to) : std::vector<double>(to.size());
  for (std::size_t i = 0; i < x.size(); ++i)
    if (const std::size_t column = i % static_cast<std::size_t>(stride); column < to.size())
      expected[column] += wide(x[i]);
    else
      x[i] = static_cast<T>(std::numeric_limits<float>::quiet_NaN());  // belongs to no column
  Array<char> scratch(static_cast<std::size_t>(cuda::column_sums_scratch<T>(rows, columns, stride)));
  cuda::column_sums(nullptr, rows, columns, stride, x.data(), to.data(), accumulate, scratch.data());
  check_near("sums of columns", to, expected, 1e-6, 1e-6 * static_cast<double>(rows));
  return Bytes() << to;
}

}  // namespace

TEST_CASE_TEMPLATE("Sums of columns are those of plain loops", T, float, bf16, f16) {
  check_column_sums<T>(1, 1, false);
  check_column_sums<T>(3, 10, true);
  check_column_sums<T>(257, 64, false);
  check_column_sums<T>(100, 1000, true);
  check_column_sums<T>(2000, 3, false);
  check_column_sums<T>(40, 2051, false);
  check_column_sums<T>(70, 45, true, 19);
  check_column_sums<T>(70, 40, false, 24);
  check_column_sums<T>(300, 2051, true, 61);
  check_in_all_orders([] { return check_column_sums<T>(500, 24, true); });
}

TEST_CASE("A grid has room for the columns of the largest tensors") {
  for (const int columns : {4096 * 2048, 4096 * 2048 + 1, 2'000'000'000}) {
    CAPTURE(columns);
    const cuda::Columns c = cuda::share_columns<float>(8, columns);
    CHECK(emulation::may_start(nullptr, c.grid(), c.block(), 0) == cudaSuccess);
  }
}

TEST_CASE("The sum of a vector is taken in f64") {
  std::mt19937 draws(1);
  for (const std::int64_t n : {1, 31, 1024, 5000}) {
    const Array<float> x = random<float>(draws, n, 1000);
    double expected = 0, sum = 7;
    for (const float v : x) expected += wide(v);
    cuda::sum_vector(nullptr, n, x.data(), &sum, false);
    CHECK(sum == doctest::Approx(expected).epsilon(1e-14));
    cuda::sum_vector(nullptr, n, x.data(), &sum, true);
    CHECK(sum == doctest::Approx(2 * expected).epsilon(1e-14));
    check_in_all_orders([&] {
      Array<double> to(1);
      cuda::sum_vector(nullptr, n, x.data(), to.data(), false);
      return Bytes() << to;
    });
  }
}

TEST_CASE_TEMPLATE("Numbers are widened, scaled and narrowed", T, float, bf16, f16) {
  std::mt19937 draws(1);
  const float factor = 0.375f;
  for (const std::int64_t n : {1, 7, 8, 100, 5003}) {
    CAPTURE(n);
    const Array<T> from = random<T>(draws, n);
    Array<float> to(from.size(), NAN);
    cuda::widen_values<T>(nullptr, n, from.data(), to.data(), nullptr, false);
    check_near("widened", to, widened(from), 0, 0);
    cuda::widen_values<T>(nullptr, n, from.data(), to.data(), &factor, true);
    std::vector<double> expected = widened(from);
    for (double& x : expected) x *= 1.375;
    check_near("added", to, expected, 1e-6, 0);
    // The element behind the n values must not change.
    Array<T> back(from.size() + 1, round<T>(77));
    cuda::narrow_values<T>(nullptr, n, to.data(), back.data());
    int wrong = 0;
    for (std::size_t i = 0; i < from.size(); ++i) wrong += !(back[i] == T(to[i]));
    CHECK(wrong == 0);
    CHECK(wide(back.back()) == 77);
  }
}

TEST_CASE("Scaling says whether all is finite") {
  std::mt19937 draws(1);
  const float half = 0.5f, huge = 1e38f;
  for (const std::int64_t n : {1, 6, 3001}) {
    CAPTURE(n);
    const Array<float> before = random<float>(draws, n);
    Array<float> x = before;
    x.push_back(NAN);  // beyond the end
    int flag = 0;
    cuda::scale_and_check(nullptr, n, x.data(), &half, &flag);
    CHECK(flag == 0);
    x.pop_back();
    std::vector<double> expected = widened(before);
    for (double& v : expected) v *= 0.5;
    check_near("scaled", x, expected, 0, 0);
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()})
      for (const std::size_t at : {std::size_t{0}, x.size() / 2, x.size() - 1}) {
        Array<float> y = x;
        y[at] = bad;
        flag = 0;
        cuda::scale_and_check(nullptr, n, y.data(), &half, &flag);
        CHECK(flag == 1);
      }
    Array<float> y = x;
    y.back() = 1e3f;
    flag = 0;
    cuda::scale_and_check(nullptr, n, y.data(), &huge, &flag);
    CHECK(flag == 1);
    cuda::scale_and_check(nullptr, n, x.data(), &half, &flag);
    CHECK(flag == 1);  // an earlier finding is kept
  }
}
