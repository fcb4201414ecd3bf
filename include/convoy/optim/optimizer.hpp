// Optimizer: a rule together with its options, as Trainer and parameter servers drive it; and optim::Any, the
// rule that is chosen at run time.
#pragma once

#include <array>
#include <bit>
#include <string>
#include <variant>

#include <convoy/core/compiled.hpp>
#include <convoy/core/error.hpp>
#include <convoy/optim/adam.hpp>
#include <convoy/optim/apply.hpp>
#include <convoy/optim/sgd.hpp>

namespace convoy::optim {

/// The place of one pass in a run.
struct Pass {
  std::int64_t step = 1;  ///< counting from 1
  float lr = 0;           ///< after the schedule
  bool decay = true;      ///< whether weight decay applies to these parameters
};

/// The rule `R` with options.
template <class R>
class Optimizer {
  static_assert(
      Rule<R>,
      "convoy: an optimizer must be an optim::Rule (see optim/rule.hpp), such as optim::Sgd or optim::Adam");

 public:
  using Options = typename R::Options;

  explicit Optimizer(const Options& options) : options_(options) {
    if (!(options.lr >= 0))
      fail<ConfigError>("optimizer ", R::name, ": the learning rate ", options.lr, " is negative");
    if (!(options.weight_decay >= 0))
      fail<ConfigError>("optimizer ", R::name, ": the weight decay ", options.weight_decay, " is negative");
  }

  std::string_view name() const { return R::name; }
  int slots() const { return R::slots; }
  float lr() const { return options_.lr; }
  bool decays() const { return options_.weight_decay != 0; }
  bool decays_all() const { return options_.decay_all; }

  /// Bytes that ranks compare: equal options give equal text.
  std::string describe() const {
    const auto k = R::at(options_, 1, options_.lr, true);
    std::string text(R::name);
    for (const float value : std::bit_cast<std::array<float, sizeof(k) / sizeof(float)>>(k))
      text += concat(' ', value);
    return text;
  }

  /// Updates `n` parameters from gradients times `scale` (null: zero gradients).
  void apply(int threads, float* parameters, const float* gradients, float scale, std::array<float*, 2> state,
             std::int64_t n, const Pass& pass) const {
    optim::apply<R>(threads, parameters, gradients, scale, state, n,
                    R::at(options_, pass.step, pass.lr, pass.decay));
  }

 private:
  Options options_;
};

/// Stands for a rule that is chosen at run time: `Trainer<Model, optim::Any, ...>` is compiled once for all
/// of them.
struct Any {
  using Options = std::variant<Sgd::Options, Adam::Options>;
};

template <>
class Optimizer<Any> {
 public:
  using Options = Any::Options;

  explicit Optimizer(const Options& options)
      : chosen_(std::visit([](const auto& o) -> Chosen { return make(o); }, options)) {}

  std::string_view name() const {
    return std::visit([](const auto& o) { return o.name(); }, chosen_);
  }
  int slots() const {
    return std::visit([](const auto& o) { return o.slots(); }, chosen_);
  }
  float lr() const {
    return std::visit([](const auto& o) { return o.lr(); }, chosen_);
  }
  bool decays() const {
    return std::visit([](const auto& o) { return o.decays(); }, chosen_);
  }
  bool decays_all() const {
    return std::visit([](const auto& o) { return o.decays_all(); }, chosen_);
  }
  std::string describe() const {
    return std::visit([](const auto& o) { return o.describe(); }, chosen_);
  }
  void apply(int threads, float* parameters, const float* gradients, float scale, std::array<float*, 2> state,
             std::int64_t n, const Pass& pass) const {
    std::visit([&](const auto& o) { o.apply(threads, parameters, gradients, scale, state, n, pass); },
               chosen_);
  }

 private:
  using Chosen = std::variant<Optimizer<Sgd>, Optimizer<Adam>>;
  static Optimizer<Sgd> make(const Sgd::Options& options) { return Optimizer<Sgd>(options); }
  static Optimizer<Adam> make(const Adam::Options& options) { return Optimizer<Adam>(options); }

  Chosen chosen_;
};

CONVOY_INSTANTIATE(void apply<Sgd>(int, float*, const float*, float, std::array<float*, 2>, std::int64_t,
                                   const Sgd::Constants&));
CONVOY_INSTANTIATE(void apply<Adam>(int, float*, const float*, float, std::array<float*, 2>, std::int64_t,
                                    const Adam::Constants&));

}  // namespace convoy::optim
