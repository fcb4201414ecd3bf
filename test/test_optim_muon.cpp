// ALSO: CONVOY_ISA=baseline CONVOY_ISA=avx2
// Muon against PyTorch's, and a hundred steps against plain loops in f64: matrices in every layout of the
// arena, and next to parameters that AdamW updates.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "fixtures/fixtures.hpp"
#include "optim_support.hpp"
#include <convoy/optim/muon.hpp>
#include <convoy/optim/registry.hpp>

using namespace optim_test;

namespace {

using Doubles = std::vector<double>;

const fixtures::File& file() {
  static const fixtures::File read("muon.txt");
  return read;
}

optim::Muon::Options given(const std::string& name) {
  const auto option = [&](const char* key) { return static_cast<float>(file()[name + "/" + key].scalar()); };
  return {.lr = option("lr"),
          .momentum = option("momentum"),
          .nesterov = option("nesterov") != 0,
          .weight_decay = option("weight_decay"),
          .match_adamw = option("adjust_lr_fn") != 0,
          .iterations = static_cast<int>(option("ns_steps"))};
}

// The index of row i and column j in a matrix stored in panels.
std::size_t place(std::int64_t i, std::int64_t j, std::int64_t columns, std::int64_t panel) {
  return static_cast<std::size_t>((i / panel * columns + j) * panel + i % panel);
}

std::vector<float> in_panels(const std::vector<float>& values, std::int64_t rows, std::int64_t columns,
                             std::int64_t panel) {
  std::vector<float> stored(static_cast<std::size_t>((rows * columns + 15) / 16 * 16));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      stored[place(i, j, columns, panel)] = values[static_cast<std::size_t>(i * columns + j)];
  return stored;
}

// The largest difference from the file's `what`, over all updates that the file records.
double difference(const std::string& name, const std::string& what, std::int64_t panel) {
  const auto& shape = file()[name + "/shape"].values;
  const auto& updates_seen = file()["seen"].values;
  const auto rows = static_cast<std::int64_t>(shape[0]), columns = static_cast<std::int64_t>(shape[1]),
             count = rows * columns;
  optim::ArenaTensor tensor{{0, count}, {}, 0};
  tensor.rows = rows;
  const Range whole{0, (count + 15) / 16 * 16};
  const optim::Group group;
  memory::Host space;
  optim::Arena<optim::Muon> arena(space, given(name), {&tensor, 1}, {&group, 1});
  arena.set_panels({&panel, 1});
  arena.own({&whole, 1});
  auto parameters = in_panels(fixtures::updates::start(0, count), rows, columns, panel);
  const auto off = [&](const std::vector<float>& got, const double* expected) {
    double largest = 0;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        largest = std::max(largest, std::abs(static_cast<double>(got[place(i, j, columns, panel)]) -
                                             expected[i * columns + j]));
    return largest;
  };
  double largest = 0;
  std::size_t seen = 0;
  for (std::int64_t t = 1; seen < updates_seen.size(); ++t) {
    arena.begin(t, given(name).lr);
    const auto gradient = in_panels(fixtures::updates::gradient(0, count, t), rows, columns, panel);
    arena.update(whole, 1.0f, parameters.data(), gradient.data());
    if (updates_seen[seen] == static_cast<double>(t))
      largest = std::max(largest, off(parameters, file()[name + "/" + what].values.data() +
                                                      static_cast<std::int64_t>(seen++) * count));
  }
  CHECK(arena.state_bytes() == static_cast<std::size_t>(whole.end) * sizeof(float));
  CHECK(off(all_state(arena), file()[name + "/buffer"].values.data()) < 1e-6);
  return largest;
}

/// Muon and AdamW in f64, for one tensor.
struct Plain {
  optim::Muon::Options o;
  std::int64_t rows, columns, all_columns;  // rows is 0 for a tensor that is no matrix
  double decay;
  Doubles p, m, v;

