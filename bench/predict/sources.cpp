#include "sources.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "models.hpp"

namespace bench {
namespace {

using namespace convoy;
using sim::Cell;
using sim::Parameter;
using sim::Role;
using sim::Scale;
using sim::Source;

/// One row, before repeats are merged.
struct Row {
  Cell cell;
  double measured = 0;  ///< samples per second, or seconds
};

/// A source of measurements, identified by the columns of its files.
struct Layout {
  std::vector<std::string> columns;
  Source (*source)(const std::vector<std::string>& columns, const std::vector<Row>& rows);
  Cell (*cell)(const Record& record);                          ///< without the measurement
  double (*measured)(const Record& record, const Cell& cell);  ///< 0: the row is no measurement
  double (*together)(std::vector<double> repeats);
  double (*step_seconds)(const Cell& cell, double measured);
  std::string workload;            ///< the column that names it
  std::string nodes, gpus, batch;  ///< names of their columns, if any
};

constexpr int most_batch = 1 << 24;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}
double mean(std::vector<double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}
double of_rate(const Cell& cell, double rate) {
  return static_cast<double>(cell.batch) * cell.workers() / rate;
}

std::vector<std::string> workloads_in(const std::vector<Row>& rows) {
  std::vector<std::string> names;
  for (const Row& row : rows)
    if (std::find(names.begin(), names.end(), row.cell.workload) == names.end())
      names.push_back(row.cell.workload);
  return names;
}

/// Bytes of the gradients of a model's tensors, approximately in the order in which backward finishes them.
std::vector<std::int64_t> tensors_of(std::string_view name) {
  const auto model =
      std::find_if(models().begin(), models().end(), [&](const Model& m) { return m.name == name; });
  const auto traced = model->plan({});
  std::vector<std::int64_t> bytes;
  for (const graph::Parameter& parameter : traced->plan().parameter_list)
    bytes.push_back(parameter.shape.size() * 4);
  std::reverse(bytes.begin(), bytes.end());
  return bytes;
}
std::vector<std::int64_t> as_one(const std::vector<std::int64_t>& tensors) {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : tensors) sum += bytes;
  return {sum};
}
Parameter seconds_of(const std::string& workload) {
  return {Role::sample_seconds,
          workload,
          {.name = "seconds a sample of " + workload,
           .unit = "s",
           .start = 1,
           .scale = Scale::logarithmic,
           .prior = 2}};
}
/// A positive parameter, expected to be `start` within a factor of exp(`prior`).
Parameter positive(Role role, const std::string& of, std::string name, std::string unit, double start,
                   double prior) {
  return {role,
          of,
          {.name = std::move(name),
           .unit = std::move(unit),
           .start = start,
           .scale = Scale::logarithmic,
           .prior = prior}};
}

/// Reduce-scatter inside nodes, a ring between them for each shard, all-gather inside nodes. Long messages
/// are not cut into segments; only pipelining within a message would make a difference.
sim::Exchange hierarchical(bool overlap) {
  sim::Exchange exchange;
  exchange.comm = "hierarchical";
  exchange.overlap = overlap;
  exchange.segment_bytes = std::size_t{1} << 32;
  return exchange;
}

// BERT-base on nodes of eight V100 with NVLink and one InfiniBand card of 100 Gbit/s. Backward hides the
// exchange of the gradients that it finishes early, whatever the batch, so that only the exposed fraction
// shows in the measurements.
Source bert_v100(const std::vector<std::string>&, const std::vector<Row>& rows) {
  Source source{.name = "bert_base_v100"};
  for (const std::string& name : workloads_in(rows)) {
    source.workloads.push_back({name, as_one(tensors_of("bert"))});
    source.parameters.push_back(seconds_of(name));
  }
  source.known.name = "nodes of 8 V100, NVLink inside, 100 Gbit/s between";
  source.known.inside = {sim::Wiring::ports, 5e-6, 1 / 20e9};
  source.known.nic = {.count = 1, .alpha = 10e-6, .beta = 1 / 12.5e9};
  source.exchange = hierarchical(true);
  source.parameters.push_back(positive(Role::inside_rate, "", "rate inside a node", "B/s", 20e9, 1));
  source.parameters.push_back({Role::late,
                               "",
                               {.name = "share that backward does not hide",
                                .unit = "",
                                .start = 0.5,
                                .lower = 0,
                                .upper = 1,
                                .prior = 0.25}});
  source.noise = 0.003;
  return source;
}

