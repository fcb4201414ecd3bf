// Mma, on CPUs: replaces the library's file of this name, as launch.cuh does. Lanes exchange their fragments,
// and each computes its part of the result; sums are in f64.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../grid.hpp"
#include <convoy/core/dtype.hpp>
#include <convoy/memory/launch.cuh>

namespace convoy::device {

namespace detail {

/// The lower or the upper half of a word, as a number.
template <class T>
double half_of(std::uint32_t word, int upper) {
  return static_cast<double>(
      static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(word >> (16 * upper)))));
}

}  // namespace detail

/// c += a b, rounded to f32; every lane of the warp calls it. T is bf16 or f16.
template <class T>
void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  auto& block = *emulation::Block::running;
  const int g = static_cast<int>(block.lane()) / 4, t = static_cast<int>(block.lane()) % 4;
  double left[2][16], right[16][2];  // this lane's rows of a and columns of b
  block.exchange(0xffffffffu, std::array{a[0], a[1], a[2], a[3]}, {"multiply_add of a", file, line},
                 [&](const auto& lanes) {
                   for (int from = 0; from < 4; ++from) {
                     const auto words = lanes[4 * g + from];
                     for (int w = 0; w < 4; ++w)
                       for (int k = 0; k < 2; ++k)
                         left[w % 2][w / 2 * 8 + 2 * from + k] =
                             detail::half_of<T>(words[static_cast<std::size_t>(w)], k);
                   }
                 });
  block.exchange(0xffffffffu, std::array{b0, b1}, {"multiply_add of b", file, line}, [&](const auto& lanes) {
    for (int column = 0; column < 2; ++column)
      for (int from = 0; from < 4; ++from) {
        const auto words = lanes[4 * (2 * t + column) + from];
        for (int w = 0; w < 2; ++w)
          for (int k = 0; k < 2; ++k)
            right[w * 8 + 2 * from + k][column] = detail::half_of<T>(words[static_cast<std::size_t>(w)], k);
      }
  });
  for (int i = 0; i < 4; ++i) {
    double sum = static_cast<double>(c[i]);
    for (int k = 0; k < 16; ++k) sum += left[i / 2][k] * right[k][i % 2];
    c[i] = static_cast<float>(sum);
  }
}

/// Reads four matrices [8, 8] of 16 bits from shared memory: `row` of lane 8 m + r is row r of matrix m, 16
/// bytes at a multiple of 16. words[m] gets columns 2 t and 2 t + 1 of row g.
inline void load_matrices(std::uint32_t (&words)[4], const void* row, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  auto& block = *emulation::Block::running;
  const emulation::Place place{"load_matrices", file, line};
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
    throw block.fault_here(place, "with a row that is not at a multiple of 16");
  const int g = static_cast<int>(block.lane()) / 4, t = static_cast<int>(block.lane()) % 4;
  block.exchange(0xffffffffu, row, place, [&](const auto& lanes) {
    for (int m = 0; m < 4; ++m)
      std::memcpy(&words[m], static_cast<const std::uint16_t*>(lanes[8 * m + g]) + 2 * t, 4);
  });
}

/// As load_matrices for the transposed matrices: words[m] gets rows 2 t and 2 t + 1 of column g.
inline void load_transposed(std::uint32_t (&words)[4], const void* row, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
  auto& block = *emulation::Block::running;
  const emulation::Place place{"load_transposed", file, line};
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0)
    throw block.fault_here(place, "with a row that is not at a multiple of 16");
  const int g = static_cast<int>(block.lane()) / 4, t = static_cast<int>(block.lane()) % 4;
  block.exchange(0xffffffffu, row, place, [&](const auto& lanes) {
    for (int m = 0; m < 4; ++m) {
      std::uint16_t half[2];
      for (int k = 0; k < 2; ++k)
        std::memcpy(&half[k], static_cast<const std::uint16_t*>(lanes[8 * m + 2 * t + k]) + g, 2);
      words[m] = static_cast<std::uint32_t>(half[0]) | static_cast<std::uint32_t>(half[1]) << 16;
    }
  });
}

}  // namespace convoy::device
