// EMULATES
// The kernels that work on the positions of sequences, against plain loops.
#include "emulated_values.hpp"
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
          Values<std::byte> scratch(static_cast<std::size_t>(column_sums_scratch<T>(rows, row)));
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