  void step(std::int64_t t, const Doubles& g, double lr) {
    m.resize(p.size());
    v.resize(p.size());
    if (rows == 0) return adamw(t, g, lr * static_cast<double>(o.rest));
    const double keep = static_cast<double>(o.momentum);
    Doubles d(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = keep * m[i] + (1 - keep) * g[i];
      d[i] = o.nesterov ? keep * m[i] + (1 - keep) * g[i] : m[i];
    }
    double squares = 0;
    for (const double x : d) squares += x * x;
    for (double& x : d) x /= std::sqrt(squares);
    const auto across = static_cast<std::size_t>(columns), down = static_cast<std::size_t>(rows);
    for (int i = 0; i < o.iterations; ++i) {
      const Doubles a = times_transpose(d, down, across), aa = times(a, a, down, down, down);
      Doubles b(a.size());
      for (std::size_t e = 0; e < a.size(); ++e) b[e] = -4.7750 * a[e] + 2.0315 * aa[e];
      Doubles next = times(b, d, down, down, across);
      for (std::size_t e = 0; e < d.size(); ++e) d[e] = 3.4445 * d[e] + next[e];
    }
    const auto r = static_cast<double>(rows), c = static_cast<double>(all_columns);
    const double rate =
        lr * (o.match_adamw ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c)));
    for (std::size_t i = 0; i < p.size(); ++i) p[i] -= lr * decay * p[i] + rate * d[i];
  }

 private:
  void adamw(std::int64_t t, const Doubles& g, double lr) {
    const double b1 = static_cast<double>(o.beta1), b2 = static_cast<double>(o.beta2);
    for (std::size_t i = 0; i < p.size(); ++i) {
      m[i] = b1 * m[i] + (1 - b1) * g[i];
      v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
      const double first = m[i] / (1 - std::pow(b1, static_cast<double>(t)));
      const double second = v[i] / (1 - std::pow(b2, static_cast<double>(t)));
      p[i] -= lr * decay * p[i] + lr * first / (std::sqrt(second) + static_cast<double>(o.epsilon));
    }
  }
  static Doubles times(const Doubles& a, const Doubles& b, std::size_t m, std::size_t k, std::size_t n) {
    Doubles c(m * n);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t d = 0; d < k; ++d)
        for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * k + d] * b[d * n + j];
    return c;
  }
  static Doubles times_transpose(const Doubles& a, std::size_t m, std::size_t k) {
    Doubles c(m * m);
    for (std::size_t i = 0; i < m; ++i)
      for (std::size_t j = 0; j < m; ++j)
        for (std::size_t d = 0; d < k; ++d) c[i * m + j] += a[i * k + d] * a[j * k + d];
    return c;
  }
};

/// A tall matrix in panels of 4 with dead taps, a bias, a table that its group treats elementwise, and a wide
/// matrix.
struct Model {
  std::vector<optim::ArenaTensor> tensors = {{{0, 24 * 9}, {512, 512 + 24 * 3}, 0, 24, 4},
                                             {{224, 224 + 13}, {}, 1, 0, 1},
                                             {{240, 240 + 5 * 8}, {}, 2, 5, 1},
                                             {{288, 288 + 7 * 30}, {}, 0, 7, 1}};
  std::vector<optim::Group> groups = {{}, {.weight_decay = 0.0f}, {.by_element = true}};
  Range whole{0, 512};
  std::int64_t size = 592;
};

}  // namespace

TEST_CASE("Muon computes PyTorch's updates, in every layout of a matrix") {
  for (const std::string& name : file().cases()) {
    CAPTURE(name);
    CHECK(difference(name, "parameters.0", 1) < 2e-5);
    CHECK(difference(name, "parameters.0", 2) < 2e-5);
    CHECK(difference(name, "rough", 1) < 0.02);  // PyTorch multiplies in bfloat16
  }
}

