// Averages: evaluates, predicts with and saves the averages of the parameters that optim::Ema keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/train/state.hpp>

namespace convoy::train {

namespace detail {

/// A state visitor that takes the averages of the parameters, by parameter name.
struct Averages {
  static constexpr std::string_view prefix = "optimizer.ema.";
  std::map<std::string, std::vector<float>, std::less<>> of;

  void tensor(std::string_view name, const Shape&, std::span<float> values) {
    if (name.starts_with(prefix))
      of[std::string(name.substr(prefix.size()))].assign(values.begin(), values.end());
  }
  void counter(std::string_view, std::int64_t&) {}
  void real(std::string_view, double&) {}
};

}  // namespace detail

/// Calls `work` while the parameters of a trainer are the averages that its optim::Ema keeps. Then it writes
/// the trained parameters back, with the same bits, also if `work` throws:
///
///     train::with_averages(trainer, [&] {
///       report = trainer.evaluate(test);
///       train::save_weights(trainer, "averages.safetensors");
///     });
///
/// Parameters that are not updated, such as frozen ones, equal their average. Running statistics remain those
/// of the trained parameters. All ranks call it together, between two steps; `work` must neither train nor
/// keep a checkpoint. Throws ConfigError if the optimizer keeps no averages, while servers that are separate
/// ranks serve, and after a `work` that has trained.
template <class Trainer, class Work>
void with_averages(Trainer& trainer, Work&& work) {
  detail::Averages averages;
  trainer.visit_state(averages, Visit::read);
  if (averages.of.empty())
    fail<ConfigError>("trainer: the optimizer ", trainer.optimizer_name(),
                      " keeps no averages of the parameters; use optim::Ema around its rule");
  const auto parameters = trainer.parameters();
  const std::int64_t steps = trainer.steps_done();
  std::vector<std::pair<std::size_t, std::vector<float>>> trained;
  const auto write_trained = [&] {
    for (const auto& [p, values] : trained) parameters[p].write(values);
  };
  try {
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const auto found = averages.of.find(parameters[p].name());
      if (found == averages.of.end()) continue;
      std::vector<float>& average = found->second;
      trained.emplace_back(p, parameters[p].values());
      // The state of an element that is never updated stays 0. The average of any other element contains a
      // part of its parameter, so that the average is 0 only if the parameter is.
      for (std::size_t i = 0; i < average.size(); ++i)
        if (average[i] == 0) average[i] = trained.back().second[i];
      parameters[p].write(average);
    }
    std::forward<Work>(work)();
    if (trainer.steps_done() != steps)
      fail<ConfigError>("trainer: the work of with_averages trained from step ", steps, " to step ",
                        trainer.steps_done(),
                        ", and the parameters are again those before it; train outside of it");
  } catch (...) {
    write_trained();
    throw;
  }
  write_trained();
}

}  // namespace convoy::train
