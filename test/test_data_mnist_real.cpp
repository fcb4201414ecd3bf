// The published MNIST, if available: in the folder mnist of the folder that CONVOY_DATA names.
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include <doctest/doctest.h>

#include "skip.hpp"
#include <convoy/data/mnist.hpp>

using namespace convoy;

TEST_CASE("mnist: the real one has its published counts, mean and first labels") {
  const char* folder = std::getenv("CONVOY_DATA");
  if (folder == nullptr) SKIP("CONVOY_DATA is not set");
  const auto [train, test] = data::mnist(std::filesystem::path(folder) / "mnist");
  REQUIRE(train.size() == 60'000);
  REQUIRE(test.size() == 10'000);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < train.size(); ++i)
    for (u8 pixel : train.pixels(i)) {
      sum += pixel;
      squares += pixel * pixel;
    }
  const double n = 60'000.0 * 784 * 255, mean = sum / n;
  CHECK(mean == doctest::Approx(0.1307).epsilon(1e-3));
  CHECK(std::sqrt(squares / n / 255 - mean * mean) == doctest::Approx(0.3081).epsilon(1e-3));
  const int first_train[] = {5, 0, 4, 1, 9, 2, 1, 3, 1, 4}, first_test[] = {7, 2, 1, 0, 4, 1, 4, 9, 5, 9};
  for (std::size_t i = 0; i < 10; ++i) {
    CHECK(train.label(i) == first_train[i]);
    CHECK(test.label(i) == first_test[i]);
  }
}
