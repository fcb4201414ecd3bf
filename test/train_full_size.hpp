// Models of published sizes, trained for some steps on samples that are a function of their index.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include <convoy/comm/policy/none.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/data/data.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/models/transformer.hpp>
#include <convoy/optim/sgd.hpp>
#include <convoy/train/trainer.hpp>

namespace train_full_size {

using namespace convoy;

inline constexpr int classes = 10;
inline constexpr Image digit{1, 28, 28};
using ResNet18 = models::ResNet18<digit, classes>;
/// The Transformer of SST-5 without dropout.
struct Transformer {
  static constexpr models::TransformerSizes sizes{.layers = 6,
                                                  .width = 256,
                                                  .heads = 4,
                                                  .ffn = 1024,
                                                  .length = 16,
                                                  .vocabulary = 16581,
                                                  .classes = classes,
                                                  .dropout = 0};
  static constexpr void define(auto& g) { models::define_transformer(g, sizes); }
};

/// Noise; the rows of pixels that belong to the label are brighter.
class Digits {
 public:
  std::size_t size() const { return 4096; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    Philox random(3, index);
    const int label = static_cast<int>(index % classes);
    const std::span<float> pixels = out.as<float>(0);
    for (std::size_t i = 0; i < pixels.size(); ++i)
      pixels[i] = random.uniform(0, 1) + (static_cast<int>(i / 28 % classes) == label ? 0.5f : 0.0f);
    out.as<i32>(1)[0] = label;
  }

 private:
  std::array<data::Field, 2> fields_ = {data::Field{"image", DType::f32, digit},
                                        data::Field{"label", DType::i32, {}}};
};

/// Words of which half equal their label.
class Sentences {
 public:
  std::size_t size() const { return 4096; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    Philox random(5, index);
    const int label = static_cast<int>(index % classes);
    for (i32& word : out.as<i32>(0))
      word = random.uniform(0, 2) < 1
                 ? label
                 : static_cast<i32>(random.below(static_cast<unsigned>(Transformer::sizes.vocabulary)));
    out.as<i32>(1)[0] = 1 + static_cast<i32>(random.below(static_cast<unsigned>(Transformer::sizes.length)));
    out.as<i32>(2)[0] = label;
  }

 private:
  std::array<data::Field, 3> fields_ = {
      data::Field{"input_ids", DType::i32, Shape{Transformer::sizes.length}},
      data::Field{"lengths", DType::i32, {}}, data::Field{"label", DType::i32, {}}};
};

struct Trained {
  std::vector<double> losses;  ///< of each step
  std::vector<float> parameters;
  friend bool operator==(const Trained&, const Trained&) = default;
};

/// Trains 20 steps of eight rows with SGD.
template <class Exec, class Set>
Trained trained_by(const Plan& plan, const Set& set, float rate, const typename Exec::Options& options = {}) {
  using T = train::PlanTrainer<optim::Sgd, comm::None, Exec>;
  typename T::Config config;
  config.batch = 8;
  config.optimizer.lr = rate;
  config.exec = options;
  T trainer(plan, config);
  Trained trained;
  trainer.fit(set, {.epochs = 1,
                    .steps = 20,
                    .on_step =
                        [&](const train::StepReport& step) {
                          trained.losses.push_back(step.loss);
                          return train::Control::go_on;
                        },
                    .log = nullptr});
  for (const auto& parameter : trainer.parameters())
    for (const float value : parameter.values()) trained.parameters.push_back(value);
  return trained;
}

/// Distance of `a` from `b`, relative to `b`'s norm.
template <class T>
double apart(const std::vector<T>& a, const std::vector<T>& b) {
  double all = 0, off = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    all += std::pow(static_cast<double>(b[i]), 2);
    off += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  }
  return a.size() == b.size() ? std::sqrt(off / all) : INFINITY;
}

}  // namespace train_full_size
