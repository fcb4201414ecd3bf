// EMULATES
// The kernels that move elements (embeddings, dropout, concatenation and image layouts) against plain loops.
#include "emulated_values.hpp"
#include <convoy/exec/cuda/kernel/concat.cuh>
#include <convoy/exec/cuda/kernel/dropout.cuh>
#include <convoy/exec/cuda/kernel/embedding.cuh>
#include <convoy/exec/cuda/kernel/image.cuh>

using namespace emulated;
using namespace convoy::exec::cuda;
using convoy::exec::Draws;
using convoy::exec::DropoutRule;

namespace {

template <class T>
float at(const Values<T>& values, std::int64_t i) {
  return static_cast<float>(values[static_cast<std::size_t>(i)]);
}
template <class T>
float at_or_zero(const Values<T>& values, std::int64_t i) {
  return values.empty() ? 0.0f : at(values, i);
}

// Ids of which about half are the first one, as padding is.
Values<i32> draw_ids(Philox& random, int count, int entries) {
  Values<i32> ids(static_cast<std::size_t>(count));
  for (i32& id : ids)
    id = random.below(2) == 0 ? 0 : static_cast<i32>(random.below(static_cast<std::uint32_t>(entries)));
  return ids;
}

// The sums of scatter_rows in the order of its comment: whole pieces of an id's positions, then the rest one
// by one.
template <class T>
std::vector<float> scattered(const EmbeddingTask& e, const Values<i32>& ids, const Values<T>& dy,
                             const Values<T>& second, const Values<float>& before) {
  std::vector<std::vector<int>> positions(static_cast<std::size_t>(e.entries));
  for (int i = 0; i < e.count; ++i)
    positions[static_cast<std::size_t>(ids[static_cast<std::size_t>(i)])].push_back(i);
  std::vector<float> dw;
  for (const auto& of_id : positions)
    for (int k = 0; k < e.features; ++k) {
      float sum = 0, piece = 0;
      const std::size_t whole = of_id.size() / sum_piece * sum_piece;
      for (std::size_t n = 0; n < of_id.size(); ++n) {
        const std::int64_t i = static_cast<std::int64_t>(of_id[n]) * e.features + k;
        const float g = at(dy, i) + at_or_zero(second, i);
        if (n >= whole) {
          sum += g;
          continue;
        }
        piece += g;
        if (n % sum_piece == sum_piece - 1) sum += piece, piece = 0;
      }
      dw.push_back(sum + at_or_zero(before, static_cast<std::int64_t>(dw.size())));
    }
  return dw;
}

template <class T>
void check_scatter(const EmbeddingTask& e) {
  Philox random(static_cast<std::uint64_t>(e.count + e.features));
  const auto ids = draw_ids(random, e.count, e.entries);
  const std::int64_t values = static_cast<std::int64_t>(e.count) * e.features;
  for (const Options o : every_option) {
    const auto dy = draw<T>(random, values), second = draw<T>(random, o.second ? values : 0);
    const auto before = draw<float>(random, static_cast<std::int64_t>(e.entries) * e.features);
    const auto dw = in_every_order([&] {
      auto made = before;
      Values<std::byte> scratch(scatter_scratch(e), std::byte{0xff});
      scatter_rows<T>(nullptr, e, ids.data(), dy.data(), maybe(second), made.data(), scratch.data(),
                      o.accumulate);
      return made;
    });
    CHECK(difference_of_bits(dw, scattered(e, ids, dy, second, o.accumulate ? before : Values<float>{})) ==
          "");
  }
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: an embedding gathers rows of its table", T, float, bf16, f16) {
  Philox random(1);
  for (const int features : {1, 7, 8, 24, 300, 1000})
    for (const int count : {1, 5, 70}) {
      const EmbeddingTask e{count, 30, features};
      const auto ids = draw_ids(random, count, e.entries);
      const auto table = draw<T>(random, e.entries * features);
      const auto y = in_every_order([&] {
        Values<T> made(static_cast<std::size_t>(count * features));
        gather_rows(nullptr, e, ids.data(), table.data(), made.data());
        return made;
      });
      std::vector<float> expected;
      for (const i32 id : ids)
        for (int k = 0; k < features; ++k) expected.push_back(at(table, id * features + k));
      CHECK(difference_of_bits(y, expected) == "");
    }
}

TEST_CASE_TEMPLATE("cuda: an embedding's gradients are added in the order of positions", T, float, bf16,
                   f16) {
  for (const int features : {1, 7, 8, 300})
    for (const int count : {1, 63, 64, 65, 200, 511, 512, 513}) {
      CAPTURE(count);
      CAPTURE(features);
      check_scatter<T>({count, 40, features});
    }
  check_scatter<T>({129, 1, 8});      // all of one id
  check_scatter<T>({1500, 5000, 3});  // most entries without an id
}

TEST_CASE("cuda: more positions than one pass of the sort joins") {
  check_scatter<float>({sort_tile * sort_ways + 700, 900, 2});
}

TEST_CASE("cuda: ids of no gradient leave zeros or what was there") {
  const EmbeddingTask e{0, 5, 3};
  Values<std::byte> scratch(scatter_scratch(e));
  Values<float> dw(15, 2.0f);
  const float none = 0;
  scatter_rows<float>(nullptr, e, nullptr, &none, nullptr, dw.data(), scratch.data(), true);
  CHECK(dw == Values<float>(15, 2.0f));
  scatter_rows<float>(nullptr, e, nullptr, &none, nullptr, dw.data(), scratch.data(), false);
  CHECK(dw == Values<float>(15, 0.0f));
}

TEST_CASE_TEMPLATE("cuda: dropout draws the host's bits", T, float, bf16, f16) {
  Philox random(2);
  exec::Pass pass{.seed = 77, .epoch = 3, .position = (std::int64_t{1} << 32) - 2};
  const Draws draws(pass, "layer");
  const DropoutRule rule(0.3f);
  const auto expect = [&](std::int64_t row, std::int64_t e, float x, float before) {
    return before + (draws(row, e) < rule.threshold ? 0.0f : x * rule.scale);
  };
  const int rows = 4;
  for (const int elements : {1, 4, 8, 15, 16, 63, 64, 65, 200, 768, 4096 + 8})
    for (const Options o : every_option) {
      CAPTURE(elements);
      const auto x = draw<T>(random, rows * elements), before = draw<T>(random, rows * elements),
                 second = draw<T>(random, o.second ? rows * elements : 0);
      const auto y = in_every_order([&] {
        auto made = before;
        dropout<T>(nullptr, &draws, rule, rows, elements, x.data(), maybe(second),
                   o.accumulate ? made.data() : nullptr, made.data());
        return made;
      });
      std::vector<float> expected;
      for (int i = 0; i < rows * elements; ++i)
        expected.push_back(expect(i / elements, i % elements, at(x, i) + at_or_zero(second, i),
                                  o.accumulate ? at(before, i) : 0.0f));
      CHECK(difference_of_bits(y, expected) == "");
      if (!o.accumulate) continue;
      Values<T> apart(before.size());  // the addend lies elsewhere
      dropout<T>(nullptr, &draws, rule, rows, elements, x.data(), maybe(second), before.data(), apart.data());
      CHECK(difference_of_bits(apart, expected) == "");
    }
  for (const int channels : {1, 3, 8, 20, 24})
    for (const int positions : {1, 16, 49, 64, 100, 192})
      for (const Options o : every_option) {
        CAPTURE(channels);
        CAPTURE(positions);
        const int image = channels * positions;
        const auto x = draw<T>(random, rows * image), before = draw<T>(random, rows * image),
                   second = draw<T>(random, o.second ? rows * image : 0);
        const auto y = in_every_order([&] {
          auto made = before;
          dropout_image<T>(nullptr, &draws, rule, rows, channels, positions, x.data(), maybe(second),
                           o.accumulate ? made.data() : nullptr, made.data());
          return made;
        });
        std::vector<float> expected;
        for (int i = 0; i < rows * image; ++i) {
          const int channel = i % channels, position = i / channels % positions;
          expected.push_back(expect(i / image, channel * positions + position,
                                    at(x, i) + at_or_zero(second, i), o.accumulate ? at(before, i) : 0.0f));
        }
        CHECK(difference_of_bits(y, expected) == "");
      }
}

TEST_CASE_TEMPLATE("cuda: a concatenation copies runs and their gradients back", T, float, bf16, f16) {
  Philox random(4);
  for (const std::vector<int>& lengths : {std::vector{8, 16, 8}, std::vector{3, 1, 12}, std::vector{8, 4},
                                          std::vector{3, 5, 8}, std::vector{7}, std::vector{600, 8}})
    for (const int runs : {1, 6, 50}) {
      int all = 0;
      for (const int length : lengths) all += length;
      CAPTURE(all);
      CAPTURE(runs);
      std::vector<Values<T>> x;
      for (const int length : lengths) x.push_back(draw<T>(random, runs * length));
      const auto y = in_every_order([&] {
        Values<T> made(static_cast<std::size_t>(runs * all));
        for (int i = 0, offset = 0; i < static_cast<int>(lengths.size()); ++i) {
          const int length = lengths[static_cast<std::size_t>(i)];
          copy_runs<T>(nullptr, {runs, length, length, all}, x[static_cast<std::size_t>(i)].data(), nullptr,
                       made.data() + offset, false);
          offset += length;
        }
        return made;
      });
      std::vector<float> expected;
      for (int r = 0; r < runs; ++r)
        for (std::size_t i = 0; i < lengths.size(); ++i)
          for (int k = 0; k < lengths[i]; ++k) expected.push_back(at(x[i], r * lengths[i] + k));
      CHECK(difference_of_bits(y, expected) == "");

      for (const Options o : every_option) {
        const auto dy = draw<T>(random, runs * all), second = draw<T>(random, o.second ? runs * all : 0);
        int offset = 0;
        for (const int length : lengths) {
          const auto before = draw<T>(random, runs * length);
          const auto dx = in_every_order([&] {
            auto made = before;
            copy_runs<T>(nullptr, {runs, length, all, length}, dy.data() + offset,
                         o.second ? second.data() + offset : nullptr, made.data(), o.accumulate);
            return made;
          });
          std::vector<float> slice;
          for (int i = 0; i < runs * length; ++i) {
            const int from = i / length * all + offset + i % length;
            slice.push_back(at(dy, from) + at_or_zero(second, from) + (o.accumulate ? at(before, i) : 0.0f));
          }
          CHECK(difference_of_bits(dx, slice) == "");
          offset += length;
        }
      }
    }
}

namespace {

constexpr Images image_shapes[] = {{2, 3, 8, 49},      {1, 1, 1, 1},    {3, 1, 8, 300},   {2, 20, 24, 33},
                                   {1, 64, 64, 64},    {2, 4, 4, 1500}, {5, 100, 104, 1}, {1, 5, 5, 7},
                                   {2, 1200, 1200, 3}, {2, 3, 4, 1030}, {3, 8, 8, 130}};

// Calls visit(row, channel, position) in NHWC order, including padding.
template <class Visit>
void for_each_padded(const Images& images, Visit visit) {
  for (int r = 0; r < images.rows; ++r)
    for (int p = 0; p < images.positions; ++p)
      for (int c = 0; c < images.padded; ++c) visit(r, c, p);
}
std::int64_t canonical_index(const Images& images, int row, int channel, int position) {
  return (static_cast<std::int64_t>(row) * images.channels + channel) * images.positions + position;
}
std::int64_t canonical_size(const Images& images) { return canonical_index(images, images.rows, 0, 0); }
std::int64_t padded_size(const Images& images) {
  return static_cast<std::int64_t>(images.rows) * images.padded * images.positions;
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: inputs become images in NHWC, padded by zeros", T, float, bf16, f16) {
  Philox random(8);
  for (const Images& images : image_shapes) {
    CAPTURE(images.channels);
    const auto numbers = draw<float>(random, canonical_size(images));
    Values<u8> bytes(numbers.size());
    for (u8& byte : bytes) byte = static_cast<u8>(random.below(256));
    const float scale = 1.0f / 64,
                offset = -0.5f;  // exact with and without a fused multiply-add
    const auto from_numbers = in_every_order([&] {
      Values<T> y(static_cast<std::size_t>(padded_size(images)));
      image_from_input(nullptr, images, numbers.data(), 1.0f, 0.0f, y.data());
      return y;
    });
    const auto from_bytes = in_every_order([&] {
      Values<T> y(from_numbers.size());
      image_from_input(nullptr, images, bytes.data(), scale, offset, y.data());
      return y;
    });
    std::vector<float> expected, expected_of_bytes;
    for_each_padded(images, [&](int r, int c, int p) {
      const std::int64_t i = canonical_index(images, r, c, p);
      const bool padding = c >= images.channels;
      expected.push_back(padding ? 0.0f : at(numbers, i));
      expected_of_bytes.push_back(padding ? 0.0f : scale * at(bytes, i) + offset);
    });
    CHECK(difference_of_bits(from_numbers, expected) == "");
    CHECK(difference_of_bits(from_bytes, expected_of_bytes) == "");
  }
}

TEST_CASE_TEMPLATE("cuda: images in NHWC become canonical, and their gradients come back", T, float, bf16,
                   f16) {
  Philox random(9);
  for (const Images& images : image_shapes) {
    CAPTURE(images.channels);
    auto x = draw<T>(random, padded_size(images));
    std::vector<float> expected(static_cast<std::size_t>(canonical_size(images)));
    for (std::size_t i = 0; i < x.size(); ++i)
      if (static_cast<int>(i) % images.padded >= images.channels) x[i] = T(std::nanf(""));  // not read
    std::size_t i = 0;
    for_each_padded(images, [&](int r, int c, int p) {
      const float v = static_cast<float>(x[i++]);
      if (c < images.channels) expected[static_cast<std::size_t>(canonical_index(images, r, c, p))] = v;
    });
    const auto canonical = in_every_order([&] {
      Values<T> y(expected.size());
      image_to_canonical(nullptr, images, x.data(), y.data());
      return y;
    });
    CHECK(difference_of_bits(canonical, expected) == "");
    Values<float> output(expected.size());
    image_to_canonical(nullptr, images, x.data(), output.data());
    CHECK(difference_of_bits(output, expected) == "");

    for (const Options o : every_option) {
      const auto dy = draw<T>(random, canonical_size(images)),
                 second = draw<T>(random, o.second ? canonical_size(images) : 0);
      const auto before = draw<T>(random, padded_size(images));
      const auto dx = in_every_order([&] {
        auto made = before;
        image_to_canonical_backward<T, T>(nullptr, images, dy.data(), maybe(second), made.data(),
                                          o.accumulate);
        return made;
      });
      std::vector<float> gradient;
      for_each_padded(images, [&](int r, int c, int p) {
        const std::int64_t from = canonical_index(images, r, c, p);
        const float g = c < images.channels ? at(dy, from) + at_or_zero(second, from) : 0.0f;
        gradient.push_back(g +
                           (o.accumulate ? at(before, static_cast<std::int64_t>(gradient.size())) : 0.0f));
      });
      CHECK(difference_of_bits(dx, gradient) == "");
    }
  }
}

TEST_CASE("cuda: more images than a grid has blocks along y, through shared memory") {
  const Images images{2 * 2048 + 1, 2, 2, 5};
  Philox random(10);
  const auto x = draw<float>(random, canonical_size(images));
  std::vector<float> expected;
  for_each_padded(images,
                  [&](int r, int c, int p) { expected.push_back(at(x, canonical_index(images, r, c, p))); });
  for (const auto order : {emulation::Order::forward, emulation::Order::backward}) {
    const emulation::With with({.threads = order});
    Values<float> y(x.size());
    image_from_input(nullptr, images, x.data(), 1.0f, 0.0f, y.data());
    CHECK(difference_of_bits(y, expected) == "");
  }
}
