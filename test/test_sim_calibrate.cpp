// Calibration recovers the simulator's parameters from the times of some settings, and predicts other
// settings.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "near.hpp"
#include "sanitized.hpp"
#include <convoy/sim/cross_validation.hpp>

using namespace convoy;
using sim::Cell;
using sim::Role;
using sim::Scale;

namespace {

sim::Parameter positive(Role role, std::string of, std::string name, double start, double prior = 1) {
  return {role,
          std::move(of),
          {.name = std::move(name), .start = start, .scale = Scale::logarithmic, .prior = prior}};
}

// Two networks on machines of two kinds, with an exchange that backward does not hide.
sim::Source pair() {
  sim::Source source{.name = "pair"};
  source.workloads = {{"small", {4 << 20, 2 << 20, 1 << 20}}, {"large", {64 << 20, 32 << 20}}};
  source.known.name = "pair";
  source.known.inside = {sim::Wiring::ports, 1e-5, 1e-9};
  source.known.nic = {.count = 1, .alpha = 5e-5, .beta = 1e-8};
  source.exchange.comm = "hierarchical";
  source.exchange.overlap = false;
  source.exchange.segment_bytes = std::size_t{1} << 32;
  source.parameters = {positive(Role::sample_seconds, "small", "seconds of small", 1, 3),
                       positive(Role::sample_seconds, "large", "seconds of large", 1, 3),
                       positive(Role::speed, "fast", "speed of fast", 1),
                       positive(Role::sharing, "slow", "sharing of slow", 0.1, 2),
                       positive(Role::inside_rate, "", "rate inside", 1e9, 2),
                       positive(Role::nic_rate, "", "rate between", 1e8, 2),
                       positive(Role::launch, "", "launch", 1e-3, 2)};
  source.noise = 1e-3;
  return source;
}
const std::vector<double> truth{0.002, 0.011, 1.6, 0.12, 4e9, 1.17e8, 3e-3};

std::vector<Cell> cells_of(const sim::Source& source) {
  std::vector<Cell> cells;
  for (const char* workload : {"small", "large"})
    for (const int batch : {32, 64})
      for (const auto& machines : std::vector<std::vector<sim::Machine>>{{{"slow", 1}},
                                                                         {{"fast", 1}},
                                                                         {{"slow", 2}},
                                                                         {{"slow", 4}},
                                                                         {{"fast", 2}},
                                                                         {{"slow", 1}, {"fast", 1}},
                                                                         {{"slow", 3}, {"fast", 2}}})
        cells.push_back({workload, batch, machines});
  for (Cell& cell : cells) cell.seconds = sim::predict(source, truth, cell);
  return cells;
}

}  // namespace

TEST_CASE("a cell becomes a setting with the values of the parameters") {
  const sim::Source source = pair();
  const sim::Setting setting = sim::setting_of(source, truth, {"large", 10, {{"slow", 3}, {"fast", 2}}});
  REQUIRE(setting.cluster.nodes.size() == 2);
  CHECK(setting.cluster.nodes[0].ranks == 3);
  CHECK(setting.cluster.nodes[0].speed == test::near(1 / 1.08));  // 3 workers: 1 + 0.12 (1 - 1/3)
  CHECK(setting.cluster.nodes[1].speed == test::near(1.6));
  CHECK(setting.cluster.inside.beta == test::near(1 / 4e9));
  CHECK(setting.cluster.nic.beta == test::near(1 / 1.17e8));
  CHECK(setting.cluster.nic.alpha == test::near(5e-5));
  CHECK(setting.cluster.launch == test::near(3e-3));
  CHECK(setting.work.alone() == test::near(0.11));
  REQUIRE(setting.work.buckets.size() == 2);
  CHECK(setting.work.buckets[0].ready == setting.work.backward);
  // Equal nodes become one entry, which the simulator can fold.
  CHECK(sim::setting_of(source, truth, {"large", 10, {{"slow", 3}, {"slow", 3}}}).cluster.nodes.size() == 1);
}

