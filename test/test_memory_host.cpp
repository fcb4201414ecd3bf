#include <cmath>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/core/error.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/memory/space.hpp>

using namespace convoy;

TEST_CASE("sums of squares are the same bits for every width of vectors") {
  Philox random(1);
  for (const std::int64_t n : {0, 1, 15, 16, 17, 4095, 4096, 4097, 10000}) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& value : values) value = random.normal();
    double narrow[3] = {}, middle[3] = {}, wide[3] = {}, exact = 0;  // sums of blocks
    memory::detail::SumSquaresLoop::run<4>(values.data(), n, narrow);
    memory::detail::SumSquaresLoop::run<8>(values.data(), n, middle);
    memory::detail::SumSquaresLoop::run<16>(values.data(), n, wide);
    for (const float value : values) exact += static_cast<double>(value) * static_cast<double>(value);
    for (int block = 0; block < 3; ++block) {
      CHECK(narrow[block] == middle[block]);
      CHECK(narrow[block] == wide[block]);
    }
    CHECK(narrow[0] + narrow[1] + narrow[2] == doctest::Approx(exact).epsilon(1e-12));
    memory::Host host;
    double scaled = 1;
    host.sum_squares(values.data(), n, 3.0f, &scaled);
    CHECK(scaled == doctest::Approx(1 + 9 * exact).epsilon(1e-12));
  }
}

TEST_CASE("sums of squares are the same bits for every number of threads") {
  Philox random(2);
  for (const std::int64_t n : {40000, 1 << 20, (1 << 20) + 4097, 3000001}) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& value : values) value = random.normal();
    memory::Host alone;
    double one = 0;
    alone.sum_squares(values.data(), n, 0.3f, &one);
    for (const int threads : {2, 3, 5}) {
      memory::Host team(std::pmr::new_delete_resource(), threads);
      double many = 0;
      team.sum_squares(values.data(), n, 0.3f, &many);
      CHECK(many == one);
    }
  }
}

TEST_CASE("an array of the host's space is zeroed and aligned, and moves") {
  memory::Host host;
  memory::Array<float, memory::Host> array(host, 100);
  REQUIRE(array.size() == 100);
  CHECK(reinterpret_cast<std::uintptr_t>(array.data()) % alignment == 0);
  for (int i = 0; i < 100; ++i) CHECK(array.data()[i] == 0.0f);
  host.fill(array.data(), 100, 2.0f);
  host.add(array.data(), array.data(), 100);
  CHECK(array.data()[99] == 4.0f);
  auto moved = std::move(array);
  CHECK(moved.data()[0] == 4.0f);
}

TEST_CASE("an end that waits for a space keeps silent about what the space throws") {
  struct Broken : memory::Host {
    int* asked;
    void synchronize() {
      ++*asked;
      throw Error("broken");
    }
  };
  int asked = 0;
  Broken space;
  space.asked = &asked;
  { const memory::AllDone done(space); }
  CHECK(asked == 1);
}
