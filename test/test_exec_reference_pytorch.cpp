// SANITIZE: none
// The reference against values made with PyTorch.
// TIMEOUT: 300
#include <doctest/doctest.h>

#include "exec_fixtures.hpp"

using namespace convoy;

TEST_CASE("reference: single operations and a residual block agree with PyTorch") {
  const fixtures::File file("operations.txt");
  CHECK(file.cases().size() >= 51);
  for (const auto& name : file.cases()) {
    CHECK(exec_fixtures::operation_difference<exec::Reference<double>>(file, name, 1e-8) == "");
    CHECK(exec_fixtures::operation_difference<exec::Reference<float>>(file, name, 1e-5) == "");
  }
}

TEST_CASE("reference: a ResNet-18 step agrees with PyTorch in loss, gradients and running statistics") {
  // The plan's momentum 0.1 is a float, which limits the tolerance.
  CHECK(exec_fixtures::resnet18_difference<exec::Reference<double>>(1e-7, 0) == "");
  CHECK(exec_fixtures::resnet18_difference<exec::Reference<float>>(1e-4, 4) == "");
}

TEST_CASE("reference: ten ResNet-18 losses under Adam and SGD agree with PyTorch") {
  CHECK(exec_fixtures::ten_losses_difference<exec::Reference<float>>(4) == "");
}
