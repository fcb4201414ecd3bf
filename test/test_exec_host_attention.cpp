// NEEDS: host
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline
// ALONE
// Host's attention against plain loops in f64, with extents that are not multiples of a tile: the same bits
// for any number of threads; the elements that it never reads; and that it allocates nothing.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "allocations.hpp"
#include "exec_compare.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/exec/host/kernel/attention.hpp>
#include <convoy/graph/dynamic.hpp>

using namespace convoy;
namespace host = convoy::exec::host;
namespace reference = convoy::exec::reference;

namespace {

struct AttentionCase {
  int rows = 2, heads = 2, queries = 5, keys = 5, key_features = 8, value_features = 8;
  bool causal = false, second = false;
  std::vector<i32> lengths = {};
  float size = 1;  ///< of queries and keys
  float dropout = 0;
};

/// One attention with its gradients. Output arrays start as NaN.
struct AttentionRun {
  AttentionCase c;
  std::vector<float> part[3], gradient[3], y, log_sums, dy, second;
  Buffer<float> scratch;
  host::AttentionTask task;
  int threads;

  explicit AttentionRun(const AttentionCase& of, int team = 1) : c(of), threads(team) {
    Philox random{static_cast<std::uint64_t>(c.queries * 1000 + c.keys), 5};
    const auto draw = [&](std::int64_t count, float size) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& value : values) value = random.uniform(-size, size);
      return values;
    };
    const auto written = [](std::size_t count) { return std::vector<float>(count, NAN); };
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
      // Leave a gap between positions.
      task.step[p] = c.heads * features[p] + 3;
      part[p] = draw(c.rows * positions[p] * task.step[p], p == 2 ? 1 : c.size);
      gradient[p] = written(part[p].size());
      task.part[p] = part[p].data();
      task.gradient[p] = gradient[p].data();
    }
    y = written(static_cast<std::size_t>(c.rows * c.queries * c.heads * c.value_features));
    log_sums = written(static_cast<std::size_t>(c.rows * c.queries * c.heads));
    dy = draw(static_cast<std::int64_t>(y.size()), 1);
    if (c.second) second = draw(static_cast<std::int64_t>(y.size()), 1);
    task.drops = c.dropout > 0;
    task.rule = exec::DropoutRule(c.dropout);
    task.draws = exec::Draws({.seed = 3, .epoch = 2, .position = 40}, "attention");
    task.lengths = c.lengths.empty() ? nullptr : c.lengths.data();
    task.y = y.data();
    task.log_sums = log_sums.data();
    task.dy = dy.data();
    task.second = c.second ? second.data() : nullptr;
    scratch = Buffer<float>(
        static_cast<std::size_t>(threads * std::max(task.scratch_of_forward(), task.scratch_of_backward())));
    for (std::size_t i = 0; i < scratch.size(); ++i) scratch.data()[i] = NAN;
    task.scratch = scratch.data();
  }

  AttentionRun& run() {
    host::attention_forward(task, threads);
    host::attention_backward(task, threads);
    return *this;
  }

  /// A message about the first number that differs from plain loops; empty if there is none.
  std::string difference(double tolerance = 2e-6) {
    run();
    graph::Attention::Extents e;
    e.heads = c.heads;
    e.queries = c.queries;
    e.keys = c.keys;
    e.key_features = c.key_features;
    e.value_features = c.value_features;
    e.causal = c.causal;
    e.dropout = c.dropout;
    const exec::Draws* const draws = task.drops ? &task.draws : nullptr;
    std::vector<double> wide[3], expected[3], result(y.size()), slope(dy.begin(), dy.end());
    reference::AttentionParts<const double> x;
    reference::AttentionParts<double> dx;
    for (int p = 0; p < 3; ++p) {
      wide[p].assign(part[p].begin(), part[p].end());
      expected[p].resize(wide[p].size());
      x.part[p] = wide[p].data();
      dx.part[p] = expected[p].data();
      x.step[p] = dx.step[p] = task.step[p];
    }
    for (std::size_t i = 0; i < second.size(); ++i) slope[i] += static_cast<double>(second[i]);
    reference::attention(e, c.rows, x, task.lengths, draws, result.data());
    reference::attention_backward(e, c.rows, x, task.lengths, draws, slope.data(), dx);
    const auto compare = [&](const std::string& what, const std::vector<float>& found,
                             const std::vector<double>& wanted, std::int64_t step, std::int64_t used) {
      double largest = 1;
      for (const double value : wanted) largest = std::max(largest, std::abs(value));
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const bool gap = static_cast<std::int64_t>(i) % step >= used;
        const auto is = static_cast<double>(found[i]);
        if (gap ? !std::isnan(is) : !(std::abs(is - wanted[i]) <= tolerance * largest))
          return concat(what, " at ", i, " is ", is, ", not ", gap ? NAN : wanted[i]);
      }
      return std::string();
    };
    std::string wrong = compare("the result", y, result, 1, 1);
    for (int p = 0; p < 3 && wrong.empty(); ++p)
      wrong = compare(concat("the gradient of part ", p), gradient[p], expected[p], task.step[p],
                      task.step[p] - 3);
    return wrong;
  }

  bool same_bits(const AttentionRun& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(y, other.y) && same(log_sums, other.log_sums) && same(gradient[0], other.gradient[0]) &&
           same(gradient[1], other.gradient[1]) && same(gradient[2], other.gradient[2]);
  }
};

}  // namespace