TEST_CASE("the share of gradients that backward does not hide is taken from the end of the gradients") {
  sim::Source source = pair();
  source.exchange.overlap = true;
  source.parameters = {positive(Role::sample_seconds, "large", "seconds", 1),
                       {Role::late, "", {.name = "late", .start = 0.5, .lower = 0, .upper = 1}}};
  const auto buckets = [&](double late) {
    return sim::setting_of(source, std::vector<double>{0.01, late}, {"large", 3, {{"slow", 2}}}).work.buckets;
  };
  const double backward = 0.02;
  REQUIRE(buckets(0.5).size() == 3);
  CHECK(buckets(0.5)[0].bytes == 48 << 20);
  CHECK(buckets(0.5)[0].ready == test::near(backward / 2));
  CHECK(buckets(0.5)[1].bytes == 16 << 20);
  CHECK(buckets(0.5)[1].ready == test::near(backward));
  CHECK(buckets(0.5)[2].ready == test::near(backward));
  CHECK(buckets(0).size() == 2);
  CHECK(buckets(0)[0].ready == test::near(backward * 2 / 3));
  CHECK(buckets(1).size() == 2);
  CHECK(buckets(1)[0].ready == test::near(backward));
}

TEST_CASE("no rounding makes gradients final after backward has ended") {
  sim::Source source = pair();
  source.exchange.overlap = true;
  source.workloads = {{"odd", {4 * 1'234'567, 4 * 7'654'321}}};
  source.parameters = {positive(Role::sample_seconds, "odd", "seconds", 1)};
  for (int k = 1; k <= 100; ++k)
    CHECK_NOTHROW(
        sim::setting_of(source, std::vector<double>{0.001 * k}, {"odd", 3, {{"slow", 2}}}).work.check());
}

TEST_CASE("all parameters are found again, from starts that are far off") {
  const sim::Source source = pair();
  const sim::Fit fit = sim::calibrate(source, cells_of(source));
  CHECK(fit.converged);
  for (std::size_t i = 0; i < truth.size(); ++i) {
    CAPTURE(fit.names[i]);
    CHECK(fit.values[i] == test::near(truth[i], 0.02));
    CHECK(fit.errors[i] < 0.1);
  }
}

TEST_CASE("any half of the settings predicts the other half") {
  const sim::Source source = pair();
  const std::vector<Cell> cells = cells_of(source);
  for (std::uint64_t seed = 1; seed <= (sanitized ? 1 : 3); ++seed) {
    CAPTURE(seed);
    const std::vector<bool> fitted = sim::draw_half(source, cells, seed);
    CHECK(std::count(fitted.begin(), fitted.end(), true) == 14);
    CHECK(fitted == sim::draw_half(source, cells, seed));
    const sim::Trial trial = sim::try_out(source, cells, fitted);
    const sim::Errors errors = sim::errors_of(trial.predictions);
    CHECK(errors.cells == 14);
    CHECK(errors.worst < 0.01);
    CHECK(errors.median <= errors.worst);
  }
  CHECK(sim::draw_half(source, cells, 1) != sim::draw_half(source, cells, 2));
}

TEST_CASE("a setting that does not fit is found by leaving it out") {
  sim::Source source = pair();
  std::vector<Cell> cells = cells_of(source);
  std::erase_if(cells, [](const Cell& cell) { return cell.batch == 32; });
  Cell& odd = cells[3];
  odd.seconds *= 1.3;
  source.noise = 0.05;
  const std::vector<sim::Prediction> predictions = sim::leave_one_out(source, cells);
  REQUIRE(predictions.size() == cells.size());
  const sim::Errors errors = sim::errors_of(predictions);
  CHECK(errors.worst_cell == "small, batch 64, 4 slow");
  CHECK(errors.worst == test::near(0.3, 0.2));
}

TEST_CASE("nodes of varying speed are as slow as the expected slowest of their number") {
  sim::Source source = pair();
  source.parameters = {positive(Role::sample_seconds, "small", "seconds", 1, 3),
                       positive(Role::spread, "", "spread", 0.05, 2)};
  const std::vector<double> values{0.01, 0.1};
  std::vector<Cell> cells;
  for (const int nodes : {1, 2, 4})
    cells.push_back({"small", 100, std::vector<sim::Machine>(static_cast<std::size_t>(nodes), {"slow", 1})});
  for (Cell& cell : cells) cell.seconds = sim::predict(source, values, cell);
  CHECK(cells[0].seconds == test::near(1));
  // The expected maximum of 2 and 4 normal draws: 0.564 and 1.029.
  const sim::Setting two = sim::setting_of(source, values, cells[1]);
  const sim::Setting four = sim::setting_of(source, values, cells[2]);
  CHECK(1 / two.cluster.nodes.back().speed == test::near(1.0564, 0.005));
  CHECK(1 / four.cluster.nodes.back().speed == test::near(1.1029, 0.005));
  CHECK(sim::calibrate(source, cells)["spread"] == test::near(0.1, 0.02));
}

