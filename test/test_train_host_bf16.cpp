// NEEDS: host
// TIMEOUT: 300
// Trainings on the CPU with products in bf16, emulated where it has no instructions for them: losses compared
// with those in f32, the same bits in every run and on all ranks, checkpoints, ranks with two precisions.
#include <array>
#include <cmath>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "sanitized.hpp"
#include "skip.hpp"
#include "temporary_folder.hpp"
#include "train_support.hpp"
#include <convoy/exec/host/backend.hpp>
#include <convoy/exec/host/host.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/resnet.hpp>
#include <convoy/train/checkpoint.hpp>

using namespace convoy;
using namespace train_test;
using transport::Threads;

namespace {

bool can_multiply() { return exec::host::has_isa(dnnl_cpu_isa_avx512_core); }
const std::string lacking = "oneDNN has no products in bf16 on this processor, which lacks AVX-512";

/// Maps of 8x8 and smaller: most are multiplied by oneDNN, the last by convoy.
using Images = models::ResNet<image, classes, models::ResidualBlock::basic, models::Stages{{1, 1, 1, 1}},
                              DType::f32, models::Stem::small>;
constexpr int length = 12, vocabulary = 40;
using Tokens = models::Gpt2<2, 32, 2, length, vocabulary, length, 0>;

/// Rows that count up by one, two or three; learnable, because the second token reveals the step.
class Counting {
 public:
  std::size_t size() const { return 64; }
  std::span<const data::Field> fields() const { return fields_; }
  void read(std::size_t index, data::Sample out) const {
    const int from = static_cast<int>(index * 7), step = 1 + static_cast<int>(index % 3);
    for (int i = 0; i < length; ++i) {
      out.as<i32>(0)[static_cast<std::size_t>(i)] = (from + i * step) % vocabulary;
      out.as<i32>(1)[static_cast<std::size_t>(i)] = (from + (i + 1) * step) % vocabulary;
    }
  }

 private:
  std::array<data::Field, 2> fields_ = {data::Field{"input_ids", DType::i32, {length}},
                                        data::Field{"labels", DType::i32, {length}}};
};

const Blobs blobs(96);
const Counting counting;

template <class Model, class P>
using Made = Trainer<Model, optim::Adam, comm::Ring<Threads>, exec::Host<P>>;

template <class Model, class P>
typename Made<Model, P>::Config config(int batch) {
  return {.batch = batch,
          .optimizer = {.lr = 2e-3f},
          .exec = {.threads = 1, .products = exec::HostProducts::bf16},
          .seed = 3};
}

struct Left {
  std::vector<double> losses;             // of each step
  std::vector<std::vector<float>> ranks;  // all parameters of each
};

template <class Model, class P>
Left fit(const data::DatasetRef& set, int ranks, std::int64_t steps,
         const train::CheckpointOptions* checkpoints = nullptr) {
  Left left;
  left.ranks.resize(static_cast<std::size_t>(ranks));
  Threads::World(ranks).run([&](const Threads& endpoint) {
    Made<Model, P> trainer(config<Model, P>(16 / ranks), endpoint);
    CHECK(trainer.exec().precision() == name_of(dtype_of<P>));
    std::optional<train::Checkpoints<Made<Model, P>>> keeper;
    if (checkpoints != nullptr) keeper.emplace(trainer, *checkpoints);
    trainer.fit(set, {.epochs = 100,
                      .steps = steps,
                      .on_step =
                          [&](const train::StepReport& step) {
                            if (trainer.rank() == 0) left.losses.push_back(step.loss);
                            return train::Control::go_on;
                          },
                      .log = nullptr,
                      .keeper = keeper ? &*keeper : nullptr});
    left.ranks[static_cast<std::size_t>(trainer.rank())] = all_parameters(trainer);
  });
  return left;
}

/// Checks that losses fall, and that those in bf16 are near those in f32 on average, relative to the first.
template <class Model>
void compare_losses(const data::DatasetRef& set) {
  constexpr std::int64_t steps = 30;
  const Left full = fit<Model, f32>(set, 1, steps), half = fit<Model, bf16>(set, 1, steps);
  REQUIRE(full.losses.size() == steps);
  REQUIRE(half.losses.size() == steps);
  double apart = 0;
  for (std::size_t i = 0; i < full.losses.size(); ++i)
    apart += std::abs(half.losses[i] - full.losses[i]) / steps;
  MESSAGE("losses of ", steps, " steps from ", full.losses[0], " to ", full.losses.back(), " in f32 and ",
          half.losses.back(), " in bf16, on average ", apart, " apart");
  CHECK(full.losses.back() < 0.7 * full.losses[0]);
  CHECK(apart < 3e-3 * full.losses[0]);
  CHECK(half.ranks[0] != full.ranks[0]);
}

}  // namespace

TEST_CASE("in bf16 losses fall as in f32") {
  if (!can_multiply()) SKIP(lacking);
  compare_losses<Images>(data::DatasetRef(&blobs));
  compare_losses<Tokens>(data::DatasetRef(&counting));
}

TEST_CASE("in bf16 two runs give the same bits, and two ranks the same parameters") {
  if (!can_multiply()) SKIP(lacking);
  const data::DatasetRef set(&counting);
  constexpr std::int64_t steps = 8;
  const Left alone = fit<Tokens, bf16>(set, 1, steps), two = fit<Tokens, bf16>(set, 2, steps);
  CHECK(alone.ranks == fit<Tokens, bf16>(set, 1, steps).ranks);
  CHECK(two.ranks == fit<Tokens, bf16>(set, 2, steps).ranks);
  CHECK(two.ranks[0] == two.ranks[1]);
  // Ranks divide the batch, and no sum over rows is rounded to bf16.
  for (std::size_t i = 0; i < steps; ++i)
    CHECK(two.losses[i] == doctest::Approx(alone.losses[i]).epsilon(1e-3));
}

TEST_CASE("a run in bf16 resumes from a checkpoint with the same bits") {
  if (sanitized) return;  // checkpoints of f32 use the same memory
  if (!can_multiply()) SKIP(lacking);
  const TemporaryFolder folder;
  const data::DatasetRef set(&blobs);
  const train::CheckpointOptions options{.directory = folder.path, .every = 3, .resume = true};
  fit<Images, bf16>(set, 2, 3, &options);
  const Left rest = fit<Images, bf16>(set, 2, 6, &options), whole = fit<Images, bf16>(set, 2, 6);
  CHECK(rest.losses.size() == 3);
  CHECK(rest.ranks == whole.ranks);
}

TEST_CASE("ranks with two precisions are refused") {
  if (!can_multiply()) SKIP(lacking);
  const auto open = [](const Threads& endpoint) {
    if (endpoint.rank() == 0)
      Made<Tokens, f32>(config<Tokens, f32>(4), endpoint);
    else
      Made<Tokens, bf16>(config<Tokens, bf16>(4), endpoint);
  };
  try {
    Threads::World(2).run(open);
    FAIL("they train");
  } catch (const std::exception& error) {
    CHECK(std::string(error.what()).find("rank 1 differs from rank 0 in precision: bf16 instead of f32") !=
          std::string::npos);
  }
}
