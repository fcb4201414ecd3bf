// SANITIZE: address thread
// Codecs: their error bounds and error feedback. Compressed exchanges over threads: the same bits on all
// ranks, sums that converge, and bytes saved.
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include "sanitized.hpp"
#include <convoy/comm/policy/compressed.hpp>
#include <convoy/comm/registry.hpp>

using namespace convoy;
using namespace convoy::comm;
using transport::Threads;

namespace {

const Options options{.deadline = Seconds(20)};

/// Exchanges constant gradients for some steps; on every rank the mean of the sums must converge to the true
/// sum.
template <class C, class... Codec>
void converges(int ranks, std::int64_t count, int steps, double tolerance, double most_bytes_share,
               std::span<const Matrix> tensors = {}, const Codec&... codec) {
  std::vector<std::vector<float>> last(static_cast<std::size_t>(ranks));
  std::atomic<int> right{0};
  std::atomic<std::int64_t> bytes{0};
  Threads::World(ranks).run([&](Threads endpoint) {
    C exchange(endpoint, options, codec...);
    Buffer<float> gradients(static_cast<std::size_t>(count)), parameters(static_cast<std::size_t>(count));
    const auto cuts = oracle::buckets(count);
    exchange.open({}, {gradients, parameters, cuts, tensors});
    const std::int64_t before = exchange.traffic().bytes;
    std::vector<double> total(gradients.size());
    const auto mine = oracle::input<float>(exchange.rank(), count, 7);
    for (int step = 0; step < steps; ++step) {
      std::copy(mine.begin(), mine.end(), gradients.begin());
      for (int b = 0; b < static_cast<int>(cuts.size()); ++b) {
        exchange.begin(b);
        exchange.poll();
      }
      exchange.finish([](Range, float) {});
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += gradients[i];
    }
    bytes += exchange.traffic().bytes - before;
    last[static_cast<std::size_t>(exchange.rank())].assign(gradients.begin(), gradients.end());
    std::vector<double> sum(total.size());
    for (int r = 0; r < ranks; ++r) {
      const auto values = oracle::input<float>(r, count, 7);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
    }
    double worst = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) worst = std::max(worst, std::abs(total[i] / steps - sum[i]));
    CAPTURE(worst);
    right += worst < tolerance;
  });
  CAPTURE(C::policy());
  CAPTURE(ranks);
  CHECK(right == ranks);
  for (const auto& bits : last) CHECK(oracle::same_bits(bits, last[0]));
  const double plain = 2.0 * (ranks - 1) * static_cast<double>(count) * 4 * steps;
  if (ranks > 1) CHECK(static_cast<double>(bytes) <= most_bytes_share * plain);
}

}  // namespace

