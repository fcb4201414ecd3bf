// EMULATES
// Pooling over images in NHWC against the reference's pooling in canonical layout.
#include <limits>

#include "emulated_values.hpp"
#include <convoy/exec/cuda/kernel/pooling.cuh>
#include <convoy/exec/reference/reference.hpp>

using namespace emulated;
using namespace convoy::exec::cuda;
namespace reference = convoy::exec::reference;

namespace {

Pooling pooling(int rows, int channels, int height, int width, graph::Window window) {
  return {rows,
          channels,
          height,
          width,
          window.positions(height, window.height),
          window.positions(width, window.width),
          window};
}

reference::Pooling canonical(const Pooling& p) {
  return {p.window, {p.channels, p.height, p.width}, {p.channels, p.out_height, p.out_width}, p.rows};
}

// Calls visit(canonical index, index in NHWC).
template <class Visit>
void for_each_element(int rows, int channels, int positions, Visit visit) {
  std::size_t at = 0;
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < channels; ++c)
      for (int p = 0; p < positions; ++p)
        visit(at++, (static_cast<std::size_t>(r) * static_cast<std::size_t>(positions) +
                     static_cast<std::size_t>(p)) *
                            static_cast<std::size_t>(channels) +
                        static_cast<std::size_t>(c));
}

template <class T>
std::vector<double> to_canonical(int rows, int channels, int positions, const Values<T>& values) {
  std::vector<double> made(values.size());
  for_each_element(rows, channels, positions, [&](std::size_t to, std::size_t from) {
    made[to] = static_cast<double>(static_cast<float>(values[from]));
  });
  return made;
}
std::vector<double> from_canonical(int rows, int channels, int positions, const std::vector<double>& values) {
  std::vector<double> made(values.size());
  for_each_element(rows, channels, positions,
                   [&](std::size_t from, std::size_t to) { made[to] = values[from]; });
  return made;
}

std::vector<Pooling> shapes() {
  std::vector<Pooling> all{
      pooling(2, 16, 7, 7, {7, 7, 1, 0}),              // global, whole vectors
      pooling(3, 5, 6, 4, {6, 4, 1, 0}),               // global, odd
      pooling(2, 300, 3, 2, {3, 2, 1, 0}),             // global, more vectors than a warp has threads
      pooling(2, 8, 12, 12, {3, 3, 2, 1}),             // of a residual network
      pooling(1, 8, 20, 19, {17, 17, 1, 3}),           // more taps than a u8 can number
      pooling(1, 8, 16, 16, {16, 16, 16, 0}),          // exactly as many
      pooling(1, 8, 4, 5, graph::Window{1, 1, 3, 0}),  // windows that leave elements out
  };
  Philox random(11);
  const auto upto = [&](std::uint32_t most) { return static_cast<int>(random.below(most)); };
  constexpr int channels[] = {1, 3, 4, 8, 12, 16, 24};
  while (all.size() < 40) {
    const int kernel = 1 + upto(4);
    const Pooling p =
        pooling(1 + upto(3), channels[upto(7)], 1 + upto(9), 1 + upto(9),
                {kernel, kernel, 1 + upto(4), upto(static_cast<std::uint32_t>(kernel / 2 + 1))});
    if (p.out_height > 0 && p.out_width > 0) all.push_back(p);
  }
  return all;
}

// The tap of the reference's maximum.
std::vector<int> taps_of(const reference::Pooling& p, const std::vector<std::int64_t>& from) {
  std::vector<int> taps;
  for (std::size_t at = 0; at < from.size(); ++at) {
    const auto out = static_cast<std::int64_t>(at);
    const auto ox = static_cast<int>(out % p.out_width),
               oy = static_cast<int>(out / p.out_width % p.out_height);
    const auto ix = static_cast<int>(from[at] % p.width),
               iy = static_cast<int>(from[at] / p.width % p.height);
    taps.push_back((iy + p.window.padding - oy * p.window.stride) * p.window.width + ix + p.window.padding -
                   ox * p.window.stride);
  }
  return taps;
}

// How many roundings a sum over a window, of two gradients, may be off by: partial sums may exceed the
// result.
double sum_units(const Pooling& p) { return 4 + p.window.height * p.window.width / 2.0; }

