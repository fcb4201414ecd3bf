// An exchange of your own: a schedule, which is proved before it runs, and a policy, which Trainer takes like
// any other. docs/own_exchange.md explains it.
#include <iostream>
#include <vector>

#include "common/arguments.hpp"
#include "common/printed.hpp"
#include <convoy/convoy.hpp>

using namespace convoy;

/// Everyone sends to rank 0, which adds up and sends the sums back.
struct Star {
  static constexpr std::string_view name = "star";
  static constexpr schedule::Goal goal = schedule::Goal::all_reduce;
  int segments = 1;
  friend constexpr bool operator==(const Star&, const Star&) = default;

  constexpr int blocks(int) const { return 1; }
  constexpr int owner(int, int) const { return 0; }
  template <class Emit>
  constexpr void steps(int rank, int size, Emit&& emit) const {
    using schedule::Action, schedule::Step;
    for (int s = 0; s < segments; ++s) {
      if (rank > 0) {
        emit(Step{Action::send, false, 0, s});
        emit(Step{Action::receive, false, 0, s});
        continue;
      }
      for (int r = 1; r < size; ++r) emit(Step{Action::receive_reduce, r + 1 == size, r, s});
      for (int r = 1; r < size; ++r) emit(Step{Action::send, false, r, s});
    }
  }
};
static_assert(schedule::verify(Star{}, 2) && schedule::verify(Star{3}, 8));

/// Local SGD (Stich 2019): every rank updates with its own gradients, and every k steps the parameters are
/// averaged.
template <class T, int k>
class LocalSgd : public comm::Collectives<schedule::Ring, T> {
  using Base = comm::Collectives<schedule::Ring, T>;

 public:
  static constexpr std::string_view policy() { return "local-sgd"; }
  static constexpr bool decides() { return false; }  // no rank sees the whole gradient
  explicit LocalSgd(const T& where = T{}, const comm::Options& options = {}) : Base(where, options) {}

  void open(const comm::Fingerprint& fingerprint, const comm::Layout& layout) {
    Base::agree_on(fingerprint, layout, policy());  // throws, naming the rank and the field that differ
    layout_ = layout;
  }
  void begin(int, Ready = {}) {}
  void finish(comm::Update update) {
    // Gradients are scaled for a sum over all ranks; the factor makes this rank's gradient count for all.
    for (const Range& bucket : layout_.buckets) update(bucket, static_cast<float>(this->size()));
    if (++step_ % k == 0) Base::all_reduce(layout_.parameters, comm::mean);
  }

 private:
  comm::Layout layout_;
  int step_ = 0;
};
static_assert(comm::Comm<LocalSgd<transport::Threads, 4>>);

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.flatten(g.input("image", Image{1, 28, 28}));
    x = g.relu(g.linear(x, {.features = 64}));
    x = g.linear(x, {.features = 10});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};

/// Trains on convoy's generated digits with an exchange and prints the test accuracy.
template <class Comm>
void fit_with(const data::ImageSplit& digits, const transport::Threads& endpoint, std::string_view name) {
  Trainer<Net, optim::Adam, Comm> trainer{{.batch = 32, .optimizer = {.lr = 3e-3f}, .exec = {.threads = 1}},
                                          endpoint};
  const auto report = trainer.fit(digits.train, {.epochs = 5, .validate = &digits.test, .log = nullptr});
  if (trainer.rank() == 0)
    std::cout << name << ": test accuracy " << report.epochs.back().test.accuracy.value() << '\n';
}

int main(int argc, char** argv) try {
  examples::expect_no_arguments(argc, argv);
  const auto digits = data::digits();
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    fit_with<comm::AllReduce<comm::Algorithm<Star, transport::Threads>>>(digits, endpoint, "star");
    fit_with<LocalSgd<transport::Threads, 4>>(digits, endpoint, "local sgd");
  });
  examples::expect_printed();
} catch (const std::exception& error) {
  std::cerr << "own_exchange: " << error.what() << '\n';
  return 1;
}