// What is known of a machine before calibration.
struct Known {
  std::string_view kind;
  double speed, sharing;  ///< from the times of evaluation, which exchanges nothing
  double noise;           ///< variation of the steps of a run
};

// Evaluation takes 1.38, 1.35 and 1.45 times as long on lm1 as on lm6 (ResNet-18, 50 and 101). On two of
// lm6's GPUs, evaluation takes 20, 13 and 20% longer than on one; on several of lm1's GPUs, it takes as long
// as on one. These are medians over the epochs after the first. Within a run, steps of 200 vary by 1.6% on
// lm1 and by 3.2% on lm6, so that a measurement on lm6 counts less.
constexpr Known known_2080ti[] = {{"lm1", 1, 0, 0.015}, {"lm6", 1.4, 0.35, 0.03}};

const Known* known_of(std::string_view kind) {
  const auto one = std::find_if(std::begin(known_2080ti), std::end(known_2080ti),
                                [&](const Known& known) { return known.kind == kind; });
  return one == std::end(known_2080ti) ? nullptr : &*one;
}

// Two machines of 2080 Ti with NVLink inside and 1 Gbit/s between, an all-reduce for each tensor once
// backward is over. On several GPUs of a machine a step is slower than on one, by nearly as much on two as on
// four (lm1: 2.9, 3.1 and 4.4% on 2, 3 and 4). Training may differ from evaluation by as much as the networks
// differ in evaluation. The published ResNet-18 had 8.9 million parameters, the standard one has 11.2. The
// Transformer's vocabulary is not published; it is assumed to be that of the training sentences.
Source pair_2080ti(const std::vector<std::string>& columns, const std::vector<Row>& rows) {
  Source source{.name = "collective_2080ti"};
  for (const std::string& name : workloads_in(rows)) {
    std::vector<std::int64_t> tensors;
    if (name == "resnet18") {
      tensors = tensors_of("resnet18-mnist");
      const double standard = static_cast<double>(as_one(tensors)[0]) / 4;
      for (std::int64_t& bytes : tensors)
        bytes = 4 * std::llround(static_cast<double>(bytes) / 4 * 8.9e6 / standard);
    } else if (name == "resnet50") {
      tensors = tensors_of("resnet50-mnist");
    } else if (name == "resnet101") {
      tensors = tensors_of("resnet101-mnist");
    } else if (name == "transformer6") {
      tensors = tensors_of("transformer");
    } else {
      fail<ConfigError>("model \"", name,
                        "\" is unknown; known are resnet18, resnet50, resnet101 and transformer6");
    }
    source.workloads.push_back({name, std::move(tensors)});
    source.parameters.push_back(seconds_of(name));
  }
  source.known.name = "2080 Ti, NVLink inside, 1 Gbit/s between";
  source.known.inside = {sim::Wiring::ports, 10e-6, 1 / 10e9};
  source.known.nic = {.count = 1, .alpha = 30e-6, .beta = 1 / 117.5e6};  // what TCP leaves of 125 MB/s
  source.known.launch = 2e-4;  // of a tensor's exchange; the measurements do not determine it
  source.exchange = hierarchical(false);
  source.noise = 0.02;
  std::string first;
  for (const std::string& column : columns) {
    if (!column.ends_with("_gpus")) continue;
    const std::string kind = column.substr(0, column.size() - 5);
    if (first.empty()) first = kind;
    const Known *known = known_of(kind), *reference = known_of(first);
    if (kind != first) {
      const bool both = known != nullptr && reference != nullptr;
      source.parameters.push_back(positive(Role::speed, kind, "speed of " + kind + " to " + first, "",
                                           both ? known->speed / reference->speed : 1, both ? 0.04 : 0.5));
    }
    source.parameters.push_back({Role::sharing,
                                 kind,
                                 {.name = "slow-down of " + kind + " with many GPUs",
                                  .start = known != nullptr ? known->sharing : 0.2,
                                  .lower = 0,
                                  .upper = 2,
                                  .prior = known != nullptr ? 0.05 : 0.2}});
    if (known != nullptr) source.noise_of[kind] = known->noise;
  }
  return source;
}

