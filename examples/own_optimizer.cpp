// An optimizer of your own: arithmetic on one element, which Trainer runs as one vectorized pass over all
// elements.
#include <iostream>

#include "common/arguments.hpp"
#include "common/printed.hpp"
#include <convoy/convoy.hpp>

using namespace convoy;

/// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023): every parameter moves by the
/// sign of a momentum, so that Lion needs half of Adam's state.
struct Lion {
  struct Options {
    using Rule = Lion;  // so that Lion::Options convert to optim::Any's
    float lr = 1e-4f;
    float beta1 = 0.9f;
    float beta2 = 0.99f;
    float weight_decay = 0;
    static constexpr void fields(auto& self, auto&& field) {  // what ranks compare
      field("lr", self.lr);
      field("beta1", self.beta1);
      field("beta2", self.beta2);
      field("weight_decay", self.weight_decay);
    }
  };
  struct Constants {
    float lr, beta1, beta2, decay;
  };
  static constexpr std::string_view name = "lion";
  static constexpr int slots = 1;

  static Constants at(const Options& o, std::int64_t, float lr) {
    return {lr, o.beta1, o.beta2, o.weight_decay};
  }

  /// V is float or a vector of floats; optim::square_root(root, x) is root = std::sqrt(x) for both.
  template <class V>
  CONVOY_INLINE static void update(V& p, const V& g, V (&momentum)[1], const Constants& k) {
    const V zero{}, one = zero + 1.0f;
    const V direction = k.beta1 * momentum[0] + (1.0f - k.beta1) * g;
    const V sign = direction > zero ? one : (direction < zero ? -one : zero);
    p = p - k.lr * (sign + k.decay * p);
    momentum[0] = k.beta2 * momentum[0] + (1.0f - k.beta2) * g;
  }
};
static_assert(optim::Rule<Lion>);

struct Net {
  static constexpr void define(auto& g) {
    auto x = g.flatten(g.input("image", Image{1, 28, 28}));
    x = g.relu(g.linear(x, {.features = 64}));
    x = g.linear(x, {.features = 10});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", 10)));
  }
};

/// Trains on convoy's generated digits with an optimizer, chosen while compiling or at run time, and prints
/// the test accuracy.
template <class Rule>
void fit_with(const typename optim::Optimizer<Rule>::Options& options, const data::ImageSplit& digits,
              const transport::Threads& endpoint, std::string_view name) {
  Trainer<Net, Rule, comm::Ring<transport::Threads>> trainer{
      {.batch = 32, .optimizer = options, .exec = {.threads = 1}}, endpoint};
  const auto report = trainer.fit(digits.train, {.epochs = 5, .validate = &digits.test, .log = nullptr});
  if (trainer.rank() == 0)
    std::cout << name << ": test accuracy " << report.epochs.back().test.accuracy.value() << '\n';
}

int main(int argc, char** argv) try {
  examples::expect_no_arguments(argc, argv);
  const auto digits = data::digits();
  const Lion::Options lion{.lr = 1e-3f, .weight_decay = 0.1f};
  transport::Threads::World(2).run([&](const transport::Threads& endpoint) {
    fit_with<Lion>(lion, digits, endpoint, "lion");
    fit_with<optim::Any>(lion, digits, endpoint, "any optimizer");
  });
  examples::expect_printed();
} catch (const std::exception& error) {
  std::cerr << "own_optimizer: " << error.what() << '\n';
  return 1;
}
