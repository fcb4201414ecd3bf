#include "calibrate.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "../../examples/common/command_line.hpp"
#include "../../examples/common/json_text.hpp"
#include "../../examples/common/separate_files.hpp"
#include "sources.hpp"
#include <convoy/core/file.hpp>
#include <convoy/sim/cluster_file.hpp>
#include <convoy/sim/cross_validation.hpp>

namespace bench {
namespace {

using namespace convoy;
using Json = nlohmann::ordered_json;

struct Options {
  std::string file, check, json, cluster;
  std::optional<std::uint64_t> split;
  int splits = 0;
  bool leave_one_out = false;
  std::vector<std::string> predict;
};

double percent(double share) { return 100 * share; }

Json print_parameters(const sim::Source& source, const sim::Fit& fit) {
  Json list = Json::array();
  std::printf("%-42s %12s  %s\n", "parameter", "value", "one standard error");
  for (std::size_t i = 0; i < source.parameters.size(); ++i) {
    const sim::Unknown& unknown = source.parameters[i].unknown;
    const bool factor = unknown.scale == sim::Scale::logarithmic;
    // An error that is less than a tenth below the prior's counts as not measured.
    const bool expected = unknown.prior > 0 && fit.errors[i] > 0.9 * unknown.prior;
    const double value = fit.values[i];
    const double low = factor ? value * std::exp(-fit.errors[i]) : value - fit.errors[i];
    const double high = factor ? value * std::exp(fit.errors[i]) : value + fit.errors[i];
    std::printf("%-42s %12.5g  %.4g to %.4g %s%s\n", unknown.name.c_str(), value, low, high,
                unknown.unit.c_str(),
                expected ? "  (the prior: the measurements do not determine this parameter)" : "");
    list.push_back({{"name", unknown.name},
                    {"unit", unknown.unit},
                    {"value", value},
                    {"low", low},
                    {"high", high},
                    {"measured", !expected}});
  }
  return list;
}

Json print_cells(const std::vector<sim::Prediction>& predictions) {
  Json list = Json::array();
  std::printf("\n%-44s %13s %13s %8s\n", "setting", "measured", "predicted", "error");
  for (const sim::Prediction& one : predictions) {
    const sim::Cell& cell = one.cell;
    const double predicted = throughput(cell, one.seconds);
    Json entry = {{"workload", cell.workload}, {"batch", cell.batch}, {"machines", Json::array()}};
    for (const sim::Machine& machine : cell.machines)
      entry["machines"].push_back({{"kind", machine.kind}, {"workers", machine.workers}});
    entry["predicted_step_seconds"] = one.seconds;
    entry["predicted_samples_per_second"] = predicted;
    if (cell.seconds > 0) {
      std::printf("%-44s %11.2f/s %11.2f/s %+7.2f%%  %s\n", concat(cell).c_str(),
                  throughput(cell, cell.seconds), predicted, percent(one.error()),
                  one.fitted ? "fitted" : "held out");
      entry["measured_step_seconds"] = cell.seconds;
      entry["measured_samples_per_second"] = throughput(cell, cell.seconds);
      entry["error"] = one.error();
      entry["fitted"] = one.fitted;
    } else {
      std::printf("%-44s %13s %11.2f/s %8s  a step of %.5g s\n", concat(cell).c_str(), "", predicted, "",
                  one.seconds);
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json print_errors(const sim::Errors& errors) {
  if (errors.cells == 0) return nullptr;
  std::printf("\n%d held out: median error %.2f%%, worst %.2f%% (%s)\n", errors.cells, percent(errors.median),
              percent(errors.worst), errors.worst_cell.c_str());
  return {{"cells", errors.cells},
          {"median", errors.median},
          {"worst", errors.worst},
          {"worst_setting", errors.worst_cell}};
}

// Fits many random halves: the distribution of errors, and the settings that are hardest to predict.
Json print_splits(const Measurements& all, std::uint64_t first, int splits) {
  std::vector<double> medians, worsts;
  std::vector<std::pair<std::string, int>> hard;
  for (int i = 0; i < splits; ++i) {
    const std::vector<bool> fitted =
        sim::draw_half(all.source, all.cells, first + static_cast<std::uint64_t>(i));
    const sim::Errors errors = sim::errors_of(sim::try_out(all.source, all.cells, fitted).predictions);
    medians.push_back(errors.median);
    worsts.push_back(errors.worst);
    auto at = std::find_if(hard.begin(), hard.end(),
                           [&](const auto& one) { return one.first == errors.worst_cell; });
    if (at == hard.end()) at = hard.insert(hard.end(), {errors.worst_cell, 0});
    ++at->second;
  }
  std::sort(medians.begin(), medians.end());
  std::sort(worsts.begin(), worsts.end());
  std::sort(hard.begin(), hard.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  const auto quantile = [](const std::vector<double>& values, double q) {
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
  };
  std::printf("\n%d halves from seed %llu on, errors of the settings held out:\n", splits,
              static_cast<unsigned long long>(first));
  Json result = {{"splits", splits}, {"first_seed", first}};
  for (const auto& [name, values] : {std::pair{"median", medians}, std::pair{"worst", worsts}}) {
    std::printf("  %-7s half of the halves within %.2f%%, nine of ten within %.2f%%, all within %.2f%%\n",
                name, percent(quantile(values, 0.5)), percent(quantile(values, 0.9)), percent(values.back()));
    result[name] = {
        {"half", quantile(values, 0.5)}, {"nine_of_ten", quantile(values, 0.9)}, {"all", values.back()}};
  }
  std::printf("  worst most often:");
  for (std::size_t i = 0; i < hard.size() && i < 3; ++i)
    std::printf("%s %s (%d)", i > 0 ? ";" : "", hard[i].first.c_str(), hard[i].second);
  std::printf("\n");
  return result;
}

// Writes the cluster of a setting with the fitted numbers.
void write_cluster(const Options& options, const sim::Source& source, const sim::Fit& fit,
                   const sim::Cell& cell) {
  const sim::Setting setting = sim::setting_of(source, fit.values, cell);
  sim::Cluster cluster = setting.cluster;
  cluster.name = concat(source.name, ": ", cell);
  cluster.source = concat("Calibrated by ", options.file, ". A worker of speed 1 alone trains ",
                          setting.work.samples / setting.work.alone(), " samples/s of ", cell.workload,
                          ", which predict takes as --samples-per-second.");
  sim::write_cluster(options.cluster, cluster);
}

int run(const Options& options) {
  examples::expect_separate_files({{"the measurements", options.file}, {"--check", options.check}},
                                  {{"--cluster", options.cluster}, {"--json", options.json}});
  const Measurements all = read_measurements(options.file);
  std::vector<sim::Cell> asked;
  if (!options.check.empty()) {
    const Measurements other = read_measurements(options.check);
    if (other.source.name != all.source.name)
      fail<ConfigError>("--check: ", options.check, " has measurements of ", other.source.name, ", but ",
                        options.file, " has measurements of ", all.source.name);
    asked = other.cells;
  }
  for (const std::string& text : options.predict) asked.push_back(cell_of(all, text));
  int repeats = 0;
  for (const sim::Cell& cell : all.cells) repeats += cell.repeats;
  std::printf("%s: %zu settings from %d measurements, %zu parameters\n\n", all.source.name.c_str(),
              all.cells.size(), repeats, all.source.parameters.size());
  Json result = {{"source", all.source.name}, {"settings", all.cells.size()}, {"measurements", repeats}};

  std::vector<bool> fitted(all.cells.size(), true);
  if (options.split) fitted = sim::draw_half(all.source, all.cells, *options.split);
  sim::Trial trial = sim::try_out(all.source, all.cells, fitted);
  result["parameters"] = print_parameters(all.source, trial.fit);
  if (options.leave_one_out) trial.predictions = sim::leave_one_out(all.source, all.cells);
  for (const sim::Cell& cell : asked)
    trial.predictions.push_back({cell, sim::predict(all.source, trial.fit.values, cell), false});
  result["cells"] = print_cells(trial.predictions);
  result["held_out"] = print_errors(sim::errors_of(trial.predictions));
  if (options.splits > 0) result["halves"] = print_splits(all, options.split.value_or(1), options.splits);
  if (!options.cluster.empty()) write_cluster(options, all.source, trial.fit, asked.back());
  if (!options.json.empty()) write_file(options.json, examples::json_text(result, 2));
  return 0;
}

}  // namespace

int calibrate(int argc, char** argv) {
  CLI::App app{"Fits a cluster's parameters to measured throughputs and predicts other settings",
               "predict calibrate"};
  Options options;
  app.add_option("file", options.file, "CSV of measured settings")->required();
  app.add_option("--split", options.split,
                 "Fit a random half of the settings, drawn with this seed, and predict the rest");
  app.add_option("--splits", options.splits, "Report the errors over this many random halves")
      ->check(CLI::Range(1, 100000));
  app.add_flag("--leave-one-out", options.leave_one_out, "Predict each setting from a fit to all others")
      ->excludes("--split");
  app.add_option("--check", options.check,
                 "CSV of further settings of the same source, to be predicted but not fitted");
  auto* predict =
      app.add_option(
             "--predict", options.predict,
             "Setting to predict, e.g. nodes=2,gpus=4,batch=32 or model=resnet50,lm1_gpus=1,lm6_gpus=1")
          ->allow_extra_args(false);
  app.add_option("--cluster", options.cluster,
                 "Write the cluster of the last --predict setting to this file, for predict")
      ->needs(predict);
  app.add_option("--json", options.json, "Write all results to this file as JSON");
  if (const auto code = examples::parse_command_line(app, argc, argv)) return *code;
  return run(options);
}

}  // namespace bench