TEST_CASE("int8 keeps to its error bound, feeds back the rest, and says what is not finite") {
  for (const std::int64_t count : {1, 5, 511, 512, 513, 5'000}) {
    const auto values = oracle::input<float>(1, count, 3);
    std::vector<float> error(values.size()), decoded(values.size());
    std::vector<std::byte> encoded(static_cast<std::size_t>(codec::Int8::bytes(count)));
    codec::Int8::encode(encoded.data(), values.data(), error.data(), count);
    codec::Int8::decode(decoded.data(), encoded.data(), count);
    for (std::size_t begin = 0; begin < values.size(); begin += 512) {
      const std::size_t end = std::min(values.size(), begin + 512);
      float most = 0;
      for (std::size_t i = begin; i < end; ++i) most = std::max(most, std::abs(values[i]));
      for (std::size_t i = begin; i < end; ++i) {
        CHECK(std::abs(values[i] - decoded[i]) <= most / 254 * 1.0001f);
        CHECK(error[i] == doctest::Approx(values[i] - decoded[i]).epsilon(1e-4));
      }
    }
    codec::Int8::decode_add(decoded.data(), encoded.data(), count);
    std::vector<float> once(values.size());
    codec::Int8::decode(once.data(), encoded.data(), count);
    for (std::size_t i = 0; i < once.size(); ++i) CHECK(decoded[i] == 2 * once[i]);
  }
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(600, 1.0f), error(600), decoded(600);
    values[3] = bad;
    std::vector<std::byte> encoded(static_cast<std::size_t>(codec::Int8::bytes(600)));
    codec::Int8::encode(encoded.data(), values.data(), error.data(), 600);
    codec::Int8::decode(decoded.data(), encoded.data(), 600);
    CHECK(std::isnan(decoded[0]));
    CHECK(decoded[599] == doctest::Approx(1));
    CHECK(error[3] == 0);
  }
  // Numbers close to the largest finite one stay finite.
  for (std::uint32_t bits = 0x7f7fff00; bits <= 0x7f7fffff; ++bits) {
    const auto huge = std::bit_cast<float>(bits);
    float error = 0, decoded = 0;
    std::vector<std::byte> encoded(static_cast<std::size_t>(codec::Int8::bytes(1)));
    codec::Int8::encode(encoded.data(), &huge, &error, 1);
    codec::Int8::decode(&decoded, encoded.data(), 1);
    CHECK(std::isfinite(decoded));
    CHECK(std::abs(error) < huge * 0x1p-16f);  // the scale has 17 bits
  }
  std::vector<float> tiny(512, 1e-42f), error(512), decoded(512, 1);
  std::vector<std::byte> encoded(static_cast<std::size_t>(codec::Int8::bytes(512)));
  codec::Int8::encode(encoded.data(), tiny.data(), error.data(), 512);
  codec::Int8::decode(decoded.data(), encoded.data(), 512);
  CHECK(decoded[0] == 0);
  CHECK(error[0] == 1e-42f);
}

