// EMULATES
// The elementwise kernels against the formulas of the reference.
#include <limits>

#include "emulated_values.hpp"
#include <convoy/exec/cuda/kernel/elementwise.cuh>
#include <convoy/exec/reference/reference.hpp>

using namespace emulated;
using namespace convoy::exec::cuda;
using graph::GeluForm;

namespace {

// For a functor, the reference in doubles: the value at x, and the slope there.
template <class F>
double value_of(double x);
template <class F>
double slope_of(double x);

using Below = exec::Kernel<exec::Reference<double>, graph::Gelu>::Below;
template <>
double value_of<Relu>(double x) {
  return x < 0 ? 0 : x;
}
template <>
double slope_of<Relu>(double x) {
  return x > 0;
}
template <>
double value_of<Gelu<GeluForm::erf>>(double x) {
  return x * Below(x, GeluForm::erf).chance;
}
template <>
double slope_of<Gelu<GeluForm::erf>>(double x) {
  const Below below(x, GeluForm::erf);
  return below.chance + x * below.slope;
}
template <>
double value_of<Gelu<GeluForm::tanh>>(double x) {
  return x * Below(x, GeluForm::tanh).chance;
}
template <>
double slope_of<Gelu<GeluForm::tanh>>(double x) {
  const Below below(x, GeluForm::tanh);
  return below.chance + x * below.slope;
}
template <>
double value_of<Sigmoid>(double x) {
  return 1 / (1 + std::exp(-x));
}
template <>
double slope_of<Sigmoid>(double x) {
  return value_of<Sigmoid>(x) * (1 - value_of<Sigmoid>(x));
}
template <>
double value_of<Tanh>(double x) {
  return std::tanh(x);
}
template <>
double slope_of<Tanh>(double x) {
  return 1 - std::tanh(x) * std::tanh(x);
}

constexpr std::int64_t counts[] = {1, 3, 4, 7, 8, 9, 16, 1000, 4099};

template <class F, class T>
void check_activation() {
  Philox random(3);
  for (const std::int64_t count : counts) {
    const auto x = draw<T>(random, count, -6, 6);
    const auto y = in_every_order([&] {
      Values<T> made(x.size());
      apply<F>(nullptr, count, x.data(), made.data());
      return made;
    });
    std::vector<double> expected;
    for (const T v : x) expected.push_back(value_of<F>(static_cast<float>(v)));
    CHECK(difference(y, expected, 2) == "");

    auto in_place = x;
    apply<F>(nullptr, count, in_place.data(), in_place.data());
    CHECK(in_place == y);

    for (const Options o : every_option) {
      const auto dy = draw<T>(random, count), before = draw<T>(random, count);
      const auto second = draw<T>(random, o.second ? count : 0);
      const auto dx = in_every_order([&] {
        auto made = before;
        slope<F, T>(nullptr, count, dy.data(), maybe(second), F::of_output ? y.data() : x.data(), made.data(),
                    o.accumulate);
        return made;
      });
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double g = static_cast<float>(dy[i]) + (o.second ? static_cast<float>(second[i]) : 0.0);
        expected[i] = g * slope_of<F>(static_cast<float>(x[i])) +
                      (o.accumulate ? static_cast<double>(static_cast<float>(before[i])) : 0);
      }
      // A slope computed from the rounded value is off by one rounding of the value, times the gradient and
      // its factor 2. In f32, tanh's slope is off by a rounding of 1 - chance, times up to x^3.
      CHECK(difference(dx, expected, std::is_same_v<T, float> ? 64 : F::of_output ? 8 : 4) == "");
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: activations and their slopes are the reference's", T, float, bf16, f16) {
  check_activation<Relu, T>();
  check_activation<Gelu<GeluForm::erf>, T>();
  check_activation<Gelu<GeluForm::tanh>, T>();
  check_activation<Sigmoid, T>();
  check_activation<Tanh, T>();
}

TEST_CASE_TEMPLATE("cuda: activations of large numbers are finite, and NaN stays NaN", T, float, bf16, f16) {
  const float large = 60000, nan = std::numeric_limits<float>::quiet_NaN();
  const Values<T> x{T(-large), T(large), T(nan)};
  const auto made = [&](auto functor) {
    Values<T> y(3);
    apply<decltype(functor)>(nullptr, 3, x.data(), y.data());
    return y;
  };
  const double most = static_cast<double>(static_cast<float>(x[1])), none = std::nan("");
  CHECK(difference(made(Relu{}), std::vector{0.0, most, none}) == "");
  CHECK(difference(made(Gelu<GeluForm::erf>{}), std::vector{0.0, most, none}) == "");
  CHECK(difference(made(Gelu<GeluForm::tanh>{}), std::vector{0.0, most, none}) == "");
  CHECK(difference(made(Sigmoid{}), std::vector{0.0, 1.0, none}) == "");
  CHECK(difference(made(Tanh{}), std::vector{-1.0, 1.0, none}) == "");
}

TEST_CASE_TEMPLATE("cuda: a gradient passes a mask where its value is above zero", T, float, bf16, f16) {
  Philox random(5);
  for (const std::int64_t count : counts)
    for (const bool masked : {false, true})
      for (const Options o : every_option) {
        auto dy = draw<T>(random, count);
        const auto before = draw<T>(random, count), second = draw<T>(random, o.second ? count : 0);
        const auto mask = draw<T>(random, masked ? count : 0, -2, 2, 1);
        // Masked elements leave no trace, not even as a product with zero.
        for (std::size_t i = 0; i < mask.size(); ++i)
          if (!(static_cast<float>(mask[i]) > 0)) dy[i] = T(std::numeric_limits<float>::infinity());
        const auto dx = in_every_order([&] {
          auto made = before;
          pass<T>(nullptr, count, dy.data(), maybe(second), maybe(mask), made.data(), o.accumulate);
          return made;
        });
        std::vector<float> expected;
        for (std::size_t i = 0; i < dy.size(); ++i) {
          float g = static_cast<float>(dy[i]) + (o.second ? static_cast<float>(second[i]) : 0.0f);
          if (masked && !(static_cast<float>(mask[i]) > 0)) g = 0;
          expected.push_back(g + (o.accumulate ? static_cast<float>(before[i]) : 0.0f));
        }
        CHECK(difference_of_bits(dx, expected) == "");
      }
}

TEST_CASE_TEMPLATE("cuda: sums and products", T, float, bf16, f16) {
  Philox random(6);
  for (const std::int64_t count : counts) {
    const auto a = draw<T>(random, count), b = draw<T>(random, count);
    for (const bool relu : {false, true}) {
      const auto sum = in_every_order([&] {
        Values<T> y(a.size());
        add(nullptr, count, a.data(), b.data(), y.data(), relu);
        return y;
      });
      std::vector<float> expected;
      for (std::size_t i = 0; i < a.size(); ++i) {
        const float s = static_cast<float>(a[i]) + static_cast<float>(b[i]);
        expected.push_back(relu && s < 0 ? 0.0f : s);
      }
      CHECK(difference_of_bits(sum, expected) == "");
    }

    const auto product = in_every_order([&] {
      Values<T> y(a.size());
      multiply(nullptr, count, a.data(), b.data(), y.data());
      return y;
    });
    std::vector<float> expected;
    for (std::size_t i = 0; i < a.size(); ++i)
      expected.push_back(static_cast<float>(a[i]) * static_cast<float>(b[i]));
    CHECK(difference_of_bits(product, expected) == "");

    for (const Options o : every_option) {
      const auto before = draw<T>(random, count), second = draw<T>(random, o.second ? count : 0);
      const auto dx = in_every_order([&] {
        auto made = before;
        multiply_backward<T>(nullptr, count, a.data(), maybe(second), b.data(), made.data(), o.accumulate);
        return made;
      });
      for (std::size_t i = 0; i < a.size(); ++i) {
        const float g = static_cast<float>(a[i]) + (o.second ? static_cast<float>(second[i]) : 0.0f);
        expected[i] = g * static_cast<float>(b[i]) + (o.accumulate ? static_cast<float>(before[i]) : 0.0f);
      }
      // A compiler may fuse the product and the sum into one rounding.
      CHECK(difference(dx, std::vector<double>(expected.begin(), expected.end())) == "");
    }
  }
}

TEST_CASE("cuda: tensors of more vectors than a grid has threads") {
  const std::int64_t count = 132 * 8 * 256 * 4 * 2 + 4 * 77 + 3;
  Values<float> a(static_cast<std::size_t>(count)), y(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 1021);
  pass<float>(nullptr, count, a.data(), nullptr, nullptr, y.data(), false);
  CHECK(y == a);
}
