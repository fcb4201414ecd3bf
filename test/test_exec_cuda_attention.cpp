// EMULATES
// Attention on the device equals plain loops in f64, in any order of blocks and threads.
#include <doctest/doctest.h>

#include "emulation/emulation.hpp"
#include "exec_cuda_support.hpp"
#include "sanitized.hpp"
#include <convoy/exec/cuda/kernel/attention.cuh>
#include <convoy/exec/cuda/kernel/attention_mask.cuh>
#include <convoy/exec/reference/reference.hpp>

using namespace convoy;
using namespace exec_cuda;
namespace cuda = convoy::exec::cuda;
namespace reference = convoy::exec::reference;

namespace {

struct AttentionCase {
  int rows = 1, heads = 2, queries = 5, keys = 5, key_features = 8, value_features = 8;
  bool causal = false, second = false;
  std::vector<i32> lengths = {};
  int gap = 8;  ///< elements between positions
  float dropout = 0;
};

template <class T>
struct AttentionRun {
  AttentionCase c;
  Array<T> part[3], gradient[3], y, dy, second;
  Array<float> kept, means;
  Array<i32> lengths;
  exec::Draws draws{{.seed = 3, .epoch = 2, .position = 40}, "attention"};
  cuda::AttentionTask<T> task;

  explicit AttentionRun(const AttentionCase& of) : c(of) {
    std::mt19937 numbers(static_cast<unsigned>(c.queries * 31 + c.keys));
    task.rows = c.rows;
    task.heads = c.heads;
    task.queries = c.queries;
    task.keys = c.keys;
    task.key_features = c.key_features;
    task.value_features = c.value_features;
    task.causal = c.causal;
    task.scale = 1.0f / std::sqrt(static_cast<float>(c.key_features));
    const int positions[3] = {c.queries, c.keys, c.keys},
              features[3] = {c.key_features, c.key_features, c.value_features};
    for (int p = 0; p < 3; ++p) {
      task.step[p] = c.heads * features[p] + c.gap;
      part[p] = random<T>(numbers, std::int64_t{c.rows} * positions[p] * task.step[p]);
      gradient[p].assign(part[p].size(), round<T>(NAN));
      task.part[p] = part[p].data();
      task.gradient[p] = gradient[p].data();
    }
    y.assign(static_cast<std::size_t>(c.rows * c.queries * c.heads * c.value_features), round<T>(NAN));
    dy = random<T>(numbers, static_cast<std::int64_t>(y.size()));
    if (c.second) second = random<T>(numbers, static_cast<std::int64_t>(y.size()));
    kept.assign(static_cast<std::size_t>(task.vectors()), NAN);
    means = kept;
    lengths.assign(c.lengths.begin(), c.lengths.end());
    task.rule = exec::DropoutRule(c.dropout);
    if (c.dropout > 0) task.draws = &draws;
    task.lengths = pointer(lengths);
    task.y = y.data();
    task.kept = kept.data();
    task.dy = dy.data();
    task.second = pointer(second);
    task.means = means.data();
  }

  void run() {
    cuda::attention_forward<T>(nullptr, task);
    cuda::attention_backward<T>(nullptr, task);
  }

  void check() {
    run();
    graph::Attention::Extents e;
    e.heads = c.heads;
    e.queries = c.queries;
    e.keys = c.keys;
    e.key_features = c.key_features;
    e.value_features = c.value_features;
    e.causal = c.causal;
    e.dropout = c.dropout;
    std::vector<double> wide_part[3], expected[3], result(y.size()), slope = widened(dy);
    reference::AttentionParts<const double> x;
    reference::AttentionParts<double> dx;
    for (int p = 0; p < 3; ++p) {
      wide_part[p] = widened(part[p]);
      expected[p].resize(part[p].size());
      x.part[p] = wide_part[p].data();
      dx.part[p] = expected[p].data();
      x.step[p] = dx.step[p] = task.step[p];
    }
    for (std::size_t i = 0; i < second.size(); ++i) slope[i] += wide(second[i]);
    reference::attention(e, c.rows, x, task.lengths, task.draws, result.data());
    reference::attention_backward(e, c.rows, x, task.lengths, task.draws, slope.data(), dx);
    const double eps = emulated::epsilon<T>;
    std::vector<double> room_of_y(y.size(), 2e-6);
    if (sizeof(T) == 2) {  // each probability is rounded by half of eps or, if subnormal in f16, by 2^-25
      std::vector<double> sizes = wide_part[2], sum_of_sizes(y.size());
      for (double& size : sizes) size = std::abs(size);
      x.part[2] = sizes.data();
      reference::attention(e, c.rows, x, task.lengths, task.draws, sum_of_sizes.data());
      for (std::size_t i = 0; i < y.size(); ++i) room_of_y[i] += eps / 2 * sum_of_sizes[i] + c.keys * 0x1p-23;
    }
    check_near("y", y, result, eps, room_of_y);
    for (int p = 0; p < 3; ++p) {
      std::vector<double> found, wanted;
      for (std::size_t i = 0; i < expected[p].size(); ++i) {
        if (static_cast<std::int64_t>(i) % task.step[p] >= task.step[p] - c.gap) {
          CHECK(std::isnan(wide(gradient[p][i])));
          continue;
        }
        found.push_back(wide(gradient[p][i]));
        wanted.push_back(expected[p][i]);
      }
      // A rounded result shifts the mean slope of its query. Slopes with a second part, probabilities and
      // their gradients are rounded before they are multiplied. In sums over queries these errors add up like
      // random ones.
      const double terms = p == 0 ? 1 : std::max(1.0, c.queries / 16.0);
      const double room = 2e-5 + (std::is_same_v<T, float> ? 0 : 4 * eps * std::sqrt(terms));
      REQUIRE(found.size() == wanted.size());
      for (std::size_t i = 0; i < wanted.size(); ++i)
        if (!(std::abs(found[i] - wanted[i]) <= eps * std::abs(wanted[i]) + room)) {
          FAIL_CHECK("gradient of part " << p << ", element " << i << ": " << found[i] << " and not "
                                         << wanted[i]);
          break;
        }
    }
  }

