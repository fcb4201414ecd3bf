// Steps of training, and epochs of MNIST.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <cuda_profiler_api.h>

#include "cases.cuh"
#include <convoy/comm/policy/none.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/data/data.hpp>
#include <convoy/data/resident.cuh>
#include <convoy/exec/cuda/cuda.cuh>
#include <convoy/memory/cuda.cuh>
#include <convoy/memory/device.cuh>
#include <convoy/models/bert.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/models/transformer.hpp>
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/device.cuh>
#include <convoy/train/trainer.hpp>

namespace gpu_bench {

using namespace convoy;

/// Random samples of a model's inputs and labels: bytes, and integers within the bounds of the model. A few
/// distinct ones are in memory, like a data set read from files.
class Generated {
 public:
  Generated(const Plan& plan, std::size_t size) : size_(size) {
    std::vector<Range> bounds;
    for (int n = 0; n < plan.graph.count.nodes; ++n) {
      const graph::Node& node = plan.node(n);
      if (!node.given) continue;
      fields_.push_back({node.name.view(), node.dtype, node.shape});
      bounds.push_back(bounds_of(plan.graph, n));
    }
    samples_ = data::Samples(fields_, distinct);
    Philox random(1);
    for (std::size_t row = 0; row < distinct; ++row)
      for (std::size_t f = 0; f < fields_.size(); ++f) {
        const auto number = [&] {
          return bounds[f].begin + static_cast<std::int64_t>(random.below(bounds[f].size()));
        };
        if (fields_[f].dtype == DType::u8)
          for (u8& pixel : samples_.row(row).as<u8>(f)) pixel = static_cast<u8>(number());
        else
          for (i32& index : samples_.row(row).as<i32>(f)) index = static_cast<i32>(number());
      }
  }
  std::size_t size() const { return size_; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    const data::Sample from = samples_.row(index % distinct);
    for (std::size_t f = 0; f < fields_.size(); ++f)
      std::copy_n(from.bytes(f).data(), from.bytes(f).size(), out.bytes(f).data());
  }

 private:
  static constexpr std::size_t distinct = 64;

  /// The valid values of node `given`: classes of a label, valid indices of operations.
  static Range bounds_of(const graph::Graph& g, int given) {
    if (g.nodes[given].dtype == DType::u8) return {0, 256};
    if (graph::is<graph::LabelInput>(g.nodes[given]))
      return {0, g.attributes<graph::LabelInput>(given).classes};
    Range both{0, std::numeric_limits<i32>::max()};
    for (int n = 0; n < g.count.nodes; ++n) {
      const auto by = graph::operation_indices[static_cast<std::size_t>(g.nodes[n].op)](g, n);
      if (by.input >= 0 && g.input(n, by.input) == given)
        both = {std::max<std::int64_t>(both.begin, by.begin), std::min<std::int64_t>(both.end, by.end)};
    }
    return both;
  }

  std::size_t size_;
  std::vector<data::Field> fields_;
  data::Samples samples_;
};

/// The times of a fit's steps, from their reports, which come `late` steps late. The first steps, which
/// choose plans and capture graphs, are not timed; the next `count` are. Then, if each step is launched by
/// itself, some steps follow in turns. At the first report of a turn, the GPU finishes its work and a gate is
/// closed. Behind the gate the host launches `late` steps without waiting, because the reports that are due
/// belong to steps before the gate. At the last report of the turn the gate is opened, and the GPU executes
/// these steps without a pause. Nothing here asks the space for its stream, which would change the steps.
class StepTimes {
 public:
  StepTimes(memory::Device& space, int count, bool one_by_one)
      : stream_(space.stream()), count_(count), turns_(one_by_one ? 5 : 0) {
    for (device::Event* event : {&begin_, &end_}) {
      cudaEvent_t made{};
      device::check(cudaEventCreate(&made), "make an event");
      *event = device::Event(made);
    }
  }

  /// The number of steps that the fit must have; the last reports come after the last launch.
  int steps() const { return untimed + count_ + turns_ * turn + most_late; }

  void see(const train::StepReport& report) {
    const auto now = Clock::now();
    const int step = seen_++, behind = step - untimed - count_;
    if (step == untimed - 1) {
      from_ = now;
      device::check(cudaProfilerStart(), "start a profiler");
    }
    if (step >= untimed && behind < 0) each_.push_back(report.seconds);
    if (behind == -1) {
      mean_ = Seconds(now - from_).count() / count_;
      device::check(cudaProfilerStop(), "stop a profiler");
    }
    if (behind < 0 || turns_ == 0 || behind > turns_ * turn) return;
    if (behind % turn != 0) host_.push_back(Seconds(now - handing_).count());
    if (behind % turn == late) {
      device::check(cudaEventRecord(end_.get(), stream_), "record an event");
      gate_.open();
    } else if (behind % turn == 0) {
      device::check(cudaStreamSynchronize(stream_), "finish the work of a stream");
      float time = 0;
      if (behind > 0) {
        device::check(cudaEventElapsedTime(&time, begin_.get(), end_.get()), "time steps");
        kernels_.push_back(static_cast<double>(time) * 1e-3 / late);
      }
      if (behind < turns_ * turn) {
        gate_.close(stream_);
        device::check(cudaEventRecord(begin_.get(), stream_), "record an event");
      }
    }
    handing_ = Clock::now();
  }

