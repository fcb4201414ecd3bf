// What every example trainer does once its model and its data are chosen: ranks, a device, an exchange, an
// optimizer, checkpoints and a report, as the command line says.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "options.hpp"
#include <convoy/data/dataset_ref.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/train/weights_options.hpp>

namespace examples {

/// A model, and what it is trained on.
struct Task {
  const convoy::Plan& plan;
  std::string data = {};                           ///< what the report calls it
  std::shared_ptr<const void> owner = {};          ///< of the data sets
  convoy::data::DatasetRef train = {}, test = {};  ///< nothing is evaluated without the latter
  std::string unit = "samples";                    ///< what a row holds `per_row` of: words, tokens
  double per_row = 1;
  convoy::train::WeightsOptions weights = {};  ///< of the file of --weights
};

/// An example trainer.
struct Program {
  std::string name, about;
  std::vector<std::string> models;  ///< the values of --model, the default one first
  Options defaults = {};
  std::vector<OwnOption> options = {};
  /// Does something else with the options than train, and says so by true. It is called before there are
  /// ranks.
  std::function<bool(const Options&)> instead = [](const Options&) { return false; };
  /// Each process calls it once.
  std::function<Task(const Options&)> make;
};

/// The whole program: its exit code. One line says what went wrong.
int run(int argc, char** argv, const Program& program);

}  // namespace examples