TEST_CASE("settings of a machine whose figures vary more count less") {
  sim::Source source = pair();
  source.parameters = {positive(Role::sample_seconds, "small", "seconds", 1, 3)};
  source.noise = 0.01;
  source.noise_of = {{"fast", 0.03}};
  CHECK(source.expected_noise({"small", 1, {{"slow", 2}}}) == test::near(0.01));
  CHECK(source.expected_noise({"small", 1, {{"slow", 3}, {"fast", 1}}}) == test::near(std::sqrt(3e-4)));
  // The first measurement is 1 second, the second 1.1. The first has a third of the noise, so nine times the
  // weight.
  const std::vector<Cell> cells{{"small", 1, {{"slow", 1}}, 1.0, 1}, {"small", 1, {{"fast", 1}}, 1.1, 1}};
  const sim::Fit fit = sim::calibrate(source, cells);
  CHECK(fit["seconds"] == test::near(std::pow(1.1, 0.1), 1e-4));
  CHECK(fit.residuals[1] == test::near(-0.9 * std::log(1.1) / 0.03, 1e-3));
}

TEST_CASE("a parameter that the settings do not determine is named in a sentence") {
  const sim::Source source = pair();
  std::vector<Cell> cells = cells_of(source);
  CHECK(sim::unmeasured(source, cells).empty());
  std::vector<Cell> one_node = cells;
  std::erase_if(one_node, [](const Cell& cell) { return cell.machines.size() > 1; });
  const std::string sentence =
      "the measured settings do not determine \"rate between\"; also measure a setting of several nodes";
  CHECK(sim::unmeasured(source, one_node) == sentence);
  // The parameter stays at its prior, with the prior's uncertainty.
  const sim::Fit fit = sim::calibrate(source, one_node);
  CHECK(fit["rate between"] == test::near(1e8, 1e-3));
  CHECK(fit.errors[5] == test::near(2, 1e-3));
  CHECK(fit["rate inside"] == test::near(4e9, 0.02));
  sim::Source certain = source;
  certain.parameters[5].unknown.prior = 0;
  CHECK_THROWS_WITH_AS(sim::calibrate(certain, one_node), sentence.c_str(), ConfigError);
  std::vector<Cell> small = cells;
  std::erase_if(small, [](const Cell& cell) { return cell.workload == "large"; });
  CHECK_THROWS_WITH_AS(
      sim::calibrate(source, small),
      "the measured settings do not determine \"seconds of large\"; also measure a setting of that workload",
      ConfigError);
  std::vector<Cell> slow = cells;
  std::erase_if(slow, [](const Cell& cell) { return cell.machines[0].kind == "fast"; });
  CHECK_THROWS_WITH_AS(sim::draw_half(source, slow, 1),
                       "the measured settings do not determine \"speed of fast\"; also measure a setting of "
                       "one worker of that "
                       "machine, and one of the same workload on another machine",
                       ConfigError);
  // A workload that was measured on one kind of machine only does not determine that machine's speed.
  std::vector<Cell> apart = cells;
  std::erase_if(apart, [](const Cell& cell) {
    return (cell.workload == "large") != (cell.machines[0].kind == "fast") || cell.machines.size() > 1;
  });
  CHECK(
      sim::unmeasured(source, apart).starts_with("the measured settings do not determine \"speed of fast\""));
  cells[0].seconds = 0;
  CHECK_THROWS_WITH_AS(sim::calibrate(source, cells),
                       "small, batch 32, 1 slow has no measured time of a step: 0 seconds", ConfigError);
  CHECK_THROWS_WITH_AS(sim::predict(source, truth, {"huge", 1, {{"slow", 1}}}),
                       "the source \"pair\" has no workload \"huge\"; it has small, large", ConfigError);
}