TEST_CASE("a hundred steps of Muon, and of AdamW for all else, equal plain loops in f64") {
  for (const bool match : {true, false})
    for (const int threads : {1, 3}) {
      const optim::Muon::Options options{
          .lr = 0.01f, .weight_decay = 0.2f, .match_adamw = match, .rest = 0.3f};
      const Model model;
      memory::Host space(std::pmr::new_delete_resource(), threads);
      optim::Arena<optim::Any> arena(space, options, model.tensors, model.groups, {.max_norm = 12});
      arena.own({&model.whole, 1});
      Philox random(3);
      std::vector<float> parameters(static_cast<std::size_t>(model.size));
      std::vector<Plain> plain;
      const auto place_of = [&](const optim::ArenaTensor& t, const Plain& own, std::size_t e) {
        const auto begin = static_cast<std::size_t>(t.live.begin);
        if (own.rows == 0) return begin + e;
        const auto i = static_cast<std::int64_t>(e);
        return begin + place(i / own.columns, i % own.columns, own.columns, t.panel);
      };
      for (const auto& t : model.tensors) {
        const optim::Group& group = model.groups[static_cast<std::size_t>(t.group)];
        const std::int64_t rows = group.by_element ? 0 : t.rows, size = t.live.size();
        Plain own{options,
                  rows,
                  rows > 0 ? size / rows : size,
                  rows > 0 ? (size + t.dead.size()) / rows : size,
                  static_cast<double>(group.weight_decay.value_or(options.weight_decay)),
                  {},
                  {},
                  {}};
        for (std::int64_t e = 0; e < size; ++e) {
          own.p.push_back(static_cast<double>(random.normal()));
          parameters[place_of(t, own, static_cast<std::size_t>(e))] = static_cast<float>(own.p.back());
        }
        plain.push_back(own);
      }
      std::fill(parameters.begin() + 512, parameters.begin() + 584, 1.0f);
      for (std::int64_t step = 1; step <= 100; ++step) {
        const double lr = 0.01 / static_cast<double>(1 + step % 3);
        std::vector<float> gradients(parameters.size());
        std::vector<Doubles> each;
        double squares = 0;
        for (std::size_t t = 0; t < plain.size(); ++t) {
          each.emplace_back();
          for (std::size_t e = 0; e < plain[t].p.size(); ++e) {
            const float g = random.normal();
            each.back().push_back(static_cast<double>(g) / 2);  // the scale
            squares += each.back().back() * each.back().back();
            gradients[place_of(model.tensors[t], plain[t], e)] = g;
          }
        }
        const double factor = std::min(1.0, 12 / (std::sqrt(squares) + 1e-6));
        for (std::size_t t = 0; t < plain.size(); ++t) {
          for (double& g : each[t]) g *= factor;
          plain[t].step(step, each[t], lr);
        }
        arena.begin(step, static_cast<float>(lr));
        arena.arrived(model.whole, 0.5f, parameters.data(), gradients.data());
        CHECK(arena.decide(parameters.data()) == Decision::apply);
        for (const Range part : {Range{0, 240}, Range{240, 512}})  // two buckets
          arena.update(part, 0.5f, parameters.data() + part.begin, gradients.data() + part.begin);
        arena.decay_dead(step, static_cast<float>(lr), parameters.data());
      }
      double largest = 0, moved = 0;
      for (std::size_t t = 0; t < plain.size(); ++t)
        for (std::size_t e = 0; e < plain[t].p.size(); ++e) {
          const auto got = static_cast<double>(parameters[place_of(model.tensors[t], plain[t], e)]);
          largest = std::max(largest, std::abs(got - plain[t].p[e]));
          moved = std::max(moved, std::abs(got));
        }
      CHECK(moved > 0.1);
      CHECK(largest < 3e-5);
      double kept = 1;  // of the dead taps, by decay alone
      for (int step = 1; step <= 100; ++step) kept *= 1 - 0.01 / (1 + step % 3) * 0.2;
      for (std::size_t i = 512; i < 584; ++i) CHECK(parameters[i] == doctest::Approx(kept).epsilon(1e-5));
      for (std::size_t i : {216u, 223u, 237u, 498u, 511u}) CHECK(parameters[i] == 0.0f);  // the gaps
    }
}

TEST_CASE("a matrix has one number of state per element, all other parameters have two") {
  const Model model;
  memory::Host space;
  optim::Arena<optim::Muon> arena(space, {}, model.tensors, model.groups);
  arena.own({&model.whole, 1});
  std::vector<std::pair<std::string, Range>> seen;
  arena.visit_state(
      [&](std::string_view slot, Range range, float*, std::int64_t) { seen.emplace_back(slot, range); });
  const std::vector<std::pair<std::string, Range>> expected = {
      {"exp_avg", {0, 224}},   {"exp_avg", {224, 288}},    {"exp_avg", {288, 512}},
      {"exp_avg", {512, 584}}, {"exp_avg_sq", {224, 288}}, {"exp_avg_sq", {512, 584}}};
  CHECK(seen == expected);
  CHECK(arena.state_bytes() == (224 + 224 + 2 * 64 + 2 * 72) * sizeof(float));
}

TEST_CASE("a rank that would update a part of a matrix is refused") {
  const Model model;
  memory::Host space;
  optim::Arena<optim::Muon> arena(space, {}, model.tensors, model.groups);
  const std::vector<Range> shard = {{0, 128}};
  std::string said;
  try {
    arena.own(shard);
  } catch (const ConfigError& error) {
    said = error.what();
  }
  CHECK(said ==
        "optimizer muon updates whole matrices, but of the matrix of elements 0 to 216 this rank would "
        "update only 0 to 128");
  arena.own({&model.whole, 1});
  std::vector<float> parameters(512), gradients(512);
  arena.begin(1, 0.1f);
  CHECK_THROWS_WITH_AS(arena.update({0, 64}, 1.0f, parameters.data(), gradients.data()),
                       "optimizer muon: elements 0 to 64 are a part of a matrix, which is updated as a whole",
                       Error);
  CHECK_THROWS_WITH_AS(optim::make("muon", {{"momentum", 1}}),
                       "optimizer muon: the momentum must be from 0 to less than 1, not 1", ConfigError);
  CHECK_THROWS_WITH_AS(optim::make("muon", {{"iterations", 0}}),
                       "optimizer muon: iterations must be at least 1, not 0", ConfigError);
}