// A small convolutional network on nodes of up to four V100, limited by loading and augmentation. Nodes of
// one kind differ, and not always in the same way; the slowest one sets the pace. The network is not
// published; its latency matters, its bytes do not.
Source mnist_nodes(const std::vector<std::string>&, const std::vector<Row>& rows) {
  Source source{.name = "mnist_strong_scaling"};
  for (const std::string& name : workloads_in(rows)) {
    source.workloads.push_back({name, as_one(tensors_of("convnet"))});
    source.parameters.push_back(seconds_of(name));
  }
  source.known.name = "nodes of 4 V100";
  source.known.inside = {sim::Wiring::ports, 10e-6, 1 / 20e9};
  source.known.nic = {.count = 1, .alpha = 1e-4, .beta = 1 / 12.5e9};
  source.exchange = hierarchical(false);
  source.parameters.push_back(positive(Role::spread, "", "spread of nodes", "", 0.1, 0.5));
  source.parameters.push_back(positive(Role::jitter, "", "jitter of a worker", "", 0.03, 0.5));
  source.parameters.push_back(positive(Role::nic_latency, "", "latency between nodes", "s", 5e-4, 0.7));
  source.noise = 0.06;
  return source;
}

// Samples of an epoch.
int samples_of(const Record& record) {
  const std::string& name = record.text("dataset");
  if (name == "MNIST") return 60000;
  if (name == "bigMNIST") return 72000000;
  record.refuse("dataset", "MNIST or bigMNIST");
}

std::vector<sim::Machine> alike(const std::string& kind, int nodes, int gpus) {
  return {static_cast<std::size_t>(nodes), {kind, gpus}};
}

const Layout& layout_of(const std::vector<std::string>& columns, const std::string& file) {
  static const Layout layouts[] = {
      {{"num_nodes", "gpu_num_per_node", "batch_size_per_device", "sentences_per_sec"},
       bert_v100,
       [](const Record& r) {
         return Cell{r.has("model") ? r.text("model") : "bert_base",
                     r.whole("batch_size_per_device", 1, most_batch),
                     alike("V100", r.whole("num_nodes", 1, 1 << 14), r.whole("gpu_num_per_node", 1, 64))};
       },
       [](const Record& r, const Cell&) { return r.real("sentences_per_sec", 1e-6, 1e12); },
       median,
       of_rate,
       "model",
       "num_nodes",
       "gpu_num_per_node",
       "batch_size_per_device"},
      {{"model", "batch_per_gpu", "samples_per_sec"},
       pair_2080ti,
       [](const Record& r) {
         Cell cell{r.text("model"), r.whole("batch_per_gpu", 1, most_batch), {}};
         for (const auto& [name, value] : r.fields()) {
           if (!name.ends_with("_gpus")) continue;
           const int gpus = r.whole(name, 0, 64);
           if (gpus > 0) cell.machines.push_back({name.substr(0, name.size() - 5), gpus});
         }
         if (cell.machines.empty())
           fail<ConfigError>(r.where(), " has no GPU; expected 1 or more in a column ..._gpus");
         return cell;
       },
       [](const Record& r, const Cell&) { return r.real("samples_per_sec", 1e-6, 1e12); },
       median,
       of_rate,
       "model",
       "",
       "",
       "batch_per_gpu"},
      {{"dataset", "nodes", "gpus_per_node", "epochs", "batch_per_gpu", "runtime_hms", "node_names"},
       mnist_nodes,
       [](const Record& r) {
         samples_of(r);
         return Cell{r.text("dataset"), r.whole("batch_per_gpu", 1, most_batch),
                     alike("V100", r.whole("nodes", 1, 1 << 14), r.whole("gpus_per_node", 1, 64))};
       },
       [](const Record& r, const Cell& cell) {
         if (r.text("node_names") == "Avg") return 0.0;  // not always the average of its runs
         const std::int64_t together = std::int64_t{cell.workers()} * cell.batch;
         const std::int64_t steps = (samples_of(r) + together - 1) / together;
         // A row with 0 epochs took as long as its neighbors with 10.
         const int said = r.whole("epochs", 0, 1000000), epochs = said > 0 ? said : 10;
         return r.duration("runtime_hms") / static_cast<double>(steps) / epochs;
       },
       mean,
       [](const Cell&, double seconds) { return seconds; },
       "dataset",
       "nodes",
       "gpus_per_node",
       "batch_per_gpu"}};
  for (const Layout& layout : layouts) {
    const auto there = [&](const std::string& column) {
      return std::find(columns.begin(), columns.end(), column) != columns.end();
    };
    if (std::all_of(layout.columns.begin(), layout.columns.end(), there)) return layout;
  }
  std::string known;
  for (const Layout& layout : layouts) {
    known += known.empty() ? "" : "; or ";
    for (std::size_t i = 0; i < layout.columns.size(); ++i)
      known += concat(i == 0 ? "" : ", ", layout.columns[i]);
  }
  fail<ConfigError>(file, ", line 1: no known source has these columns; expected ", known);
}

}  // namespace