  static Bytes bytes(const AttentionCase& of) {
    AttentionRun run(of);
    run.run();
    return Bytes() << run.y << run.kept << run.gradient[0] << run.gradient[1] << run.gradient[2];
  }
};

}  // namespace

TEST_CASE_TEMPLATE("An attention is that of plain loops", T, float, bf16, f16) {
  if (sanitized && std::is_same_v<T, f16>) return;  // f16 accesses the memory that bf16 does
  const AttentionCase cases[] = {
      {.queries = 1, .keys = 1, .key_features = 1, .value_features = 1, .gap = 1},
      {.queries = 64, .keys = 64, .key_features = 64, .value_features = 64, .causal = true, .second = true},
      {.queries = 65, .keys = 63, .key_features = 16, .value_features = 24, .second = true},
      {.heads = 1, .queries = 63, .keys = 129, .key_features = 40, .value_features = 72, .causal = true},
      {.heads = 1, .queries = 100, .keys = 40, .key_features = 80, .value_features = 8, .causal = true},
      {.queries = 17, .keys = 70, .key_features = 7, .value_features = 67, .lengths = {65}, .gap = 3},
      {.rows = 4, .heads = 1, .queries = 66, .keys = 66, .causal = true, .lengths = {0, 1, 64, 65}},
      {.rows = 2, .queries = 67, .keys = 70, .causal = true, .lengths = {66, 70}, .dropout = 0.4f},
      {.rows = 3, .queries = 9, .keys = 7, .key_features = 5, .lengths = {7, 0, 3}, .gap = 0},
      {.heads = 1, .queries = 80, .keys = 90, .key_features = 96, .value_features = 90, .causal = true},
      {.queries = 70,
       .keys = 130,
       .key_features = 128,
       .value_features = 128,
       .second = true,
       .dropout = 0.2f},
      {.heads = 1, .queries = 130, .keys = 100, .key_features = 20, .value_features = 128, .causal = true},
      {.heads = 1, .queries = 20, .keys = 66, .key_features = 136, .value_features = 16, .causal = true},
  };
  for (const AttentionCase& c : cases) {
    CAPTURE(c.queries);
    CAPTURE(c.keys);
    CAPTURE(c.key_features);
    AttentionRun<T>(c).check();
  }
}

TEST_CASE_TEMPLATE("An attention of random extents is that of plain loops", T, float, bf16, f16) {
  if (sanitized && std::is_same_v<T, f16>) return;
  std::mt19937 draws(8);
  const auto below = [&](unsigned n) { return static_cast<int>(draws() % n); };
  for (int k = 0; k < (sanitized ? 4 : 12); ++k) {
    const int grain = k % 2 == 0 ? 8 : 1;
    AttentionCase c{.rows = 1 + below(2),
                    .heads = 1 + below(3),
                    .queries = 1 + below(k % 3 == 0 ? 90 : 20),
                    .keys = 1 + below(k % 3 == 1 ? 90 : 20),
                    .key_features = (1 + below(5)) * grain,
                    .value_features = (1 + below(5)) * grain,
                    .causal = below(2) == 0,
                    .second = below(2) == 0,
                    .dropout = below(3) == 0 ? 0.25f : 0.0f};
    if (below(2) == 0)
      for (int r = 0; r < c.rows; ++r) c.lengths.push_back(below(static_cast<unsigned>(c.keys + 1)));
    CAPTURE(k);
    CAPTURE(c.queries);
    CAPTURE(c.keys);
    AttentionRun<T>(c).check();
  }
}

