// EMULATES: stages
// SANITIZE: none
// TIMEOUT: 600
// ALONE
// Training by exec::Cuda, with its kernels and graphs run on the CPU.
#include <exception>
#include <thread>

#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "train_cuda.hpp"
#include "train_resident.hpp"

namespace train_cuda {

/// Makes its 16-bit copy of the parameters anew in every pass, and gives the optimizer no copy to write.
template <class P>
class Anew : public exec::Cuda<P> {
 public:
  static constexpr bool repeats_steps = false;
  Anew(const Plan& plan, int batch, const typename exec::Cuda<P>::Options& options, memory::Device& space,
       const exec::Kernels<Anew>& kernels)
      : exec::Cuda<P>(plan, batch, options, space, kernels), all_{0, plan.sizes.parameters} {}
  void forward(const exec::BatchView& batch, const exec::Pass& pass) {
    this->touched(all_);
    exec::Cuda<P>::forward(batch, pass);
  }
  void working_copy(Range) = delete;

 private:
  Range all_;
};

/// The calls of two steps of a fit, after the steps in which graphs are captured.
template <class Exec, class Rule = optim::Sgd>
std::vector<emulation::Counts> calls_of_steps(const Settings& settings, bool graphs = true) {
  auto config = config_of<Alone<Exec, Rule>>(settings);
  config.exec.graphs = graphs;
  Alone<Exec, Rule> trainer(config);
  const Blobs training(10 * settings.batch * settings.accumulate);
  std::vector<emulation::Counts> seen, steps;
  trainer.fit(training, {.epochs = 1,
                         .on_step =
                             [&](const train::StepReport&) {
                               seen.push_back(emulation::Counts::now());
                               return train::Control::go_on;
                             },
                         .log = nullptr});
  for (std::size_t s = 5; s < 7; ++s) steps.push_back(seen[s] - seen[s - 1]);
  return steps;
}

/// Continues a training in a second trainer, which gets the state of the first.
template <class Exec>
Trace resumed(const typename Exec::Options& options) {
  const Settings settings;
  auto config = config_of<Alone<Exec>>(settings);
  config.exec = options;
  Alone<Exec> first(config), second(config);
  trace_of(first, settings);
  struct Kept {
    std::vector<std::vector<float>> tensors;
    std::vector<std::int64_t> counters;
    std::size_t tensor_at = 0, counter_at = 0;
    double factor = 0;  // of the learning rate, the only real
    bool writes = false;
    void tensor(std::string_view, const Shape&, std::span<float> values) {
      if (writes)
        std::copy_n(tensors[tensor_at++].begin(), values.size(), values.begin());
      else
        tensors.emplace_back(values.begin(), values.end());
    }
    void counter(std::string_view, std::int64_t& number) {
      if (writes)
        number = counters[counter_at++];
      else
        counters.push_back(number);
    }
    void real(std::string_view, double& number) { writes ? number = factor : factor = number; }
  } kept;
  first.visit_state(kept, train::Visit::read);
  kept.writes = true;
  second.visit_state(kept, train::Visit::write);
  return trace_of(second, settings);
}

}  // namespace train_cuda

template <class P, class Op>
requires convoy::exec::HasKernel<convoy::exec::Cuda<P>, Op>
struct convoy::exec::Kernel<train_cuda::Anew<P>, Op> : Kernel<Cuda<P>, Op> {
};

TEST_CASE_TEMPLATE("cuda: the 16-bit copy that updates write equals one made of every parameter", P,
                   convoy::f32, convoy::bf16, convoy::f16) {
  using namespace train_cuda;
  for (const Settings& settings : {Settings{}, Settings{.batch = 3, .accumulate = 2},
                                   Settings{.batch = 3, .accumulate = 3, .clip = 0.5f}})
    for (const bool graphs : {true, false}) {
      CAPTURE(settings.accumulate);
      CAPTURE(graphs);
      const exec::CudaOptions options{.graphs = graphs,
                                      .candidates = 1};  // with two, timing would decide the bits
      CHECK(alone<exec::Cuda<P>>(settings, options) == alone<Anew<P>>(settings, options));
      CHECK(alone<exec::Cuda<P>, optim::Muon>(settings, options) ==
            alone<Anew<P>, optim::Muon>(settings, options));
    }
  const emulation::With late({.late = true});
  CHECK(resumed<exec::Cuda<P>>({.candidates = 1}) == resumed<Anew<P>>({.candidates = 1}));
}

TEST_CASE("cuda: a step in 16 bits makes no pass over the parameters but its update") {
  using namespace train_cuda;
  using emulation::Called;
  for (const int accumulate : {1, 2}) {
    const Settings settings{.accumulate = accumulate};
    const auto narrow = calls_of_steps<exec::Cuda<bf16>>(settings, false),
               anew = calls_of_steps<Anew<bf16>>(settings, false);
    for (std::size_t s = 0; s < narrow.size(); ++s)
      CHECK(anew[s][Called::kernel] == narrow[s][Called::kernel] + accumulate);
  }
}