Measurements measurements_of(const Csv& csv, const std::string& file) {
  const Layout& layout = layout_of(csv.columns, file);
  std::vector<Row> rows;
  for (const Record& record : csv.records) {
    Row row{layout.cell(record)};
    row.measured = layout.measured(record, row.cell);
    if (row.measured > 0) rows.push_back(std::move(row));
  }
  if (rows.empty()) fail<ConfigError>(file, " holds no measurement");
  Measurements all{layout.source(csv.columns, rows), {}, csv.columns};
  std::vector<std::vector<double>> repeats;
  for (const Row& row : rows) {
    std::size_t at = 0;
    while (at < all.cells.size() && !all.cells[at].same_setting(row.cell)) ++at;
    if (at == all.cells.size()) {
      all.cells.push_back(row.cell);
      repeats.emplace_back();
    }
    repeats[at].push_back(row.measured);
  }
  for (std::size_t i = 0; i < all.cells.size(); ++i) {
    all.cells[i].repeats = static_cast<int>(repeats[i].size());
    all.cells[i].seconds = layout.step_seconds(all.cells[i], layout.together(repeats[i]));
  }
  return all;
}

Cell cell_of(const Measurements& measurements, const std::string& text) {
  const Layout& layout = layout_of(measurements.columns, measurements.source.name);
  std::vector<Record::Field> fields;
  const auto said = [&](std::string_view name) {
    return std::any_of(fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; });
  };
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos)
      fail<ConfigError>("setting \"", text, "\": \"", part, "\" has no value; expected name=value");
    std::string name = part.substr(0, equals);
    if (name == "nodes" && !layout.nodes.empty()) name = layout.nodes;
    if (name == "gpus" && !layout.gpus.empty()) name = layout.gpus;
    if (name == "batch") name = layout.batch;
    const auto& columns = measurements.columns;
    if (name != layout.workload && std::find(columns.begin(), columns.end(), name) == columns.end())
      fail<ConfigError>("setting \"", text, "\": the source has no column \"", name, '"');
    if (said(name)) fail<ConfigError>("setting \"", text, "\": ", name, " is there twice");
    fields.emplace_back(name, part.substr(equals + 1));
    at = end + 1;
  }
  for (const std::string& column : measurements.columns)
    if (column.ends_with("_gpus") && !said(column)) fields.emplace_back(column, "0");
  if (!said(layout.workload) && measurements.source.workloads.size() == 1)
    fields.emplace_back(layout.workload, measurements.source.workloads[0].name);
  const std::string where = concat("setting \"", text, '"');
  const std::string workload = Record(where, fields).text(layout.workload);
  measurements.source.workload(workload);
  if (!said(layout.batch)) {
    int batch = 0;
    for (const Cell& cell : measurements.cells) {
      if (cell.workload != workload) continue;
      if (batch > 0 && batch != cell.batch)
        fail<ConfigError>(where, " has no batch, and the measurements have several");
      batch = cell.batch;
    }
    fields.emplace_back(layout.batch, std::to_string(batch));
  }
  return layout.cell(Record(where, std::move(fields)));
}

Measurements read_measurements(const std::string& file) { return measurements_of(read_csv(file), file); }

}  // namespace bench
