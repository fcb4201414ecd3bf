// ALSO: CONVOY_ISA=baseline CONVOY_ISA=avx2
// Vector loops: the same sums in each instruction set of this processor, and the choice between them.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <convoy/core/philox.hpp>
#include <convoy/parallel/simd.hpp>
#include <convoy/parallel/vector_philox.hpp>

using namespace convoy;

namespace {

// y = a * x + y, with a scalar tail; reports the vector width that it ran with.
struct Axpy {
  template <int W>
  CONVOY_INLINE static void run(float a, const float* x, float* y, int n, int* width) {
    *width = W;
    int i = 0;
    for (; i + W <= n; i += W) {
      simd::Vec<float, W> u, v;
      simd::load(u, x + i);
      simd::load(v, y + i);
      simd::store(y + i, v + a * u);
    }
    for (; i < n; ++i) y[i] += a * x[i];
  }
};

// Small integers, so the result is exact in any instruction set.
void check_axpy(int expected_width, auto&& call) {
  for (int n : {0, 1, 3, 4, 15, 16, 17, 100}) {
    std::vector<float> x(static_cast<std::size_t>(n) + 1), y(x.size());
    for (int i = 0; i < n; ++i)
      x[static_cast<std::size_t>(i)] = static_cast<float>(i), y[static_cast<std::size_t>(i)] = 1;
    y.back() = -5;
    int width = 0;
    call(2.0f, static_cast<const float*>(x.data()), y.data(), n, &width);
    CHECK(width == expected_width);
    for (int i = 0; i < n; ++i) REQUIRE(y[static_cast<std::size_t>(i)] == static_cast<float>(2 * i + 1));
    CHECK(y.back() == -5);
  }
}

struct Words {
  template <int W>
  CONVOY_INLINE static void run(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key,
                                std::vector<std::array<std::uint32_t, 4>>* all) {
    simd::Vec<std::uint32_t, W> words[4];
    simd::philox<W>(counter, key, words);
    all->resize(W);
    for (int i = 0; i < W; ++i)
      for (int w = 0; w < 4; ++w)
        (*all)[static_cast<std::size_t>(i)][static_cast<std::size_t>(w)] = words[w][i];
  }
};

int width_of(simd::Isa isa) { return isa == simd::Isa::avx512 ? 16 : isa == simd::Isa::avx2 ? 8 : 4; }

}  // namespace

TEST_CASE("the loop that was chosen computes what it should") {
  check_axpy(width_of(simd::isa()), [](auto... args) { simd::run<Axpy>(args...); });
}

TEST_CASE("the environment can ask for less than the processor has") {
  const char* wanted = std::getenv("CONVOY_ISA");
  const std::string_view name = wanted == nullptr ? "" : wanted;
  if (name == "baseline") CHECK(simd::isa() == simd::Isa::baseline);
  if (name == "avx2") CHECK(simd::isa() != simd::Isa::avx512);
  CHECK(simd::isa() == simd::isa());
}

#if defined(__x86_64__)
TEST_CASE("each instruction set computes the same") {
  check_axpy(4, [](auto... args) { Axpy::run<4>(args...); });
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    check_axpy(8, [](auto... args) { simd::run_avx2<Axpy>(args...); });
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl"))
    check_axpy(16, [](auto... args) { simd::run_avx512<Axpy>(args...); });
}
#endif

TEST_CASE("a vector of counters gives the words of each counter") {
  std::array<std::uint32_t, 4> counter{0, 0, 0, 0};
  std::array<std::uint32_t, 2> key{0, 0};
  for (int draw = 0; draw < 100; ++draw) {
    std::vector<std::array<std::uint32_t, 4>> all;
    simd::run<Words>(counter, key, &all);
    REQUIRE(static_cast<int>(all.size()) == width_of(simd::isa()));
    for (std::array<std::uint32_t, 4> next = counter; const auto& words : all) {
      REQUIRE(words == philox(next, key));
      ++next[0];
    }
    counter = philox(counter, key);                                                        // all bits vary
    if (draw % 10 == 0) counter[0] = 0xfffffff8u + static_cast<std::uint32_t>(draw / 10);  // some wrap around
    key = {counter[1], counter[2]};
  }
}
