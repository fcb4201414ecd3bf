// SANITIZE: address thread
// Codecs: their error bounds and error feedback. Compressed exchanges over threads: the same bits on all
// ranks, sums that converge, and the bytes that they save.
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include <convoy/comm/exchange/any.hpp>
#include <convoy/comm/exchange/compressed.hpp>

using namespace convoy;
using namespace convoy::comm;
using transport::Threads;

namespace {

const Options options{.deadline = Seconds(20)};

/// Exchanges constant gradients for some steps; the mean of the sums on every rank must come to the true sum.
template <class C>
void converges(int ranks, std::int64_t count, int steps, double tolerance, double most_bytes_share) {
  std::vector<std::vector<float>> last(static_cast<std::size_t>(ranks));
  std::atomic<int> right{0};
  std::atomic<std::int64_t> bytes{0};
  Threads::World(ranks).run([&](Threads endpoint) {
    C exchange(endpoint, options);
    Buffer<float> gradients(static_cast<std::size_t>(count)), parameters(static_cast<std::size_t>(count));
    const auto cuts = oracle::buckets(count);
    exchange.open({}, {gradients, parameters, cuts});
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
  CAPTURE(C::name);
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
    const std::int64_t count = 40'000;
    converges<Compressed<Ring<Threads>, codec::Bf16>>(ranks, count, 40, 1e-2 * ranks, 0.501);
    converges<Compressed<Ring<Threads>, codec::F16>>(ranks, count, 40, 1.5e-3 * ranks, 0.501);
    converges<Compressed<HalvingDoubling<Threads>, codec::Bf16>>(ranks, count, 10, 1.5e-2 * ranks, 0.75);
    converges<Compressed<Ring<Threads>, codec::Int8>>(ranks, count, 40, 2e-3, 0.30);
    converges<Compressed<Ring<Threads>, codec::TopK>>(ranks, count, 400, 0.3 * ranks,
                                                      0.01 * 2 * ranks / 2.0 + 0.01);
  }
}

TEST_CASE("codecs are chosen by name") {
  Threads::World(2).run([](Threads endpoint) {
    for (const char* codec : {"bf16", "f16", "int8", "topk"})
      if (comm::make("ring", endpoint, {.deadline = Seconds(20), .codec = codec}).policy() != codec)
        throw std::logic_error(codec);
  });
  CHECK_THROWS_AS(comm::make("ring", Threads{}, {.codec = "zip"}), ConfigError);
  CHECK_THROWS_AS(comm::make("tree", Threads{}, {.codec = "int8"}), ConfigError);
  CHECK_THROWS_AS((Compressed<Ring<Threads>, codec::TopK>(Threads{}, options, {0})), ConfigError);
}
