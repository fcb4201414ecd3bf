// SANITIZE: none
// Schedules: the rate at each step against published formulas, and the refusal of invalid schedules.
#include <cmath>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "fixtures/fixtures.hpp"
#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/optim/schedule.hpp>

using namespace convoy;
using optim::Decay;
using optim::Schedule;

namespace {

std::vector<double> rates(const Schedule& schedule, std::int64_t steps, int world = 1) {
  schedule.check();
  std::vector<double> factors;
  for (std::int64_t step = 0; step < steps; ++step) factors.push_back(schedule.factor(step, world));
  return factors;
}

void same(const std::vector<double>& got, const std::vector<double>& expected) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == doctest::Approx(expected[i]).epsilon(1e-7));
}

std::string refusal(const Schedule& schedule) {
  try {
    schedule.check();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace

TEST_CASE("the rate rises in equal steps, then stays, and is scaled with the world size if asked for") {
  same(rates({}, 3), {1, 1, 1});
  same(rates({.warmup = 4}, 6), {0.25, 0.5, 0.75, 1, 1, 1});
  same(rates({.warmup = 2, .scale_with_world = true}, 3, 8), {4, 8, 8});
}

TEST_CASE("linear, cosine and polynomial decays go from the warm-up to the end of the run") {
  same(rates({.decay = Decay::linear, .total = 4}, 6), {1, 0.75, 0.5, 0.25, 0, 0});
  same(rates({.warmup = 2, .decay = Decay::linear, .total = 6, .end = 0.2f}, 8),
       {0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2});
  same(rates({.decay = Decay::cosine, .total = 4}, 5),
       {1, 0.5 + std::sqrt(0.125), 0.5, 0.5 - std::sqrt(0.125), 0});
  same(rates({.decay = Decay::cosine, .total = 2, .end = 0.5f}, 3), {1, 0.75, 0.5});
  same(rates({.decay = Decay::polynomial, .total = 4}, 5), {1, 0.5625, 0.25, 0.0625, 0});
  same(rates({.warmup = 1, .decay = Decay::polynomial, .total = 5, .end = 0.1f, .power = 0.5f}, 4),
       {1, 1, 0.1 + 0.9 * std::sqrt(0.75), 0.1 + 0.9 * std::sqrt(0.5)});
  CHECK(rates({.decay = Decay::polynomial, .total = 9, .power = 1}, 12) ==
        rates({.decay = Decay::linear, .total = 9}, 12));
}

TEST_CASE("rates are those of PyTorch's schedulers at each of a hundred steps") {
  const fixtures::File file("schedules.txt");
  const auto check = [&](const std::string& name, const Schedule& schedule) {
    CAPTURE(name);
    same(rates(schedule, 101), file[name + "/rates"].values);
  };
  check("warmup", {.warmup = 10});
  check("linear", {.decay = Decay::linear, .total = 80, .end = 0.2f});
  check("cosine", {.decay = Decay::cosine, .total = 100, .end = 0.1f});
  check("polynomial", {.decay = Decay::polynomial, .total = 80, .power = 1.5f});
  check("steps", {.decay = Decay::steps, .every = 30, .gamma = 0.5f});
  check("milestones", {.decay = Decay::milestones, .milestones = {30, 60, 80}});
}

TEST_CASE("BERT's schedule warms up over a tenth of the run") {
  const auto bert = rates(Schedule::warmed_up_linear(100), 101);
  CHECK(bert[0] == doctest::Approx(0.1));
  CHECK(bert[9] == 1.0);
  CHECK(bert[10] == 1.0);
  CHECK(bert[55] == doctest::Approx(0.5));
  CHECK(bert[100] == 0.0);
  CHECK(Schedule::warmed_up_linear(1000, 0.25).warmup == 250);
}

TEST_CASE("reductions come at equal distances after the warm-up, or at milestones of the run") {
  same(rates({.warmup = 1, .decay = Decay::steps, .every = 2, .gamma = 0.5f}, 6), {1, 1, 1, 0.5, 0.5, 0.25});
  same(rates({.decay = Decay::steps, .every = 1, .gamma = 0.5f}, 3), {1, 0.5, 0.25});
  // The schedule of Goyal et al. for ResNet-50 (epochs 30, 60 and 80), in which milestones count as in
  // torch.optim.lr_scheduler.MultiStepLR.
  same(rates({.decay = Decay::milestones, .milestones = {3, 6, 8}}, 10),
       {1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001});
  same(rates({.warmup = 2, .decay = Decay::milestones, .milestones = {3, 3}, .gamma = 0.5f}, 5),
       {0.5, 1, 1, 0.25, 0.25});
}

TEST_CASE("every decay has a name; unknown names and invalid schedules are refused") {
  for (const Decay decay : optim::decays) CHECK(optim::decay_of(optim::name_of(decay)) == decay);
  CHECK_THROWS_WITH_AS(optim::decay_of("exponential"), "schedule: there is no decay called exponential",
                       ConfigError);
  CHECK(fields::text_of(Schedule{.milestones = {3, 6}}).find("milestones=[3, 6]") != std::string::npos);
  CHECK(refusal({.warmup = -1}) == "schedule: the warm-up of -1 steps is negative");
  CHECK(refusal({.warmup = 5, .decay = Decay::polynomial, .total = 5}) ==
        "schedule: a decay needs a total of more steps than the warm-up of 5, not 5");
  CHECK(refusal({.decay = Decay::linear, .total = 5, .end = -0.5f}) ==
        "schedule: the factor at the end must be a number of at least 0, not -0.5");
  CHECK(refusal({.decay = Decay::cosine, .total = 5, .end = HUGE_VALF}) ==
        "schedule: the factor at the end must be a number of at least 0, not inf");
  CHECK(refusal({.decay = Decay::polynomial, .total = 5, .power = 0}) ==
        "schedule: a polynomial decay needs a positive power, not 0");
  CHECK(refusal({.decay = Decay::steps}) == "schedule: a decay in steps needs a positive interval, not 0");
  CHECK(refusal({.decay = Decay::steps, .every = 5, .gamma = -0.1f}) ==
        "schedule: the factor of each reduction must be 0 or more, not -0.1");
  CHECK(refusal({.decay = Decay::milestones, .milestones = {5}, .gamma = std::nanf("")}) ==
        "schedule: the factor of each reduction must be 0 or more, not nan");
  CHECK(refusal({.decay = Decay::steps, .every = 5, .gamma = HUGE_VALF}) ==
        "schedule: the factor of each reduction must be 0 or more, not inf");
  CHECK(refusal({.decay = Decay::milestones}) ==
        "schedule: a decay at milestones needs at least one of them");
  CHECK(refusal({.decay = Decay::milestones, .milestones = {5, 3}}) ==
        "schedule: milestones must be in ascending order");
  CHECK(refusal({.decay = Decay::milestones, .milestones = {-5, 3}}) ==
        "schedule: the milestone -5 is negative");
}