template <class T>
void check_max(const Pooling& p, float step, float nan_below) {
  Philox random(static_cast<std::uint64_t>(p.channels + p.height));
  const reference::Pooling r = canonical(p);
  const int in = p.height * p.width, out = p.out_height * p.out_width;
  auto x = draw<T>(random, p.rows * p.in_image(), -2, 2, step);
  for (T& v : x)
    if (static_cast<float>(v) < nan_below) v = T(std::numeric_limits<float>::quiet_NaN());

  const auto outputs = static_cast<std::size_t>(r.outputs());
  std::vector<double> expected(outputs);
  std::vector<std::int64_t> from(outputs);
  reference::pool_max(r, to_canonical(p.rows, p.channels, in, x).data(), expected.data(), from.data());

  Values<unsigned char> winner(outputs * static_cast<std::size_t>(p.winner_bytes()));
  const auto y = in_every_order([&] {
    Values<T> made(outputs);
    max_pool(nullptr, p, x.data(), made.data(), winner.data());
    return made;
  });
  CHECK(difference(y, from_canonical(p.rows, p.channels, out, expected), 0) == "");
  const std::vector<int> taps = taps_of(r, from);
  std::size_t wrong = 0;
  for_each_element(p.rows, p.channels, out, [&](std::size_t at, std::size_t here) {
    const int tap = p.winner_bytes() == 1 ? winner[here] : reinterpret_cast<const i32*>(winner.data())[here];
    wrong += tap != taps[at];
  });
  CHECK(wrong == 0);

  for (const Options o : every_option) {
    const auto dy = draw<T>(random, r.outputs()), second = draw<T>(random, o.second ? r.outputs() : 0);
    const auto before = draw<T>(random, p.rows * p.in_image());
    std::vector<double> g = to_canonical(p.rows, p.channels, out, dy);
    if (o.second)
      for (std::size_t i = 0; const double more : to_canonical(p.rows, p.channels, out, second))
        g[i++] += more;
    std::vector<double> dx = to_canonical(p.rows, p.channels, in, before);
    if (!o.accumulate) dx.assign(dx.size(), 0);
    reference::pool_max_backward(r, from.data(), g.data(), dx.data());
    const auto got = in_every_order([&] {
      auto made = before;
      max_pool_backward<T>(nullptr, p, dy.data(), maybe(second), winner.data(), made.data(), o.accumulate);
      return made;
    });
    CHECK(difference(got, from_canonical(p.rows, p.channels, in, dx), sum_units(p)) == "");
  }
}

template <class T>
void check_average(const Pooling& p) {
  Philox random(static_cast<std::uint64_t>(p.channels + p.width));
  const reference::Pooling r = canonical(p);
  const int in = p.height * p.width, out = p.out_height * p.out_width;
  const auto x = draw<T>(random, p.rows * p.in_image());
  const auto outputs = static_cast<std::size_t>(r.outputs());
  std::vector<double> expected(outputs);
  reference::pool_average(r, to_canonical(p.rows, p.channels, in, x).data(), expected.data());
  const auto y = in_every_order([&] {
    Values<T> made(outputs);
    average_pool(nullptr, p, x.data(), made.data());
    return made;
  });
  CHECK(difference(y, from_canonical(p.rows, p.channels, out, expected), sum_units(p)) == "");

  for (const Options o : every_option) {
    const auto dy = draw<T>(random, r.outputs()), second = draw<T>(random, o.second ? r.outputs() : 0);
    const auto before = draw<T>(random, p.rows * p.in_image());
    std::vector<double> g = to_canonical(p.rows, p.channels, out, dy);
    if (o.second)
      for (std::size_t i = 0; const double more : to_canonical(p.rows, p.channels, out, second))
        g[i++] += more;
    std::vector<double> dx = to_canonical(p.rows, p.channels, in, before);
    if (!o.accumulate) dx.assign(dx.size(), 0);
    reference::pool_average_backward(r, g.data(), dx.data());
    const auto got = in_every_order([&] {
      auto made = before;
      average_pool_backward<T>(nullptr, p, dy.data(), maybe(second), made.data(), o.accumulate);
      return made;
    });
    CHECK(difference(got, from_canonical(p.rows, p.channels, in, dx), sum_units(p)) == "");
  }
}

std::string words(const Pooling& p) {
  return concat(p.rows, " x ", p.channels, " x ", p.height, " x ", p.width, ", window ", p.window.height,
                " x ", p.window.width, ", stride ", p.window.stride, ", padding ", p.window.padding);
}

}  // namespace

TEST_CASE_TEMPLATE("cuda: max pooling is the reference's, with ties and NaN", T, float, bf16, f16) {
  for (const Pooling& p : shapes()) {
    const std::string shape = words(p);
    INFO(shape);
    check_max<T>(p, 0, -10);
    check_max<T>(p, 1, -10);
    check_max<T>(p, 0.5f, -1.6f);
  }
}

TEST_CASE_TEMPLATE("cuda: average pooling is the reference's", T, float, bf16, f16) {
  for (const Pooling& p : shapes()) {
    const std::string shape = words(p);
    INFO(shape);
    check_average<T>(p);
  }
}

TEST_CASE("cuda: more images than a grid has blocks along y") {
  const Pooling p = pooling(2 * 2048 + 1, 1, 1, 2, {1, 2, 1, 0});
  const auto rows = static_cast<std::size_t>(p.rows);
  Philox random(1);
  const auto x = draw<float>(random, 2 * p.rows);
  Values<float> y(rows), dx(2 * rows);
  Values<unsigned char> winner(rows);
  std::vector<float> largest, mean, only;
  for (std::size_t r = 0; r < rows; ++r) {
    const float a = x[2 * r], b = x[2 * r + 1];
    largest.push_back(std::max(a, b));
    mean.push_back((a + b) / 2);
    only.push_back(a >= b ? a : 0);
    only.push_back(a >= b ? 0 : b);
  }
  max_pool(nullptr, p, x.data(), y.data(), winner.data());
  CHECK(difference_of_bits(y, largest) == "");
  max_pool_backward<float>(nullptr, p, y.data(), nullptr, winner.data(), dx.data(), false);
  CHECK(difference_of_bits(dx, only) == "");
  for (const auto order : {emulation::Order::forward, emulation::Order::backward}) {
    const emulation::With with({.threads = order});
    average_pool(nullptr, p, x.data(), y.data());
    CHECK(difference_of_bits(y, mean) == "");
  }
}
