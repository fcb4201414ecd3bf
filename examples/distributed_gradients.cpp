// Exchange without Trainer: a program with its own model, tensors and training loop, in which convoy only
// exchanges the gradients, during backward. docs/exchange_without_trainer.md explains it.
//
//     mpirun -np 2 distributed_gradients          ranks are processes
//     distributed_gradients --threads 2           ranks are threads of this process
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "common/printed.hpp"
#include <convoy/comm/tensors/broadcast.hpp>
#include <convoy/comm/tensors/gradient_buckets.hpp>
#include <convoy/comm/transport/mpi.hpp>

using namespace convoy;

/// Two layers with tanh between them, in its own vectors; it does not use convoy.
struct Perceptron {
  static constexpr std::size_t inputs = 2, hidden = 64;
  std::vector<float> w1 = std::vector<float>(hidden * inputs), b1 = std::vector<float>(hidden);
  std::vector<float> w2 = std::vector<float>(hidden), b2 = std::vector<float>(1);

  explicit Perceptron(unsigned seed) {
    std::mt19937 numbers(seed);
    std::normal_distribution<float> normal;
    for (float& w : w1) w = normal(numbers);
    for (float& w : w2) w = normal(numbers) / 8;
  }
  float forward(const float* x, float* h) const {
    float y = b2[0];
    for (std::size_t j = 0; j < hidden; ++j) {
      h[j] = std::tanh(w1[j * inputs] * x[0] + w1[j * inputs + 1] * x[1] + b1[j]);
      y += w2[j] * h[j];
    }
    return y;
  }
};

/// The gradients of a squared error over some rows, in order from the last layer; calls `on_final(i)` as soon
/// as the i-th is final. Returns the mean error.
template <class OnFinal>
float backward(const Perceptron& net, const std::vector<float>& xs, const std::vector<float>& ys,
               std::vector<float>& db2, std::vector<float>& dw2, std::vector<float>& db1,
               std::vector<float>& dw1, OnFinal on_final) {
  constexpr std::size_t hidden = Perceptron::hidden, inputs = Perceptron::inputs;
  const std::size_t rows = ys.size();
  std::vector<float> h(rows * hidden), dy(rows);
  float loss = 0;
  for (auto* d : {&db2, &dw2, &db1, &dw1}) std::fill(d->begin(), d->end(), 0.0f);
  for (std::size_t r = 0; r < rows; ++r) {
    const float error = net.forward(&xs[r * inputs], &h[r * hidden]) - ys[r];
    loss += error * error / static_cast<float>(rows);
    dy[r] = 2 * error / static_cast<float>(rows);
    db2[0] += dy[r];
    for (std::size_t j = 0; j < hidden; ++j) dw2[j] += dy[r] * h[r * hidden + j];
  }
  on_final(0);
  on_final(1);
  for (std::size_t r = 0; r < rows; ++r)
    for (std::size_t j = 0; j < hidden; ++j) {
      const float a = h[r * hidden + j], da = dy[r] * net.w2[j] * (1 - a * a);
      db1[j] += da;
      for (std::size_t i = 0; i < inputs; ++i) dw1[j * inputs + i] += da * xs[r * inputs + i];
    }
  on_final(2);
  on_final(3);
  return loss;
}

/// Trains on this rank's rows of every batch of 64. Returns false if the ranks' parameters differ in any bit.
template <class Transport>
bool train(const Transport& world) {
  constexpr unsigned batch = 64, steps = 600;
  comm::Nonblocking<comm::Ring<Transport>> exchange(world);
  const auto rank = static_cast<unsigned>(exchange.rank()), ranks = static_cast<unsigned>(exchange.size());
  if (batch % ranks != 0)
    fail<ConfigError>("a batch of ", batch, " rows cannot be shared equally by ", ranks, " ranks");

  Perceptron net(rank);  // different on each rank until rank 0's is broadcast
  const std::vector<comm::NamedSpan> parameters{
      {"fc2.bias", net.b2}, {"fc2.weight", net.w2}, {"fc1.bias", net.b1}, {"fc1.weight", net.w1}};
  comm::broadcast(exchange, parameters);

  std::vector<float> db2(net.b2.size()), dw2(net.w2.size()), db1(net.b1.size()), dw1(net.w1.size());
  // In the order in which backward finishes them. Buckets of real models are megabytes; here they are 300
  // bytes.
  comm::GradientBuckets gradients(
      exchange, {{"fc2.bias", db2}, {"fc2.weight", dw2}, {"fc1.bias", db1}, {"fc1.weight", dw1}},
      {.op = comm::Op::mean, .first_bytes = 300, .bucket_bytes = 300});

  std::mt19937 numbers(7);  // the same on all ranks; each takes its rows of every batch
  std::uniform_real_distribution<float> uniform(-1, 1);
  const unsigned rows = batch / ranks, first = rows * rank;
  std::vector<float> xs(Perceptron::inputs * rows), ys(rows);
  float loss = 0;
  for (unsigned step = 0; step < steps; ++step) {
    for (unsigned row = 0; row < batch; ++row) {
      const float a = uniform(numbers), b = uniform(numbers);
      if (row < first || row >= first + rows) continue;
      xs[2 * (row - first)] = a;
      xs[2 * (row - first) + 1] = b;
      ys[row - first] = std::sin(3 * a) + b * b;
    }
    loss = backward(net, xs, ys, db2, dw2, db1, dw1, [&](int i) { gradients.ready(i); });
    gradients.wait();
    const auto descend = [](std::vector<float>& parameter, const std::vector<float>& gradient) {
      for (std::size_t i = 0; i < parameter.size(); ++i) parameter[i] -= 0.05f * gradient[i];
    };
    descend(net.b2, db2);
    descend(net.w2, dw2);
    descend(net.b1, db1);
    descend(net.w1, dw1);
  }

  float loss_of_all[] = {loss};
  exchange.all_reduce(std::span<float>(loss_of_all), comm::mean);
  double checksum = 0;
  for (const auto* parameter : {&net.b2, &net.w2, &net.b1, &net.w1})
    for (std::size_t i = 0; i < parameter->size(); ++i)
      checksum += static_cast<double>((*parameter)[i]) * static_cast<double>(1 + i % 3);
  const std::vector<double> checksums = comm::all_gather(exchange, checksum);
  bool agree = true;
  for (const double c : checksums) agree = agree && c == checksums[0];
  if (rank == 0)
    std::cout << std::setprecision(7) << "ranks: " << ranks << "\nloss: " << loss_of_all[0]
              << "\nchecksum: " << checksum << "\nranks agree: " << (agree ? "yes" : "no") << '\n';
  return agree;
}

int main(int argc, char** argv) try {
  std::atomic<bool> agree = true;
  if (argc == 3 && std::string_view(argv[1]) == "--threads") {
    transport::Threads::World(std::atoi(argv[2])).run([&](const transport::Threads& world) {
      if (!train(world)) agree = false;
    });
  } else if (argc == 1) {
    mpi::Session session{argc, argv};
    agree = train(transport::Mpi{session});
  } else {
    std::cerr << "usage: distributed_gradients [--threads N]\n";
    return 2;
  }
  examples::expect_printed();
  return agree ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "distributed_gradients: " << error.what() << '\n';
  return 1;
}
