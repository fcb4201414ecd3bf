// Gaussian error linear units in plain loops.
#pragma once

#include <cmath>
#include <cstddef>
#include <numbers>

#include <convoy/exec/reference/frame.hpp>

namespace convoy::exec {

template <class T>
struct Kernel<Reference<T>, graph::Gelu> {
  /// The distribution function of the standard normal at x, exact or by the tanh approximation, and its
  /// derivative.
  struct Below {
    T chance, slope;
    Below(T x, graph::GeluForm form) {
      if (form == graph::GeluForm::erf) {
        chance = (T(1) + std::erf(x / std::numbers::sqrt2_v<T>)) / T(2);
        slope = std::exp(-x * x / T(2)) * std::numbers::inv_sqrtpi_v<T> / std::numbers::sqrt2_v<T>;
      } else {
        const T root = std::numbers::sqrt2_v<T> * std::numbers::inv_sqrtpi_v<T>, cubic = T(0.044715);
        const T bent = std::tanh(root * (x + cubic * x * x * x));
        chance = (T(1) + bent) / T(2);
        slope = (T(1) - bent * bent) / T(2) * root * (T(1) + T(3) * cubic * x * x);
      }
    }
  };
  static graph::GeluForm form(const reference::Frame<T>& f) {
    return f.template attributes<graph::Gelu>().form;
  }
  static void forward(const reference::Frame<T>& f) {
    for (std::size_t i = 0; i < f.size(); ++i) f.y()[i] = f.x(0)[i] * Below(f.x(0)[i], form(f)).chance;
  }
  static void backward(const reference::Frame<T>& f) {
    T* dx = f.dx(0);
    for (std::size_t i = 0; dx != nullptr && i < f.size(); ++i) {
      const T x = f.x(0)[i];
      const Below below(x, form(f));
      dx[i] += f.dy()[i] * (below.chance + x * below.slope);
    }
  }
  static constexpr reference::Functions<T> make{forward, backward};
};

CONVOY_REFERENCE(Gelu);

}  // namespace convoy::exec
