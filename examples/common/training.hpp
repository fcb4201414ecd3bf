// What every example trainer does once its model and data are chosen: sets up ranks, device, exchange,
// optimizer, checkpoints and report by the command line.
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
  std::string data = {};                           ///< its name in the report
  std::shared_ptr<const void> owner = {};          ///< of the data sets
  convoy::data::DatasetRef train = {}, test = {};  ///< without `test` nothing is evaluated
  std::string unit = {};                           ///< what a row holds `per_row` of: words, tokens
  double per_row = 0;                              ///< the mean over the rows; 0: nothing that is counted
  convoy::train::WeightsOptions weights = {};      ///< for the file of --weights
};

/// An example trainer.
struct Program {
  std::string name, about;
  std::vector<std::string> models;  ///< the values of --model, the default one first
  Options defaults = {};
  std::vector<OwnOption> options = {};
  /// Does something other than training if the options ask for it, and then returns true. Called before there
  /// are ranks.
  std::function<bool(const Options&)> instead = [](const Options&) { return false; };
  /// Called once in each process.
  std::function<Task(const Options&)> make;
};

/// The number of ranks that Open MPI's or MPICH's mpirun, srun or torchrun has started, this one included.
int launched_ranks();

/// Runs the whole program and returns its exit code. An error is reported in one line.
int run(int argc, char** argv, const Program& program);

}  // namespace examples