TEST_CASE_TEMPLATE("half-wide elements round as a conversion does", E, bf16, f16) {
  for (const std::int64_t count : {1, 15, 16, 1'000}) {
    const auto values = oracle::input<float>(2, count, 5);
    std::vector<float> error(values.size()), decoded(values.size());
    std::vector<E> half(values.size());
    codec::Half<E>::encode(half.data(), values.data(), error.data(), count);
    codec::Half<E>::decode(decoded.data(), half.data(), count);
    for (std::size_t i = 0; i < values.size(); ++i) {
      CHECK(decoded[i] == static_cast<float>(static_cast<E>(values[i])));
      CHECK(error[i] == values[i] - decoded[i]);
    }
  }
}

TEST_CASE("compressed sums converge to the true ones in fewer bytes") {
  for (const int ranks : {1, 2, 3, 5}) {
    if (sanitized && ranks != 3) continue;
    const std::int64_t count = 40'000;
    converges<Compressed<Ring<Threads>, codec::Bf16>>(ranks, count, 40, 1e-2 * ranks, 0.501);
    converges<Compressed<Ring<Threads>, codec::F16>>(ranks, count, 40, 1.5e-3 * ranks, 0.501);
    converges<Compressed<HalvingDoubling<Threads>, codec::Bf16>>(ranks, count, 10, 1.5e-2 * ranks, 0.75);
    converges<Compressed<Ring<Threads>, codec::Int8>>(ranks, count, 40, 2e-3, 0.30);
    using K = codec::TopK;
    converges<Compressed<Ring<Threads>, K>>(ranks, count, 400, 0.3 * ranks, 0.01 * 2 * ranks / 2.0 + 0.01, {},
                                            K{0.01, 0});
    converges<Compressed<Ring<Threads>, K>>(ranks, count, 3, 1e-5 * ranks, 1.001, {}, K{0.01, 3});
  }
}

static_assert(!codec::PowerSgd{1 << 30}.compresses(100, 100));

TEST_CASE("powersgd recovers what has its rank, feeds back the rest, and says what is not finite") {
  const codec::PowerSgd codec{2};
  CHECK(codec.compresses(30, 40));
  CHECK_FALSE(codec.compresses(4, 1'000));
  const Matrix tensors[] = {{{100, 1'300}, 30, 40}, {{1'310, 1'350}, 1, 40}, {{1'390, 2'590}, 30, 40}};
  codec::Factors factors(codec, {100, 1'400}, tensors, 1, std::pmr::new_delete_resource());
  CHECK(factors.left().size() + factors.right().size() == 2 * (30 + 40) + 100);
  std::vector<float> values(1'300), sent, error(1'300);
  const auto step = [&] {
    sent = values;
    factors.project(sent.data(), error.data());
    factors.project_back(error.data());
    factors.expand(sent.data());
  };
  // All-zero values must not leave factors from which the next step cannot recover.
  step();
  for (const float v : sent) CHECK(v == 0);
  const auto thin = oracle::input<float>(0, 140, 4);
  for (std::size_t i = 0; i < 30; ++i)
    for (std::size_t j = 0; j < 40; ++j)
      values[i * 40 + j] = thin[i] * thin[60 + j] + thin[30 + i] * thin[100 + j];
  for (std::size_t i = 1'200; i < 1'300; ++i) values[i] = static_cast<float>(i);
  step();
  for (std::size_t i = 0; i < 1'200; ++i) CHECK(sent[i] == doctest::Approx(values[i]).epsilon(1e-4));
  for (std::size_t i = 1'200; i < 1'300; ++i) CHECK(sent[i] == values[i]);
  // For a matrix of any rank, the sent and the kept part add up to the whole; the kept part stays bounded.
  std::fill(error.begin(), error.end(), 0.0f);
  values = oracle::input<float>(1, 1'300, 5);
  std::vector<double> total(values.size());
  for (int k = 1; k <= 200; ++k) {
    step();
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += sent[i];
  }
  for (std::size_t i = 0; i < total.size(); ++i) {
    CHECK(std::abs(total[i] + error[i] - 200.0 * values[i]) < 0.02);
    CHECK(std::abs(total[i] / 200 - values[i]) < 0.3);
  }
  values[7] = std::numeric_limits<float>::quiet_NaN();
  step();
  CHECK(std::isnan(sent[7]));
  values[7] = 0;
  step();
  for (const float v : sent) CHECK(std::isfinite(v));
  std::fill(error.begin(), error.end(), 0.0f);
  std::fill(values.begin(), values.end(), 1e-42f);
  step();
  for (const float v : sent) CHECK(std::abs(v) <= 1e-41f);
}

TEST_CASE("powersgd makes the same of a matrix in panels as of one in rows") {
  constexpr std::int64_t rows = 96, columns = 70, size = rows * columns;
  const codec::PowerSgd codec{3};
  const auto thin = oracle::input<float>(0, 3 * (rows + columns), 4);
  const auto at = [](std::int64_t row, std::int64_t column, std::int64_t panel) {
    return static_cast<std::size_t>((row / panel * columns + column) * panel + row % panel);
  };
  for (const std::int64_t panel : {1, 6, 32, 96}) {
    CAPTURE(panel);
    const Matrix tensor[] = {{{0, size}, rows, columns, panel}};
    codec::Factors factors(codec, {0, size}, tensor, 1, std::pmr::new_delete_resource());
    CHECK(factors.left().size() + factors.right().size() == 3 * (rows + columns));
    std::vector<float> sent(size), whole(size), error(size);
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        for (int k = 0; k < 3; ++k)
          whole[at(i, j, panel)] += thin[static_cast<std::size_t>(k * rows + i)] *
                                    thin[static_cast<std::size_t>(3 * rows + k * columns + j)];
    sent = whole;
    factors.project(sent.data(), error.data());
    factors.project_back(error.data());
    factors.expand(sent.data());
    for (std::size_t i = 0; i < sent.size(); ++i) {
      CHECK(std::abs(sent[i] - whole[i]) < 1e-4f);
      CHECK(std::abs(error[i]) < 1e-4f);
    }
  }
}

TEST_CASE("powersgd factors the tensors of each bucket, the same on all ranks") {
  // The fourth tensor is cut by a bucket, so it is sent uncompressed, as are all elements outside of tensors.
  const Matrix tensors[] = {{{0, 4'000}, 40, 100},
                            {{4'000, 4'400}, 1, 400},
                            {{4'500, 12'500}, 80, 100, 16},
                            {{13'000, 14'000}, 20, 50},
                            {{20'007, 39'207}, 160, 120, 32}};
  for (const int ranks : {1, 2, 3, 4}) {
    if (sanitized && ranks != 3) continue;
    using P = codec::PowerSgd;
    converges<Compressed<Ring<Threads>, P>>(ranks, 40'000, 60, 0.8 * ranks, 0.30, tensors, P{4, 0});
    converges<Compressed<Tree<Threads>, P>>(ranks, 40'000, 3, 10.0 * ranks, 0.60, tensors, P{4, 0});
    converges<Compressed<Ring<Threads>, P>>(ranks, 40'000, 2, 1e-5 * ranks, 1.001, {}, P{4, 0});
    // Warm-up steps are exact and send as many bytes as without a codec.
    converges<Compressed<Ring<Threads>, P>>(ranks, 40'000, 2, 1e-5 * ranks, 1.001, tensors, P{4, 2});
    converges<Compressed<Ring<Threads>, P>>(ranks, 40'000, 4, 10.0 * ranks, 0.65, tensors, P{4, 2});
  }
  Compressed<Ring<Threads>, codec::PowerSgd> alone{Threads{}, options};
  std::vector<float> arena(100);
  const Range whole[] = {{0, 100}};
  for (const std::vector<Matrix>& wrong : {std::vector<Matrix>{{{0, 100}, 9, 11}},
                                           {{{0, 100}, 20, 5, 6}},
                                           {{{50, 101}, 3, 17}},
                                           {{{50, 100}, 5, 10}, {{0, 50}, 5, 10}}})
    CHECK_THROWS_AS(alone.open({}, {arena, arena, whole, wrong}), ConfigError);
  CHECK_THROWS_AS((Compressed<Ring<Threads>, codec::PowerSgd>(Threads{}, options, {0})), ConfigError);
}

TEST_CASE_TEMPLATE("ranks that would warm up for different times do not start", Codec, codec::PowerSgd,
                   codec::TopK) {
  CHECK_THROWS_AS((Compressed<Ring<Threads>, Codec>(Threads{}, options, {1, -1})), ConfigError);
  std::atomic<int> refused{0};
  Threads::World(2).run([&](Threads endpoint) {
    Compressed<Ring<Threads>, Codec> exchange(endpoint, options, {1, endpoint.rank()});
    std::vector<float> arena(100);
    const Range whole[] = {{0, 100}};
    try {
      exchange.open({}, {arena, arena, whole});
    } catch (const ConfigError& error) {
      refused += std::string_view(error.what()).find("comm codec.warm_up_steps") != std::string_view::npos;
    }
  });
  CHECK(refused == 2);
}

TEST_CASE("codecs are chosen by name") {
  Threads::World(2).run([](Threads endpoint) {
    for (const char* codec : {"bf16", "f16", "int8", "topk", "powersgd"})
      if (comm::make("ring", endpoint, options, {.codec = codec}).policy() != codec)
        throw std::logic_error(codec);
  });
  CHECK_THROWS_WITH_AS(comm::make("ring", Threads{}, {}, {.codec = "zip"}),
                       "there is no codec \"zip\"; choose one of none, bf16, f16, int8, topk, powersgd",
                       ConfigError);
  CHECK_THROWS_AS(comm::make("tree", Threads{}, {}, {.codec = "int8"}), ConfigError);
  CHECK_THROWS_AS((Compressed<Ring<Threads>, codec::TopK>(Threads{}, options, {0})), ConfigError);
}

TEST_CASE_TEMPLATE("a compressed exchange that is open may be replaced by another", Codec, codec::Bf16,
                   codec::Int8) {
  Threads::World(2).run([](const Threads& endpoint) {
    Compressed<Ring<Threads>, Codec> exchange(endpoint, options);
    const std::vector<float> first = oracle::train(exchange, 3'000, 2);
    exchange = Compressed<Ring<Threads>, Codec>(endpoint, options);
    if (oracle::train(exchange, 3'000, 2) != first) throw std::logic_error("other parameters");
  });
}
