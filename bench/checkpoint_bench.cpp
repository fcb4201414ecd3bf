// checkpoint_bench [FOLDER]: how long a checkpoint that is written in the background delays the steps after
// it, for each of three exchanges. ResNet-18 on images of 28x28, 2 ranks of one thread and 128 rows.
// Checkpoints are written in FOLDER, by default the system's folder for temporary files, and then removed.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "../examples/common/printed.hpp"
#include <convoy/comm/registry.hpp>
#include <convoy/convoy.hpp>
#include <convoy/train/report.hpp>

using namespace convoy;
namespace fs = std::filesystem;

namespace {

using Model = models::ResNet18<Image{1, 28, 28}, 10>;
constexpr int ranks = 2, batch = 128, every = 8, checkpoints = 5, steps = every * (checkpoints + 1);

/// The seconds from the end of each step to the end of the next, checkpoints included.
std::vector<double> seconds_between_steps(const std::string& comm, const fs::path& folder) {
  const data::Synthetic images(ranks * batch * steps,
                               {{{"image", DType::f32, Image{1, 28, 28}}}, {{"label", DType::i32, {}}, 10}});
  std::vector<double> seconds;
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    Trainer<Model, optim::Adam, comm::Any> trainer{{.batch = batch, .exec = {.threads = 1}},
                                                   comm::make(comm, endpoint)};
    train::Checkpoints kept(trainer, {.directory = folder, .every = every});
    Stopwatch watch;
    trainer.fit(images, {.on_step =
                             [&](const train::StepReport&) {
                               if (trainer.rank() == 0) seconds.push_back(watch.seconds());
                               watch.restart();
                               return train::Control::go_on;
                             },
                         .log = nullptr,
                         .keeper = &kept});
  });
  return seconds;
}

void measure(const std::string& comm, const fs::path& folder) {
  const std::vector<double> seconds = seconds_between_steps(comm, folder);
  fs::remove_all(folder);
  // In a period of `every` steps, the second half does not feel the checkpoint before it.
  std::vector<double> usual, next, period;
  for (std::size_t s = every; s < seconds.size(); ++s)
    if (s % every >= every / 2) usual.push_back(seconds[s]);
  const double step = train::median(usual);
  for (std::size_t s = every; s < seconds.size(); s += every) {
    next.push_back(seconds[s] - step);
    double sum = 0;
    for (std::size_t i = 0; i < every / 2; ++i) sum += seconds[s + i] - step;
    period.push_back(sum);
  }
  std::cout << std::left << std::setw(10) << comm << std::right << std::fixed << std::setprecision(1);
  for (const double value : {step, train::median(next), *std::max_element(next.begin(), next.end()),
                             train::median(period), *std::max_element(period.begin(), period.end())})
    std::cout << std::setw(13) << value * 1e3;
  std::cout << std::endl;
}

}  // namespace

int main(int argc, char** argv) try {
  const fs::path folder = (argc > 1 ? fs::path(argv[1]) : fs::temp_directory_path()) / "checkpoint_bench";
  fs::remove_all(folder);
  std::cout << "ms         usual step   next step:    largest  four steps:      largest  (delays)\n";
  for (const char* const comm : {"ring", "sharded", "ps"}) measure(comm, folder);
  examples::expect_printed();
} catch (const std::exception& error) {
  std::cerr << "checkpoint_bench: " << error.what() << '\n';
  return 1;
}
