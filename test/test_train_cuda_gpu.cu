// NEEDS: cuda
// LABELS: cuda gpu
// TIMEOUT: 300
// Training over exec::Cuda on a GPU.
#include "train_cuda.hpp"
#include "train_full_size.hpp"
#include "train_resident.hpp"

TEST_CASE("cuda: a Transformer of full size trains as on the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_full_size;
  const Plan& plan = plan_of<Transformer>;
  const Trained expected = trained_by<exec::Reference<f32>>(plan, Sentences(), 0.01f),
                seen = trained_by<exec::Cuda<f32>>(plan, Sentences(), 0.01f);
  CHECK(apart(seen.losses, expected.losses) < 1e-4);
  CHECK(apart(seen.parameters, expected.parameters) < 1e-5);
  CHECK(seen == trained_by<exec::Cuda<f32>>(plan, Sentences(), 0.01f));
  const Trained halved = trained_by<exec::Cuda<bf16>>(plan, Sentences(), 0.01f);
  CHECK(apart(halved.losses, expected.losses) < 1e-2);
  CHECK(halved == trained_by<exec::Cuda<bf16>>(plan, Sentences(), 0.01f));
}

// The last batch norms have eight values per channel, so that rounding differences grow tenfold per step:
// exec::Host is 2% off after five steps.
TEST_CASE("cuda: ResNet-18 trains as on the reference") {
  if (convoy::device::count() == 0) SKIP("there is no GPU here");
  using namespace train_full_size;
  const Plan& plan = plan_of<ResNet18>;
  const Trained expected = trained_by<exec::Reference<f32>>(plan, Digits(), 3e-3f),
                seen = trained_by<exec::Cuda<f32>>(plan, Digits(), 3e-3f);
  CHECK(seen.losses[0] == doctest::Approx(expected.losses[0]).epsilon(1e-4));
  CHECK(seen.losses[1] == doctest::Approx(expected.losses[1]).epsilon(1e-2));
  CHECK(apart(seen.parameters, expected.parameters) < 0.2);
  CHECK(seen.losses.back() < 0.5 * seen.losses.front());
  CHECK(seen == trained_by<exec::Cuda<f32>>(plan, Digits(), 3e-3f));
  const Trained halved = trained_by<exec::Cuda<bf16>>(plan, Digits(), 3e-3f);
  CHECK(halved.losses.back() < 0.5 * halved.losses.front());
  CHECK(halved == trained_by<exec::Cuda<bf16>>(plan, Digits(), 3e-3f));
}