TEST_CASE("host: an attention is that of plain loops, at the edges of tiles and of vectors") {
  const AttentionCase cases[] = {
      {.queries = 1, .keys = 1, .key_features = 1, .value_features = 1},
      {.queries = 64, .keys = 64, .key_features = 64, .value_features = 64, .causal = true},
      {.queries = 65, .keys = 63, .key_features = 16, .value_features = 17, .second = true},
      {.queries = 63, .keys = 129, .key_features = 19, .value_features = 3, .causal = true},
      {.queries = 130, .keys = 70, .key_features = 7, .value_features = 33, .causal = true, .second = true},
      {.queries = 17, .keys = 200, .key_features = 32, .value_features = 5, .lengths = {200, 65}},
      {.rows = 4, .queries = 80, .keys = 80, .causal = true, .lengths = {0, 1, 64, 79}},
      {.rows = 3, .queries = 70, .keys = 131, .causal = true, .lengths = {100, 131, 0}, .dropout = 0.4f},
      {.rows = 1, .heads = 5, .queries = 150, .keys = 150, .causal = true, .second = true, .lengths = {100}},
  };
  for (const AttentionCase& c : cases) {
    CAPTURE(c.queries);
    CAPTURE(c.keys);
    CHECK(AttentionRun(c).difference() == "");
    CHECK(AttentionRun(c, 3).difference() == "");
  }
}

TEST_CASE("host: an attention of random extents is that of plain loops") {
  Philox random{11};
  const auto below = [&](int n) { return static_cast<int>(random.below(static_cast<std::uint32_t>(n))); };
  for (int k = 0; k < 60; ++k) {
    AttentionCase c{.rows = 1 + below(3),
                    .heads = 1 + below(3),
                    .queries = 1 + below(k % 2 == 0 ? 20 : 140),
                    .keys = 1 + below(k % 3 == 0 ? 20 : 140),
                    .key_features = 1 + below(40),
                    .value_features = 1 + below(40),
                    .causal = below(2) == 0,
                    .second = below(2) == 0,
                    .dropout = below(3) == 0 ? 0.25f : 0.0f};
    if (below(2) == 0)
      for (int r = 0; r < c.rows; ++r) c.lengths.push_back(below(c.keys + 1));
    CAPTURE(k);
    CAPTURE(c.queries);
    CAPTURE(c.keys);
    CHECK(AttentionRun(c, 1 + k % 2).difference() == "");
  }
}

TEST_CASE("host: scores far apart neither overflow nor lose what is left of them") {
  for (const bool causal : {false, true})
    CHECK(AttentionRun({.queries = 90, .keys = 90, .causal = causal, .size = 30}).difference(3e-4) == "");
}

TEST_CASE("host: an attention has the same bits in every run and for every number of threads") {
  const AttentionCase c{
      .rows = 3, .heads = 3, .queries = 150, .keys = 140, .causal = true, .lengths = {140, 77, 0}};
  AttentionRun once(c);
  once.run();
  for (const int threads : {1, 2, 3, 5, 16}) CHECK(AttentionRun(c, threads).run().same_bits(once));
}

