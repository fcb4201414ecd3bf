// NEEDS: host
// ALSO: CONVOY_ISA=avx2 CONVOY_ISA=baseline
// Small models of every kind on Host against the reference.
#include <doctest/doctest.h>

#include "exec_compare.hpp"
#include <convoy/exec/host/host.hpp>
#include <convoy/models/bert.hpp>
#include <convoy/models/convnet.hpp>
#include <convoy/models/gpt.hpp>
#include <convoy/models/mlp.hpp>
#include <convoy/models/transformer.hpp>

using namespace convoy;

namespace {

void check(const Plan& plan) {
  std::uint64_t seed = 40;
  for (const int batch : {1, 5})
    for (const int threads : {1, 2})
      CHECK(exec_compare::difference<exec::Host<f32>>(
                plan, {.seed = ++seed, .batch = batch, .threads = threads}) == "");
}

}  // namespace

TEST_CASE("host: small models agree with the reference, with dropout") {
  check(plan_of<models::Mlp<Image{1, 3, 4}, 4, 7, 5>>);
  check(plan_of<models::ConvNet<Image{2, 8, 8}, 4>>);
  check(plan_of<models::Transformer<2, 24, 3, 40, 9, 30, 5>>);
  check(plan_of<models::Transformer<2, 16, 2, 24, 7, 30, 5, models::NormPlace::after>>);
  check(plan_of<models::Bert<2, 48, 3, 40, 9, 30, 4, 12>>);
  check(plan_of<models::Gpt2<2, 24, 3, 9, 30, 12>>);
}
