// EMULATES
// SANITIZE: none
// TIMEOUT: 600
// Fits from a data set that lies on a GPU, whose kernels and graphs run on processors.
#include "emulation/cublaslt.hpp"
#include "emulation/cudnn.hpp"
#include "emulation/emulation.hpp"
#include "train_resident.hpp"

TEST_CASE("cuda: a fit from a resident set waits for what is on its way") {
  using namespace train_resident;
  const data::ImageSet bytes = blobs_of_bytes(67);
  const emulation::With late({.late = true});
  CHECK(fitted(bytes, {}, true) == fitted(bytes, {}, false));
}

TEST_CASE("cuda: ranks that are threads fit from resident sets as one does") {
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
