// TIMEOUT: 600
// ALONE
// The input of predict calibrate: files with the published sources' columns, made by the simulator from known
// numbers; and the published files themselves, if the environment variable CONVOY_REFERENCE names their
// folder.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "near.hpp"
#include "sanitized.hpp"
#include "skip.hpp"
#include <convoy/sim/cross_validation.hpp>

// The program's own sources, which are not a library.
#include "../bench/predict/models.cpp"
#include "../bench/predict/sources.cpp"

using namespace convoy;
using bench::Measurements;

namespace {

// A file with BERT's columns whose rates are simulated from given numbers.
std::string bert_file(const std::vector<double>& values, const std::vector<std::string>& settings) {
  const std::string head = "num_nodes,gpu_num_per_node,batch_size_per_device,sentences_per_sec\n";
  std::string empty = head, text = head;
  for (const std::string& setting : settings) empty += setting + ",1\n";
  const Measurements all = bench::measurements_of(bench::parse_csv(empty, "empty"), "empty");
  for (std::size_t i = 0; i < settings.size(); ++i) {
    char row[100];
    const double seconds = sim::predict(all.source, values, all.cells[i]);
    std::snprintf(row, sizeof row, "%s,%.17g\n", settings[i].c_str(),
                  bench::throughput(all.cells[i], seconds));
    text += row;
  }
  return text;
}

Measurements parsed(const std::string& text) {
  return bench::measurements_of(bench::parse_csv(text, "file"), "file");
}

std::string refusal(const std::string& text) {
  try {
    parsed(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("calibration recovers the numbers behind a file with BERT's columns, and predicts other settings") {
  const std::vector<double> truth{0.0071, 15e9, 0.4};
  const std::string text = bert_file(truth, {"1,1,64", "1,1,96", "1,8,64", "1,8,96", "2,8,64", "4,8,96"});
  const Measurements all = parsed(text);
  REQUIRE(all.cells.size() == 6);
  const sim::Fit fit = sim::calibrate(all.source, all.cells);
  CHECK(fit.values[0] == test::near(truth[0], 1e-3));
  CHECK(fit.values[1] == test::near(truth[1], 0.05));
  CHECK(fit.values[2] == test::near(truth[2], 0.05));
  const sim::Cell asked = bench::cell_of(all, "nodes=3,gpus=4,batch=32");
  CHECK(sim::predict(all.source, fit.values, asked) ==
        test::near(sim::predict(all.source, truth, asked), 0.01));
}

TEST_CASE("repeats become one setting by the source's own statistic; stated averages are left out") {
  const Measurements bert = parsed(
      "num_nodes,gpu_num_per_node,batch_size_per_device,sentences_per_sec\n"
      "1,1,64,100\n1,1,64,300\n1,8,64,900\n1,1,64,128\n");
  REQUIRE(bert.cells.size() == 2);
  CHECK(bert.cells[0].repeats == 3);
  CHECK(bert.cells[0].seconds == test::near(0.5));

  const Measurements mnist = parsed(
      "dataset,nodes,gpus_per_node,epochs,batch_per_gpu,steps,runtime_hms,speedup,node_names\n"
      "bigMNIST,1,1,10,512,140626,10:00:00,-,gn01\n"
      "bigMNIST,1,1,0,512,140626,20:00:00,-,gn02\n"
      "bigMNIST,1,1,10,512,140626,99:00:00,1,Avg\n"
      "MNIST,2,1,1000,64,469,1:25:00,1.67,\"gn[02,05]\"\n");
  REQUIRE(mnist.cells.size() == 2);
  CHECK(mnist.cells[0].repeats == 2);
  CHECK(mnist.cells[0].seconds == test::near(15 * 3600.0 / (140625 * 10)));
  CHECK(mnist.cells[1].seconds == test::near(5100.0 / (469 * 1000)));
  CHECK(concat(mnist.cells[1]) == "MNIST, batch 64, 2 x 1 V100");
}

TEST_CASE("machines have names if columns name them") {
  const Measurements all = parsed(
      "model,dataset,batch_per_gpu,lm1_gpus,lm6_gpus,samples_per_sec\n"
      "resnet18,mnist,128,3,2,339.75\n");
  CHECK(concat(all.cells[0]) == "resnet18, batch 128, 3 lm1 + 2 lm6");
  CHECK(concat(bench::cell_of(all, "lm6_gpus=4")) == "resnet18, batch 128, 4 lm6");
  std::int64_t bytes = 0;
  for (const std::int64_t tensor : all.source.workload("resnet18").buckets) bytes += tensor;
  CHECK(std::abs(static_cast<double>(bytes) / 4 - 8.9e6) < 100);  // the published number
  CHECK(all.source.workload("resnet18").buckets.size() == 62);
}

TEST_CASE("a known machine without a measurement has the speed of its published evaluations") {
  const Measurements all = parsed(
      "model,dataset,batch_per_gpu,lm1_gpus,lm6_gpus,lm7_gpus,samples_per_sec\n"
      "resnet18,mnist,128,1,0,0,80\n"
      "resnet18,mnist,128,2,0,0,160\n");
  const sim::Fit fit = sim::calibrate(all.source, all.cells);
  CHECK(fit["speed of lm6 to lm1"] == test::near(1.4, 1e-3));
  CHECK(fit["slow-down of lm6 with many GPUs"] == test::near(0.35, 1e-3));
  const auto seconds = [&](const char* setting) {
    return sim::predict(all.source, fit.values, bench::cell_of(all, setting));
  };
  CHECK(seconds("lm1_gpus=1") / seconds("lm6_gpus=1") == test::near(1.4, 1e-3));
  CHECK(seconds("lm6_gpus=2") / seconds("lm6_gpus=1") == test::near(1.175, 0.01));
  // No speed of lm7 is published, so that its error is large.
  for (std::size_t i = 0; i < fit.names.size(); ++i) {
    if (fit.names[i] == "speed of lm6 to lm1") CHECK(fit.errors[i] == test::near(0.04, 1e-3));
    if (fit.names[i] == "speed of lm7 to lm1") CHECK(fit.errors[i] == test::near(0.5, 1e-3));
  }
  CHECK(fit["speed of lm7 to lm1"] == test::near(1, 1e-3));
  // Measurements outweigh the prior.
  std::string measured = "model,dataset,batch_per_gpu,lm1_gpus,lm6_gpus,samples_per_sec\n";
  for (const char* model : {"resnet18", "resnet50", "resnet101", "transformer6"})
    measured +=
        concat(model, ",mnist,128,1,0,80\n", model, ",mnist,128,0,1,160\n", model, ",mnist,128,0,2,320\n");
  const Measurements told = parsed(measured);
  const sim::Fit other = sim::calibrate(told.source, told.cells);
  CHECK(other["speed of lm6 to lm1"] > 1.7);
  CHECK(other["slow-down of lm6 with many GPUs"] < 0.25);
}

TEST_CASE("a byte order mark is no part of the first column's name") {
  CHECK(parsed("\xEF\xBB\xBF"
               "num_nodes,gpu_num_per_node,batch_size_per_device,sentences_per_sec\n1,1,64,150\n")
            .cells.size() == 1);
}

TEST_CASE("a fault in a file is one sentence with its line and field") {
  const std::string head = "num_nodes,gpu_num_per_node,batch_size_per_device,sentences_per_sec\n";
  CHECK(refusal("") == "file is empty; expected a line with the names of columns");
  CHECK(refusal("a,b\n1,2\n")
            .starts_with("file, line 1: no known source has these columns; expected num_nodes"));
  CHECK(refusal(head) == "file holds no measurement");
  CHECK(refusal(head + "1,1,64\n") == "file, line 2 has 3 fields; expected 4");
  CHECK(refusal(head + "1,1,64,1\n1,x,64,149\n") ==
        "file, line 3: gpu_num_per_node is \"x\"; expected a whole number from 1 to 64");
  CHECK(refusal(head + "1,1,64,-5\n")
            .starts_with("file, line 2: sentences_per_sec is \"-5\"; expected a number"));
  CHECK(refusal(head + "1,1,64,nan\n").starts_with("file, line 2: sentences_per_sec is \"nan\""));
  CHECK(refusal("a,a\n") == "file, line 1: there are two columns \"a\"");
  CHECK(refusal("a,b\n\"1,2\n") == "file, line 2: a quoted field does not end");
  const std::string runs =
      "dataset,nodes,gpus_per_node,epochs,batch_per_gpu,steps,runtime_hms,speedup,node_names\n";
  CHECK(refusal(runs + "MNIST,1,1,10,64,938,2:60:01,1,gn03\n") ==
        "file, line 2: runtime_hms is \"2:60:01\"; expected a duration h:mm:ss");
  CHECK(refusal(runs + "CIFAR,1,1,10,64,938,2:20:01,1,gn03\n") ==
        "file, line 2: dataset is \"CIFAR\"; expected MNIST or bigMNIST");
  // 2^32 samples a step, more than an int counts.
  const Measurements large = parsed(runs + "MNIST,16384,64,10,4096,1,0:00:20,1,gn03\n");
  CHECK(large.cells[0].seconds == test::near(2));
  CHECK(refusal("model,batch_per_gpu,lm1_gpus,samples_per_sec\nresnet18,128,0,5\n") ==
        "file, line 2 has no GPU; expected 1 or more in a column ..._gpus");

  const Measurements all = parsed(head + "1,1,64,150\n1,1,96,150\n");
  CHECK_THROWS_WITH_AS(bench::cell_of(all, "nodes=2,gpus=8"),
                       "setting \"nodes=2,gpus=8\" has no batch, and the measurements have several",
                       ConfigError);
  CHECK_THROWS_WITH_AS(bench::cell_of(all, "model=vgg,nodes=1,gpus=1"),
                       "the source \"bert_base_v100\" has no workload \"vgg\"; it has bert_base",
                       ConfigError);
  CHECK_THROWS_WITH_AS(bench::cell_of(all, "rooms=2"),
                       "setting \"rooms=2\": the source has no column \"rooms\"", ConfigError);
  CHECK_THROWS_WITH_AS(bench::cell_of(all, "nodes=1,gpus=1,batch=64,num_nodes=2"),
                       "setting \"nodes=1,gpus=1,batch=64,num_nodes=2\": num_nodes is there twice",
                       ConfigError);
  CHECK_THROWS_WITH_AS(bench::cell_of(all, "batch=64,nodes=2"),
                       "setting \"batch=64,nodes=2\" has no gpu_num_per_node", ConfigError);
}

TEST_CASE("halves of each published source predict their other halves") {
  const char* folder = std::getenv("CONVOY_REFERENCE");
  if (folder == nullptr) SKIP("CONVOY_REFERENCE is not set");
  struct Bar {
    const char* file;
    std::size_t settings;
    double median, worst;
  };
  for (const Bar& bar :
       {Bar{"bert_base_v100.csv", 8, 0.03, 0.08}, Bar{"collective_2080ti.csv", 27, 0.03, 0.08},
        Bar{"mnist_strong_scaling.csv", 14, 0.05, 0.10}}) {
    CAPTURE(bar.file);
    const Measurements all = bench::read_measurements(std::string(folder) + "/" + bar.file);
    REQUIRE(all.cells.size() == bar.settings);
    for (std::uint64_t seed = 1; seed <= (sanitized ? 1 : 10); ++seed) {
      CAPTURE(seed);
      const sim::Errors errors = sim::errors_of(
          sim::try_out(all.source, all.cells, sim::draw_half(all.source, all.cells, seed)).predictions);
      CHECK(errors.cells == static_cast<int>(bar.settings / 2));
      CHECK(errors.median <= bar.median);
      CHECK(errors.worst <= bar.worst);
    }
  }
}
