// What Trainer itself costs: steps of ResNet-18's plan on an Exec that computes nothing and a Comm that
// exchanges nothing, so that only the steps' own bookkeeping is left. check.sh runs it under callgrind.
#include <cstdlib>
#include <iostream>

#include <convoy/comm/policy/none.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/trainer.hpp>

using namespace convoy;

namespace {

/// Says at each of the plan's steps that the gradients are final, as a real Exec would.
class NullExec {
 public:
  using Scalar = float;
  struct Options {
    int threads = 1;
  };
  static constexpr exec::Space space = exec::Space::host;

  NullExec(const Plan& plan, int, const Options&, std::pmr::memory_resource* arenas)
      : plan_(plan),
        parameters_(static_cast<std::size_t>(plan.sizes.parameters), arenas),
        gradients_(static_cast<std::size_t>(plan.sizes.exchanged), arenas),
        statistics_(static_cast<std::size_t>(plan.sizes.statistics)) {}

  std::string_view precision() const { return "f32"; }
  std::uint64_t layout_fingerprint() const { return 0; }
  int threads() const { return 1; }
  std::span<float> parameters() { return parameters_; }
  std::span<float> gradients() { return gradients_; }
  std::span<float> statistics() { return statistics_; }
  void read_parameter(int, std::span<float>) const {}
  void write_parameter(int, std::span<const float>) {}
  exec::Result forward(const exec::BatchView&, exec::Mode) { return {}; }
  template <class OnFinal>
  void backward(double, OnFinal&& on_final) {
    const auto steps = static_cast<std::int64_t>(plan_.steps.size());
    for (std::int64_t s = 1; s <= steps; ++s) on_final(plan_.sizes.exchanged * s / steps);
  }
  std::span<const float> output(int) { return {}; }
  double metric(int) { return 0; }

 private:
  const Plan& plan_;
  Buffer<float> parameters_, gradients_, statistics_;
};

/// None, but leaves the update out: its cost is the optimizer's, not Trainer's.
class Idle : public comm::None {
 public:
  void finish(comm::Update) {}
};

}  // namespace

int main(int, char** argv) {
  Trainer<models::ResNet18<Image{1, 28, 28}, 10>, optim::Sgd, Idle, NullExec> trainer{{.batch = 8}};
  const void* fields[2] = {};
  const int steps = std::atoi(argv[1]);
  for (int s = 0; s < steps; ++s) trainer.step({fields, 8});
  std::cout << trainer.steps_done() << " steps\n";
}
