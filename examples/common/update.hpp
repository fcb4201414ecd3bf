// The optimizer and the learning-rate schedule that the options choose.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "options.hpp"
#include <convoy/core/error.hpp>
#include <convoy/optim/registry.hpp>
#include <convoy/optim/schedule.hpp>

namespace examples {

/// Throws ConfigError for an option that the rule does not have.
inline convoy::optim::Any::Options optimizer_of(const Options& o) {
  std::vector<convoy::optim::Setting> settings = {{"lr", o.lr}};
  for (const auto& [name, value] : {std::pair("momentum", o.momentum),
                                    {"beta1", o.beta1},
                                    {"beta2", o.beta2},
                                    {"epsilon", o.epsilon},
                                    {"weight_decay", o.weight_decay},
                                    {"trust", o.trust}})
    if (value) settings.push_back({name, *value});
  return convoy::optim::make(o.optimizer, settings);
}

/// Throws ConfigError for an option that the decay does not use.
inline void expect_decay_uses_its_options(const Options& o) {
  const Options unset;
  const auto expect = [&](bool set, const char* option, const char* decays) {
    if (set && std::string_view(decays).find(o.decay) == std::string_view::npos)
      convoy::fail<convoy::ConfigError>("--decay ", o.decay, " does not use ", option,
                                        ", which is an option of ", decays);
  };
  expect(o.decay_end != unset.decay_end, "--decay-end", "linear, cosine and polynomial");
  expect(o.decay_power != unset.decay_power, "--decay-power", "polynomial");
  expect(o.decay_gamma != unset.decay_gamma, "--decay-gamma", "steps and milestones");
  expect(o.decay_every != unset.decay_every, "--decay-every", "steps");
  expect(!o.milestones.empty(), "--milestones", "milestones");
}

/// The learning-rate schedule of a run of `total` steps. Throws ConfigError if options contradict the decay.
inline convoy::optim::Schedule schedule_of(const Options& o, std::int64_t total) {
  expect_decay_uses_its_options(o);
  if (o.decay == "steps" && o.decay_every == 0)
    convoy::fail<convoy::ConfigError>("--decay steps needs --decay-every, the steps between two reductions");
  if (o.decay == "milestones" && o.milestones.empty())
    convoy::fail<convoy::ConfigError>("--decay milestones needs --milestones, the steps of the reductions");
  const auto share = static_cast<std::int64_t>(o.warmup_share * static_cast<double>(total));
  return {.warmup = o.warmup > 0 ? o.warmup : share,
          .decay = convoy::optim::decay_of(o.decay),
          .total = total,
          .end = o.decay_end,
          .power = o.decay_power,
          .every = o.decay_every,
          .milestones = o.milestones,
          .gamma = o.decay_gamma,
          .scale_with_world = o.scale_lr};
}

}  // namespace examples