TEST_CASE_TEMPLATE("cuda: the host does not wait for the verdict of a step", P, convoy::f32, convoy::f16) {
  using namespace train_cuda;
  using emulation::Called;
  const auto free = calls_of_steps<exec::Cuda<f32>>({});
  for (const emulation::Counts& step : calls_of_steps<exec::Cuda<P>>({.clip = 0.5f})) {
    CHECK(step[Called::pageable_copy] == 0);
    // The host waits for a free batch buffer, and for the result of a pass two steps ago, with its norm.
    CHECK(step[Called::host_wait] == 2);
    CHECK(step.all() == free[0].all());
  }
  for (const emulation::Counts& step : calls_of_steps<exec::Cuda<P>, optim::Muon>({.clip = 0.5f})) {
    CHECK(step[Called::pageable_copy] == 0);
    CHECK(step[Called::host_wait] == 2);
    CHECK(step.all() == free[0].all());
  }
}

TEST_CASE("cuda: the state is copied in a few calls, whatever the number of parameters") {
  using namespace train_cuda;
  using emulation::Called;
  struct Nowhere final : train::StateSink {
    int tensors = 0;
    void tensor(std::string_view, const Shape&, std::span<float>) override {}
    void later(std::string_view, const Shape&, Compute) override { ++tensors; }
    void shard(std::string_view, Range, Compute) override {}
    void read_shards(std::string_view, Range, std::span<float>) override {}
    void counter(std::string_view, std::int64_t&) override {}
    void real(std::string_view, double&) override {}
  };
  const auto calls_of = []<class Model>(Model, int tensors) {
    Alone<exec::Cuda<f32>, optim::Adam, Model> trainer({.batch = 4});
    auto copy = trainer.state_copy();
    copy.prepare();
    Nowhere sink;
    const emulation::Counts before = emulation::Counts::now();
    copy.take(sink);
    const emulation::Counts calls = emulation::Counts::now() - before;
    CHECK(sink.tensors == tensors);
    return calls;
  };
  const auto small = calls_of(Plain(), 3 * 5), large = calls_of(Transformer(), 3 * 18);
  CHECK(small[Called::pageable_copy] == large[Called::pageable_copy]);
  CHECK(small.all() == large.all());
  CHECK(large.all() < 12);
}

TEST_CASE("cuda: a fit from a resident set waits for work that runs late") {
  using namespace train_resident;
  const data::ImageSet bytes = blobs_of_bytes(67);
  const emulation::With late({.late = true});
  CHECK(fitted(bytes, {}, true) == fitted(bytes, {}, false));
}

TEST_CASE("cuda: a captured step makes batches of the current data set, not of an earlier one") {
  using namespace train_resident;
  const data::ImageSet first = blobs_of_bytes(67), second = first.first(40);
  const auto fit_both = [&](bool resident) {
    auto config = config_of<train_cuda::Alone<Cuda>>({});
    config.exec.candidates = 1;  // with two, timing would decide the bits
    train_cuda::Alone<Cuda> trainer(config);
    const Trace before = trace_of(trainer, {}, first, resident);
    return std::pair{before, trace_of(trainer, {}, second, resident)};
  };
  CHECK(fit_both(true) == fit_both(false));
}

TEST_CASE("cuda: ranks that are threads fit from resident sets as from sets on the host") {
  using namespace train_resident;
  const data::ImageSet bytes = blobs_of_bytes(67);
  const emulation::With two({.devices = 2});
  const auto fits = [&](bool resident) {
    using T = Trainer<Mixed, optim::Sgd, comm::Staged<Ring, memory::Device>, Cuda>;
    std::vector<Trace> all(2);
    transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
      device::use(endpoint.rank());
      auto config = config_of<T>({.batch = 5});
      config.exec.candidates = 1;
      T trainer(config, endpoint);
      all[static_cast<std::size_t>(endpoint.rank())] = trace_of(trainer, {.batch = 5}, bytes, resident);
    });
    return all;
  };
  CHECK(fits(true) == fits(false));
}

TEST_CASE("cuda: a trainer made on one GPU is used by a thread that has chosen another") {
  using namespace train_resident;
  const data::ImageSet bytes = blobs_of_bytes(67);
  const emulation::With two({.devices = 2});
  const auto fitted_by = [&](auto&& run) {
    device::use(1);
    auto config = config_of<Alone<Cuda>>({});
    config.exec.candidates = 1;  // with two, timing would decide the bits
    Alone<Cuda> trainer(config);
    Trace trace;
    run([&] {
      trace = trace_of(trainer, {}, bytes, false);
      trainer.evaluate(bytes);
    });
    device::use(0);
    return trace;
  };
  const Trace here = fitted_by([](auto&& work) { work(); });
  const Trace there = fitted_by([](auto&& work) {
    std::exception_ptr failure;
    std::thread([&] {
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure) std::rethrow_exception(failure);
  });
  CHECK(here == there);
  device::use(0);  // the trainers were destroyed on the other one, which is gone after this test
}

TEST_CASE("cuda: a step from a resident set copies no batch") {
  using namespace train_resident;
  using emulation::Called;
  const auto calls = [](bool resident) {
    Alone<Cuda> trainer(config_of<Alone<Cuda>>({}));
    const data::ImageSet bytes = blobs_of_bytes(60);
    std::vector<emulation::Counts> seen;
    trainer.fit(bytes, {.epochs = 1,
                        .on_step =
                            [&](const train::StepReport&) {
                              seen.push_back(emulation::Counts::now());
                              return train::Control::go_on;
                            },
                        .log = nullptr,
                        .resident = resident});
    return seen.at(6) - seen.at(5);
  };
  const emulation::Counts read = calls(false), made = calls(true);
  CHECK(made.all() < read.all());
  CHECK(made[Called::pageable_copy] == 0);
  CHECK(made[Called::host_wait] <= read[Called::host_wait]);
}