TEST_CASE_TEMPLATE("An attention reads no padding, and makes no gradient that is not wanted", T, float,
                   bf16) {
  const AttentionCase c{.rows = 2, .heads = 1, .queries = 70, .keys = 70, .lengths = {66, 0}};
  AttentionRun<T> clean(c), padded(c);
  clean.run();
  for (const int p : {1, 2})
    for (int r = 0; r < 2; ++r)
      for (int at = (r * 70 + padded.lengths[static_cast<std::size_t>(r)]) * padded.task.step[p];
           at < (r + 1) * 70 * padded.task.step[p]; ++at)
        padded.part[p][static_cast<std::size_t>(at)] = round<T>(NAN);
  padded.run();
  CHECK((Bytes() << padded.y << padded.gradient[0] << padded.gradient[1] << padded.gradient[2]).all ==
        (Bytes() << clean.y << clean.gradient[0] << clean.gradient[1] << clean.gradient[2]).all);
  for (std::size_t i = clean.y.size() / 2; i < clean.y.size(); ++i) CHECK(wide(clean.y[i]) == 0);

  for (int wanted = 0; wanted < 8; ++wanted) {
    AttentionRun<T> some(c);
    for (int p = 0; p < 3; ++p)
      if ((wanted >> p & 1) == 0) some.task.gradient[p] = nullptr;
    some.run();
    for (int p = 0; p < 3; ++p) {
      const Array<T> none(some.gradient[p].size(), round<T>(NAN));
      CHECK((Bytes() << some.gradient[p]).all ==
            (Bytes() << ((wanted >> p & 1) != 0 ? clean.gradient[p] : none)).all);
    }
  }
}

TEST_CASE_TEMPLATE("Scores far apart neither overflow nor lose what is left of them", T, float, bf16) {
  AttentionRun<T> run({.heads = 1, .queries = 70, .keys = 70});
  for (const int p : {0, 1})
    for (T& x : run.part[p]) x = round<T>(wide(x) * 30);
  run.run();
  for (const T y : run.y) CHECK(std::abs(wide(y)) < 5);
  for (const float kept : run.kept) CHECK(std::isfinite(kept));
}

TEST_CASE_TEMPLATE("An attention has the same bits in any order", T, float, bf16) {
  for (const int features : {8, 5})
    check_in_all_orders([&] {
      return AttentionRun<T>::bytes({.rows = 2,
                                     .queries = 70,
                                     .keys = 66,
                                     .key_features = features,
                                     .causal = true,
                                     .second = true,
                                     .lengths = {66, 33},
                                     .dropout = 0.25f});
    });
}

TEST_CASE_TEMPLATE("The mask that cuDNN reads has the draws of each probability", T, float, bf16, f16) {
  for (const int keys : {1, 8, 60, 64, 66, 72, 136}) {
    CAPTURE(keys);
    AttentionRun<T> run({.rows = 3, .queries = 7, .keys = keys, .dropout = 0.3f});
    Array<T> mask(static_cast<std::size_t>(run.task.vectors() * keys), round<T>(NAN));
    cuda::write_attention_mask<T>(nullptr, run.task, mask.data());
    int wrong = 0;
    for (std::size_t i = 0; i < mask.size(); ++i) {
      const auto vector = static_cast<std::int64_t>(i) / keys, key = static_cast<std::int64_t>(i) % keys;
      const std::int64_t queries = run.c.heads * run.c.queries;
      const auto chunk = exec::chunk_of_keys(vector % queries, keys, key);
      const auto number = run.draws(vector / queries, chunk * exec::Draws::chunk + key % exec::Draws::chunk);
      wrong += wide(mask[i]) != (number < run.task.rule.threshold ? 0 : 1);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("Gradients of keys that are padding are made zero, and no others", T, float, bf16, f16) {
  for (const int gap : {8, 3}) {  // with and without vectors
    AttentionRun<T> run({.rows = 3, .keys = 9, .value_features = 16, .lengths = {4, 0, 9}, .gap = gap});
    cuda::write_attention_gradients_of_padding<T>(nullptr, run.task);
    for (const int part : {1, 2}) {
      const int features = run.c.heads * (part == 1 ? run.c.key_features : run.c.value_features);
      for (std::size_t i = 0; i < run.gradient[part].size(); ++i) {
        const int position = static_cast<int>(i) / run.task.step[part],
                  feature = static_cast<int>(i) % run.task.step[part];
        const bool padding =
            position % run.c.keys >= run.c.lengths[static_cast<std::size_t>(position / run.c.keys)];
        CHECK((wide(run.gradient[part][i]) == 0) == (padding && feature < features));
      }
    }
  }
}
