// A user's program that trains with host and MPI: two steps of a model of its own.
#include <cmath>
#include <cstdio>

#include <convoy/convoy.hpp>

using namespace convoy;

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.input("image", Image{1, 28, 28});
    x = g.max_pool(g.relu(g.batch_norm(g.conv2d(x, {.channels = 8, .kernel = 3}))), {.kernel = 4});
    x = g.linear(g.flatten(x), {.features = 10});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};

int main(int argc, char** argv) {
  mpi::Session session{argc, argv};
  const auto digits = data::digits({.train = 64, .test = 32});
  Trainer<Net, optim::Sgd, comm::Ring<transport::Mpi>> trainer{{.batch = 32, .exec = {.threads = 1}}};
  const auto report = trainer.fit(digits.train, {.epochs = 1, .log = nullptr});
  std::printf("%d steps, loss %g\n", static_cast<int>(report.steps), report.loss);
  return report.steps == 2 && std::isfinite(report.loss) ? 0 : 1;
}
