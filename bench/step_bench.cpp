// step_bench: times one training step (forward, backward, optimizer) of each model on each Exec, with data in
// memory. Names are step/<model>/<image>/<exec>/batch:<rows>/threads:<n>; counters are images per second and
// the step's FLOP/s as a fraction of a matrix product's on as many threads in the same process.
#include <cstddef>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "run.hpp"
#include <convoy/convoy.hpp>
#include <convoy/exec/host/backend.hpp>
#include <convoy/exec/host/onednn.hpp>

using namespace convoy;

namespace {

/// A batch of random images and labels that stays in memory.
template <class Model>
class ResidentBatch {
 public:
  explicit ResidentBatch(int rows) : rows_(rows) {
    Philox random(1);
    constexpr const Plan& plan = plan_of<Model>;
    for (int n = 0; n < static_cast<int>(plan.nodes.size()); ++n) {
      const graph::Node& node = plan.node(n);
      if (!node.given) continue;
      Buffer<float> values(static_cast<std::size_t>(rows * node.shape.size()));
      if (graph::is<graph::Input>(node)) {
        for (float& v : values) v = random.normal();
      } else {
        const auto classes = static_cast<std::uint32_t>(plan.graph.attributes<graph::LabelInput>(n).classes);
        for (float& v : values) v = std::bit_cast<float>(random.below(classes));
      }
      pointers_.push_back(values.data());
      buffers_.push_back(std::move(values));
    }
  }
  exec::BatchView view() const { return {pointers_, rows_}; }

 private:
  int rows_;
  std::vector<Buffer<float>> buffers_;
  std::vector<const void*> pointers_;
};

/// FLOP/s of oneDNN's matrix product on `threads` threads: the peak to which a step is compared.
double gemm_flops(int threads) {
  constexpr dnnl_dim_t n = 1536;
  std::vector<float> a(n * n, 1.0f), b(n * n, 1.0f), c(n * n);
  omp_set_num_threads(threads);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    const Stopwatch watch;
    dnnl_sgemm('N', 'N', n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n);
    best = std::max(best, 2.0 * n * n * n / watch.seconds());
  }
  return best;
}

template <class Model>
void step(benchmark::State& state, int batch, int threads) {
  Trainer<Model, optim::Adam, comm::None, exec::Host<f32>> trainer{
      {.batch = batch, .exec = {.threads = threads}}};
  const ResidentBatch<Model> data(batch);
  for (int warm_up = 0; warm_up < 3; ++warm_up) trainer.step(data.view());
  std::int64_t steps = 0;
  const Stopwatch watch;
  for (auto _ : state) {
    benchmark::DoNotOptimize(trainer.step(data.view()).loss);
    ++steps;
  }
  const double flops = static_cast<double>(steps * batch * trainer.plan.flops());
  const double seconds = watch.seconds();
  state.SetItemsProcessed(steps * batch);
  state.counters["GFLOP_per_sec"] = flops / seconds * 1e-9;
  state.counters["peak_share"] = flops / seconds / gemm_flops(threads);
}

template <class Model>
void add(const std::string& model, const std::string& image, int batch) {
  for (const int threads : {1, 2}) {
    const std::string name = "step/" + model + "/" + image + "/host-f32/batch:" + std::to_string(batch) +
                             "/threads:" + std::to_string(threads);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](benchmark::State& state) { step<Model>(state, batch, threads); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

}  // namespace

int main(int argc, char** argv) {
  constexpr Image mnist{1, 28, 28}, imagenet{3, 224, 224};
  add<models::ResNet18<mnist, 10>>("resnet18", "28x28", 128);
  add<models::ResNet50<mnist, 10>>("resnet50", "28x28", 128);
  add<models::ResNet101<mnist, 10>>("resnet101", "28x28", 128);
  add<models::ResNet18<imagenet, 1000>>("resnet18", "224x224", 16);
  add<models::ResNet50<imagenet, 1000>>("resnet50", "224x224", 16);
  return bench::run(argc, argv);
}