  /// Prints the fields of a JSON object.
  void print(int batch, double flops) const {
    std::printf("\"samples_per_sec\": %.0f, \"step_ms\": %.4f, \"median_ms\": %.4f, \"most_ms\": %.4f, ",
                batch / mean_, mean_ * 1e3, train::median(each_) * 1e3,
                *std::max_element(each_.begin(), each_.end()) * 1e3);
    if (turns_ > 0) {
      const double kernels = train::median(kernels_);
      std::printf("\"host_us\": %.1f, \"kernels_ms\": %.4f, \"of_kernels\": %.4f, ",
                  train::median(host_) * 1e6, kernels * 1e3, kernels / mean_);
    }
    std::printf("\"TFLOP_per_sec\": %.1f", flops * batch / mean_ * 1e-12);
  }

 private:
  static constexpr int untimed = 12;  // three graphs of four steps
  static constexpr int late = exec::Cuda<f32>::latency, turn = late + 1;
  static constexpr int most_late = 8;  // two graphs of four steps

  cudaStream_t stream_;
  int count_, turns_;
  device::Event begin_, end_;
  Gate gate_;
  int seen_ = 0;
  Clock::time_point from_{}, handing_{};
  double mean_ = 0;                            // seconds
  std::vector<double> each_, host_, kernels_;  // seconds of a step
};

template <class P>
using Trained = train::PlanTrainer<optim::AdamW, comm::None, exec::Cuda<P>>;

/// Where batches are made; gpu_singly launches each step by itself, and host_fused fuses batch norms.
enum class From { host, host_fused, gpu, gpu_singly };

template <class P>
void step(const std::string& model, const Plan& plan, const exec::Kernels<exec::Cuda<P>>& kernels, int batch,
          int count, From from) {
  const std::string name = concat("step/", model, "/", exec::cuda::Precision<P>::name, "/batch:", batch,
                                  from == From::host         ? ""
                                  : from == From::host_fused ? "/fuse_batch_norm:1"
                                  : from == From::gpu        ? "/resident"
                                                             : "/resident/steps_at_once:1");
  if (!wanted(name)) return;
  exec::CudaOptions options;
  options.fuse_batch_norm = from == From::host_fused;
  if (from == From::gpu_singly) options.steps_at_once = 1;
  Trained<P> trainer(plan, kernels, {.batch = batch, .exec = options});
  StepTimes times(trainer.exec().space(), count, from != From::gpu);
  const Generated samples(plan, static_cast<std::size_t>(batch) * static_cast<std::size_t>(times.steps()));
  trainer.fit(samples, {.on_step =
                            [&](const train::StepReport& report) {
                              times.see(report);
                              return train::Control::go_on;
                            },
                        .log = nullptr,
                        .resident = from == From::gpu || from == From::gpu_singly});
  std::printf("{\"name\": \"%s\", ", name.c_str());
  times.print(batch, static_cast<double>(plan.flops()));
  std::printf("}\n");
  std::fflush(stdout);
}

template <class Model, class P>
void steps(const std::string& model, int batch, int count, std::initializer_list<From> from) {
  for (const From each : from)
    attempt([&] {
      step<P>(model, plan_of<Model>, exec::kernels<exec::Cuda<P>, plan_of<Model>.used>, batch, count, each);
    });
}

/// Epochs of MNIST, if it lies in $CONVOY_DATA/mnist, else of as many generated digits. The first epoch also
/// chooses plans and captures graphs. Accuracies are those on the test images.
template <class Model>
void epoch(const std::string& model, int batch) {
  const char* const data = std::getenv("CONVOY_DATA");
  const std::string folder = concat(data != nullptr ? data : ".", "/mnist");
  const bool real = data::has_mnist(folder);
  const std::string name = concat("epoch/", real ? "mnist_" : "digits_", model);
  if (!wanted(name)) return;
  const data::ImageSplit images = real ? data::mnist(folder) : data::digits({.train = 60'000});
  Trained<bf16> trainer(plan_of<Model>, exec::kernels<exec::Cuda<bf16>, plan_of<Model>.used>,
                        {.batch = batch});
  const auto fit =
      trainer.fit(images.train, {.epochs = 3, .validate = &images.test, .log = nullptr, .resident = true});
  const train::EpochReport &first = fit.epochs.front(), &last = fit.epochs.back();
  std::printf("{\"name\": \"%s\", \"seconds\": %.4f, \"first_seconds\": %.4f, ", name.c_str(), last.seconds,
              first.seconds);
  std::printf("\"accuracy\": %.4f, \"first_accuracy\": %.4f}\n", last.test.accuracy.value_or(0),
              first.test.accuracy.value_or(0));
  std::fflush(stdout);
}

inline constexpr Image mnist{1, 28, 28}, imagenet{3, 224, 224};
using Mnist = models::ResNet18<mnist, 10, DType::u8>;
using Gpt2 = models::Gpt2<12, 768, 12, 1024, 50257, 1024, 0>;

template <class P>
void transformers() {
  steps<models::BertBase<>, P>("bert/128", 64, 60, {From::host});
  steps<Gpt2, P>("gpt2/1024", 8, 60, {From::host});
  steps<models::Transformer<6, 256, 4, 1024, 64, 16581, 5>, P>("sst5/64", 256, 200,
                                                               {From::host, From::gpu_singly, From::gpu});
}

/// Divides the numbers of timed steps by `share`.
template <class P>
void resnets(int share, std::initializer_list<From> from) {
  steps<models::ResNet50<imagenet, 1000, DType::u8>, P>("resnet50/224x224", 256, 60 / share, from);
  steps<Mnist, P>("resnet18/28x28", 128, 400 / share, from);
  steps<models::ResNet18<imagenet, 1000, DType::u8>, P>("resnet18/224x224", 256, 100 / share, from);
  steps<models::ResNet101<imagenet, 1000, DType::u8>, P>("resnet101/224x224", 128, 60 / share, from);
}

}  // namespace gpu_bench
