// Shared parts of the Trainer tests: small models, data sets for them, a Comm over threads.
#pragma once

#include <convoy/comm/registry.hpp>
#include <convoy/data/data.hpp>
#include <convoy/exec/reference/reference.hpp>
#include <convoy/train/trainer.hpp>

namespace train_test {

using namespace convoy;

inline constexpr Image image{1, 8, 8};
inline constexpr int classes = 5;

/// No batch statistics, so the distribution of rows over ranks does not matter.
struct Plain {
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.max_pool(g.relu(g.conv2d(x, {.channels = 6, .bias = true})));
    x = g.relu(g.conv2d(x, {.channels = 8, .stride = 2}));
    x = g.linear(g.flatten(x), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

/// Plain with a bucket for each layer.
struct Bucketed : Plain {
  static constexpr BucketOptions buckets{.first = 64, .others = 64};
};

struct Normed {
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.relu(g.batch_norm(g.conv2d(x, {.channels = 4})));
    x = g.linear(g.flatten(g.avg_pool(x, {.kernel = 4})), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

/// The kernel's outer taps see only padding.
struct Dead {
  static constexpr void define(auto& g) {
    auto x = g.input("image", image);
    x = g.relu(g.max_pool(x, {.kernel = 8}));
    x = g.conv2d(x, {.channels = 3, .kernel = 3, .name = "conv"});
    x = g.linear(g.flatten(x), {.features = classes});
    g.output("logits", x);
    g.loss(g.cross_entropy(x, g.label("label", classes)));
  }
};

/// Class c is brighter along its own diagonal; learnable, and every sample is a function of its index.
class Blobs {
 public:
  explicit Blobs(std::size_t size, std::uint64_t seed = 7, std::size_t poisoned = ~std::size_t{0})
      : size_(size), seed_(seed), poisoned_(poisoned) {}
  std::size_t size() const { return size_; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    Philox random(seed_, index);
    const int label = static_cast<int>(index % classes);
    auto pixels = out.as<float>(0);
    for (int y = 0; y < image.height; ++y)
      for (int x = 0; x < image.width; ++x)
        pixels[static_cast<std::size_t>(y * image.width + x)] =
            0.5f * random.normal() + ((x + y) % classes == label ? 1.0f : 0.0f);
    if (index == poisoned_) pixels[0] = std::numeric_limits<float>::quiet_NaN();
    out.as<i32>(1)[0] = label;
  }

 private:
  std::size_t size_;
  std::uint64_t seed_;
  std::size_t poisoned_;
  std::array<data::Field, 2> fields_ = {data::Field{"image", DType::f32, image},
                                        data::Field{"label", DType::i32, {}}};
};

/// The first sample that a rank trains on in a step of the first epoch.
inline std::size_t first_sample(std::size_t samples, std::int64_t batch, int world, std::int64_t step,
                                int rank) {
  const data::BatchPlan plan(samples, batch, {.rank = rank, .world = world});
  const auto place = static_cast<std::uint64_t>(plan.rows(step).begin);
  return static_cast<std::size_t>(data::order_of(plan, 0, 0)(place));
}

/// Keeps the positions of a fit, and nothing else: every `every` steps (0: never) and where the fit ends.
class Positions final : public convoy::train::Keeper {
 public:
  explicit Positions(std::int64_t every = 0) : every_(every) {}
  std::vector<convoy::train::FitPosition> kept;

  convoy::train::FitPosition resume(std::int64_t) override {
    return kept.empty() ? convoy::train::FitPosition() : kept.back();
  }
  bool due(std::int64_t steps_done, bool) const override { return every_ > 0 && steps_done % every_ == 0; }
  void keep(const convoy::train::FitPosition& position) override { kept.push_back(position); }
  void finish() override {}

 private:
  std::int64_t every_;
};

template <class Model, class Rule = optim::Sgd>
using ThreadTrainer = Trainer<Model, Rule, comm::Ring<transport::Threads>, exec::Reference<f32>>;

template <class Trainer>
std::vector<float> all_parameters(Trainer& trainer) {
  std::vector<float> all;
  for (std::size_t p = 0; p < trainer.plan.parameter_list.size(); ++p) {
    std::vector<float> values(static_cast<std::size_t>(trainer.plan.parameter_list[p].shape.size()));
    trainer.exec().read_parameter(static_cast<int>(p), values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// Trains on `ranks` threads and returns rank 0's parameters.
template <class Trainer, class Config>
std::vector<float> train(int ranks, const Config& config, const data::DatasetRef& set,
                         const convoy::train::FitOptions& options) {
  std::vector<float> result;
  transport::Threads::World(ranks).run([&](const transport::Threads& endpoint) {
    Trainer trainer(config, endpoint);
    trainer.fit(set, options);
    auto parameters = all_parameters(trainer);
    if (trainer.rank() == 0) result = std::move(parameters);
  });
  return result;
}

inline float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<float>::infinity();
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

}  // namespace train_test
