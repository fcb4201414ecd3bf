// EMULATES
// The kernels over the positions of sequences, against plain loops.
#include "emulated_values.hpp"
#include <convoy/exec/cuda/kernel/gather.cuh>
#include <convoy/exec/cuda/kernel/mean.cuh>
#include <convoy/exec/cuda/kernel/position_embedding.cuh>

using namespace emulated;
using namespace convoy::exec::cuda;

namespace {

template <class T>
float at(const Values<T>& values, std::int64_t i) {
  return static_cast<float>(values[static_cast<std::size_t>(i)]);
}
template <class T>
float at_or_zero(const Values<T>& values, std::int64_t i) {
  return values.empty() ? 0.0f : at(values, i);
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: a position embedding is added to each row", T, float, bf16, f16) {
  Philox random(1);
  for (const int row : {1, 7, 8, 96, 3000})
    for (const int rows : {1, 5, 2049}) {
      if (rows > 5 && row > 8) continue;
      const auto x = draw<T>(random, rows * row);
      const auto table = draw<float>(random, row);
      const auto y = in_every_order([&] {
        Values<T> made(x.size());
        add_to_rows<T>(nullptr, rows, row, x.data(), table.data(), made.data());
        return made;
      });
      std::vector<float> expected;
      for (int i = 0; i < rows * row; ++i) expected.push_back(at(x, i) + at(table, i % row));
      CHECK(difference_of_bits(y, expected) == "");
    }
}

TEST_CASE_TEMPLATE("cuda: the gradient of a position embedding is the sum over the rows", T, float, bf16,
                   f16) {
  Philox random(2);
  for (const int row : {1, 7, 8, 96, 3000})
    for (const int rows : {1, 5, 300}) {
      if (rows > 5 && row > 96) continue;
      for (const Options o : every_option) {
        const auto dy = draw<T>(random, rows * row), second = draw<T>(random, o.second ? rows * row : 0);
        const auto before = draw<float>(random, row);
        const auto dw = in_every_order([&] {
          auto made = before;
          Values<std::byte> scratch(static_cast<std::size_t>(column_sums_scratch<T>(rows, row, row)));
          sum_rows<T>(nullptr, rows, row, dy.data(), maybe(second), made.data(), o.accumulate,
                      scratch.data());
          return made;
        });
        std::vector<double> expected;
        for (int k = 0; k < row; ++k) {
          double sum = o.accumulate ? static_cast<double>(at(before, k)) : 0;
          for (int r = 0; r < rows; ++r)
            sum += static_cast<double>(at(dy, r * row + k)) +
                   static_cast<double>(at_or_zero(second, r * row + k));
          expected.push_back(sum);
        }
        CHECK(difference(dw, expected, 2.0 * rows) == "");
      }
    }
}

TEST_CASE_TEMPLATE("cuda: a gather reads positions of each row, and their gradients are added in order", T,
                   float, bf16, f16) {
  Philox random(3);
  for (const int features : {1, 7, 8, 24, 300})
    for (const int named : {1, 5, 70}) {
      const int rows = 3, positions = 6;
      GatherTask t{rows, positions, features, named};
      Values<i32> numbers(static_cast<std::size_t>(rows * named));
      for (i32& number : numbers) number = static_cast<i32>(random.below(positions));
      t.numbers = numbers.data();
      const auto from = [&](int i) { return i / named * positions + numbers[static_cast<std::size_t>(i)]; };

      const auto x = draw<T>(random, rows * positions * features);
      const auto y = in_every_order([&] {
        Values<T> made(static_cast<std::size_t>(rows * named * features));
        gather_positions<T>(nullptr, t, x.data(), made.data());
        return made;
      });
      std::vector<float> expected;
      for (int i = 0; i < rows * named; ++i)
        for (int k = 0; k < features; ++k) expected.push_back(at(x, from(i) * features + k));
      CHECK(difference_of_bits(y, expected) == "");

      for (const Options o : every_option) {
        const auto dy = draw<T>(random, rows * named * features),
                   second = draw<T>(random, o.second ? rows * named * features : 0),
                   before = draw<T>(random, rows * positions * features);
        const auto dx = in_every_order([&] {
          auto made = before;
          scatter_positions<T>(nullptr, t, dy.data(), maybe(second), made.data(), o.accumulate);
          return made;
        });
        std::vector<float> sums(x.size());
        for (int i = 0; i < rows * named; ++i)
          for (int k = 0; k < features; ++k)
            sums[static_cast<std::size_t>(from(i) * features + k)] +=
                at(dy, i * features + k) + at_or_zero(second, i * features + k);
        if (o.accumulate)
          for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<float>(before[i]);
        CHECK(difference_of_bits(dx, sums) == "");
      }
    }
}

TEST_CASE_TEMPLATE("cuda: the mean of the first positions of each row, and its gradient", T, float, bf16,
                   f16) {
  Philox random(4);
  for (const int features : {1, 7, 8, 24, 300})
    for (const int positions : {1, 5, 70})
      for (const bool all : {false, true}) {
        const int rows = 3;
        Values<i32> lengths(static_cast<std::size_t>(rows));
        for (i32& length : lengths)
          length =
              all ? positions : 1 + static_cast<i32>(random.below(static_cast<std::uint32_t>(positions)));
        const MeanTask t{rows, positions, features, all ? nullptr : lengths.data()};
        const auto length = [&](int r) { return lengths[static_cast<std::size_t>(r)]; };

        const auto x = draw<T>(random, rows * positions * features);
        const auto y = in_every_order([&] {
          Values<T> made(static_cast<std::size_t>(rows * features));
          mean_forward<T>(nullptr, t, x.data(), made.data());
          return made;
        });
        std::vector<double> expected;
        for (int r = 0; r < rows; ++r)
          for (int k = 0; k < features; ++k) {
            double sum = 0;
            for (int p = 0; p < length(r); ++p)
              sum += static_cast<double>(at(x, (r * positions + p) * features + k));
            expected.push_back(sum / length(r));
          }
        CHECK(difference(y, expected, 2) == "");

        for (const Options o : every_option) {
          const auto dy = draw<T>(random, rows * features),
                     second = draw<T>(random, o.second ? rows * features : 0),
                     before = draw<T>(random, rows * positions * features);
          const auto dx = in_every_order([&] {
            auto made = before;
            mean_backward<T>(nullptr, t, dy.data(), maybe(second), made.data(), o.accumulate);
            return made;
          });
          std::vector<float> gradient;
          for (int r = 0; r < rows; ++r)
            for (int p = 0; p < positions; ++p)
              for (int k = 0; k < features; ++k) {
                const float g = at(dy, r * features + k) + at_or_zero(second, r * features + k);
                gradient.push_back(
                    (p < length(r) ? g / static_cast<float>(length(r)) : 0.0f) +
                    (o.accumulate ? at(before, static_cast<std::int64_t>(gradient.size())) : 0.0f));
              }
          CHECK(difference_of_bits(dx, gradient) == "");
        }
      }
}