TEST_CASE("host: an attention reads no padding, and without a key it gives zeros") {
  const AttentionCase c{.rows = 2, .queries = 70, .keys = 70, .lengths = {66, 0}};
  AttentionRun clean(c);
  clean.run();
  AttentionRun padded(c);
  for (const int p : {1, 2})
    for (int r = 0; r < 2; ++r)
      for (std::int64_t at = (r * 70 + c.lengths[static_cast<std::size_t>(r)]) * padded.task.step[p];
           at < (r + 1) * 70 * padded.task.step[p]; ++at)
        padded.part[p][static_cast<std::size_t>(at)] = NAN;
  CHECK(padded.run().same_bits(clean));
  for (std::size_t i = clean.y.size() / 2; i < clean.y.size(); ++i) CHECK(clean.y[i] == 0);
  for (std::size_t i = clean.gradient[0].size() / 2; i < clean.gradient[0].size(); ++i)
    CHECK((clean.gradient[0][i] == 0 || std::isnan(clean.gradient[0][i])));  // NaN between positions
}

TEST_CASE("host: a gradient of an attention that is not wanted is not made") {
  const AttentionCase c{.queries = 70, .keys = 70, .causal = true};
  AttentionRun all(c);
  all.run();
  for (int wanted = 0; wanted < 8; ++wanted) {
    AttentionRun some(c);
    for (int p = 0; p < 3; ++p)
      if ((wanted >> p & 1) == 0) some.task.gradient[p] = nullptr;
    some.run();
    for (int p = 0; p < 3; ++p) {
      const std::vector<float> none(some.gradient[p].size(), NAN);
      const auto& expected = (wanted >> p & 1) != 0 ? all.gradient[p] : none;
      CHECK(std::memcmp(some.gradient[p].data(), expected.data(), expected.size() * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("host: long sequences attend as on the reference, and no step allocates") {
  const DynamicPlan dynamic([](auto& g) {
    const auto lengths = g.input("lengths", {}, {.dtype = DType::i32});
    auto x = g.layer_norm(g.input("x", {133, 24}));
    x = g.add(x, g.attention(x, x, x, {.heads = 3, .causal = true}));
    x = g.concat({x, g.attention(g.concat({x, x, x}), lengths, {.heads = 2})});
    g.output("value", x);
    g.loss(g.mse_loss(x, g.input("target", {133, 48})));
  });
  const Plan& plan = dynamic;
  CHECK(exec_compare::difference<exec::Host<f32>>(plan, {.batch = 3, .threads = 2}) == "");

  exec::Host<f32> e(plan, 3, {.threads = 2});
  exec_compare::randomize(e, plan, Philox{1, 2});
  const exec_compare::Batch batch(plan, 3, Philox{3, 4});
  const float scale = 1;
  const auto step = [&] {
    e.forward(batch, {});
    e.result();
    e.backward({&scale, 1}, [](std::int64_t) {});
  };
  step();
  const long before = allocations;
  step();
  CHECK(allocations == before);
}

TEST_CASE("exec: a length beyond the keys is refused in a sentence") {
  const DynamicPlan plan([](auto& g) {
    auto x = g.linear(g.input("x", {4, 6}), {.features = 6});
    x = g.attention(x, x, x, g.input("lengths", {}, {.dtype = DType::i32}), {.heads = 2});
    g.loss(g.mse_loss(x, g.input("target", {4, 6})));
  });
  const std::vector<float> x(2 * 24), target(2 * 24);
  std::vector<i32> lengths = {4, 5};
  const void* const fields[] = {x.data(), lengths.data(), target.data()};
  exec::Reference<float> e(plan, 2);
  CHECK_THROWS_WITH_AS(e.forward({fields, 2}, {}), "exec: the input 'lengths' of row 1 is 5, expected 0 to 4",
                       ExecError);
  lengths = {-1, 0};
  CHECK_THROWS_WITH_AS(e.forward({fields, 2}, {}),
                       "exec: the input 'lengths' of row 0 is -1, expected 0 to 4", ExecError);
  lengths = {0, 4};
  e.forward({fields, 2}, {});
}
