// SANITIZE: address thread
// Custom codecs for each way of travel that convoy's own codecs use, and how the four ways are distinguished.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "comm_step.hpp"
#include <convoy/comm/codec/half.hpp>
#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/codec/power_sgd.hpp>
#include <convoy/comm/codec/top_k.hpp>
#include <convoy/comm/policy/any.hpp>
#include <convoy/comm/policy/compressed.hpp>

using namespace convoy;
using namespace convoy::comm;
using transport::Threads;

// A named namespace, since clang reads no field list of a type without linkage.
namespace own {

/// Signs and one magnitude (Bernstein et al., "signSGD", 2018): one bit per element.
struct Sign {
  static constexpr std::string_view name = "sign";
  static constexpr codec::Travel travel = codec::Travel::gathered;
  float least = 0;  ///< the magnitude is at least this

  static constexpr void fields(auto& self, auto&& field) { field("least", self.least); }
  static constexpr std::int64_t warm_up() { return 0; }
  void check() const {
    if (!(least >= 0)) fail<ConfigError>("sign: the least magnitude is ", least, "; it must not be negative");
  }
  static std::int64_t bytes(std::int64_t count) { return (4 + (count + 7) / 8 + 63) / 64 * 64; }
  static std::int64_t room(std::int64_t) { return 0; }
  void encode(std::byte* to, const float* values, float* error, std::int64_t count,
              std::span<std::byte>) const {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += std::abs(error[i] += values[i]);
    const float magnitude =
        std::max(least, static_cast<float>(count > 0 ? sum / static_cast<double>(count) : 0));
    std::memset(to, 0, static_cast<std::size_t>(bytes(count)));
    std::memcpy(to, &magnitude, 4);
    for (std::int64_t i = 0; i < count; ++i) {
      const bool down = error[i] < 0;
      if (down) to[4 + i / 8] |= static_cast<std::byte>(1u << (i % 8));
      error[i] -= down ? -magnitude : magnitude;
    }
  }
  static void decode_add(float* to, const std::byte* from, std::int64_t count) {
    float magnitude = 0;
    std::memcpy(&magnitude, from, 4);
    for (std::int64_t i = 0; i < count; ++i)
      to[i] += (static_cast<unsigned>(from[4 + i / 8]) >> (i % 8) & 1u) != 0 ? -magnitude : magnitude;
  }
};

/// 32-bit integers in units of `1 / scale`, summed by the algorithm's own all-reduce.
struct Fixed {
  static constexpr std::string_view name = "fixed";
  static constexpr codec::Travel travel = codec::Travel::reduced;
  using Element = std::int32_t;
  float scale = 1 << 16;

  static constexpr void fields(auto& self, auto&& field) { field("scale", self.scale); }
  static constexpr std::int64_t warm_up() { return 1; }
  static constexpr void check() {}
  void encode(Element* to, const float* values, float* error, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      error[i] += values[i];
      to[i] = static_cast<Element>(std::lround(error[i] * scale));
      error[i] -= static_cast<float>(to[i]) / scale;
    }
  }
  void decode(float* to, const Element* from, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]) / scale;
  }
};

/// Floats as they are, and some bytes of `tail`.
struct Raw {
  static constexpr std::string_view name = "raw";
  static constexpr codec::Travel travel = codec::Travel::scattered;
  static constexpr std::int64_t block = 16;
  std::int64_t tail = 0;

  static constexpr void fields(auto& self, auto&& field) { field("tail", self.tail); }
  static constexpr std::int64_t warm_up() { return 0; }
  static constexpr void check() {}
  std::int64_t bytes(std::int64_t count) const { return 4 * count + tail; }
  void encode(std::byte* to, const float* values, float* error, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = values[i] + error[i];
      std::memcpy(to + 4 * i, &value, 4);
      error[i] = 0;
    }
  }
  void decode(float* to, const std::byte* from, std::int64_t count) const {
    if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(4 * count));  // a block may be empty
  }
  void decode_add(float* to, const std::byte* from, std::int64_t count) const {
    for (std::int64_t i = 0; i < count; ++i) {
      float value = 0;
      std::memcpy(&value, from + 4 * i, 4);
      to[i] += value;
    }
  }
};

}  // namespace own

namespace {

using own::Fixed;
using own::Raw;
using own::Sign;

static_assert(codec::Reduced<codec::Bf16> && !codec::Scattered<codec::Bf16> && !codec::Gathered<codec::Bf16>);
static_assert(codec::Scattered<codec::Int8> && codec::Gathered<codec::TopK>);
static_assert(codec::Factored<codec::PowerSgd> && !codec::Codec<int>);

static_assert(codec::Codec<Sign> && codec::Codec<Fixed>);
static_assert(Comm<Compressed<Ring<Threads>, Sign>> && Comm<Compressed<Tree<Threads>, Fixed>>);

// The mean of the sums over some steps must converge to the true sum, with the same bits on all ranks.
template <class C, class Codec>
void converges(int ranks, std::int64_t count, int steps, double tolerance, const Codec& own) {
  std::vector<std::vector<float>> last(static_cast<std::size_t>(ranks));
  std::atomic<int> right{0};
  Threads::World(ranks).run([&](Threads endpoint) {
    C exchange(endpoint, {.deadline = Seconds(20)}, own);
    Buffer<float> gradients(static_cast<std::size_t>(count)), parameters(static_cast<std::size_t>(count));
    const auto cuts = oracle::buckets(count);
    exchange.open({}, {gradients, parameters, cuts});
    std::vector<double> total(gradients.size()), sum(gradients.size());
    const auto mine = oracle::input<float>(exchange.rank(), count, 7);
    for (int step = 0; step < steps; ++step) {
      std::copy(mine.begin(), mine.end(), gradients.begin());
      for (int b = 0; b < static_cast<int>(cuts.size()); ++b) exchange.begin(b);
      exchange.finish([](Range, float) {});
      for (std::size_t i = 0; i < total.size(); ++i) total[i] += static_cast<double>(gradients[i]);
    }
    for (int r = 0; r < ranks; ++r) {
      const auto values = oracle::input<float>(r, count, 7);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(values[i]);
    }
    double worst = 0;
    for (std::size_t i = 0; i < sum.size(); ++i) worst = std::max(worst, std::abs(total[i] / steps - sum[i]));
    right += worst < tolerance;
    last[static_cast<std::size_t>(exchange.rank())].assign(gradients.begin(), gradients.end());
  });
  CAPTURE(Codec::name);
  CAPTURE(ranks);
  CHECK(right == ranks);
  for (const auto& bits : last) CHECK(oracle::same_bits(bits, last[0]));
}

}  // namespace

TEST_CASE("codecs of a user's own exchange as convoy's do") {
  for (const int ranks : {1, 2, 3, 5}) {
    converges<Compressed<Ring<Threads>, Sign>>(ranks, 3'001, 120, 0.25 * ranks, Sign{});
    converges<Compressed<Tree<Threads>, Fixed>>(ranks, 3'001, 4, 1e-4 * ranks, Fixed{});
    converges<Compressed<Direct<Threads>, Fixed>>(ranks, 3'001, 4, 1e-4 * ranks, Fixed{.scale = 1 << 14});
  }
}

TEST_CASE("a codec whose blocks do not end at multiples of 64 bytes is refused") {
  converges<Compressed<Ring<Threads>, Raw>>(3, 3'001, 2, 1e-4, Raw{});
  std::atomic<int> refused{0};
  Threads::World(3).run([&](Threads endpoint) {
    Compressed<Ring<Threads>, Raw> exchange(endpoint, {.deadline = Seconds(20)}, Raw{8});
    std::vector<float> arena(96);
    const Range whole[] = {{0, 96}};
    try {
      exchange.open({}, {arena, arena, whole});
    } catch (const ConfigError& error) {
      refused += std::string(error.what()) ==
                 "the codec raw encodes 32 elements in 136 bytes; bytes() must be a multiple of 64";
    }
  });
  CHECK(refused == 3);
}

TEST_CASE("options of a codec of a user's own are checked, and ranks that differ are named") {
  CHECK_THROWS_WITH_AS((Compressed<Ring<Threads>, Sign>(Threads{}, {}, Sign{-1})),
                       "sign: the least magnitude is -1; it must not be negative", ConfigError);
  std::atomic<int> named{0};
  Threads::World(2).run([&](Threads endpoint) {
    Any exchange = Compressed<Ring<Threads>, Sign>(endpoint, {}, Sign{endpoint.rank() == 1 ? 0.5f : 0.25f});
    std::vector<float> arena(100);
    const Range whole[] = {{0, 100}};
    try {
      exchange.open({}, {arena, arena, whole});
    } catch (const ConfigError& error) {
      named += std::string_view(error.what()) ==
               "rank 1 differs from rank 0 in comm codec.least: 0.5 instead of 0.25";
    }
  });
  CHECK(named == 2);
}

TEST_CASE("an index beyond its bucket is refused") {
  std::vector<std::byte> bytes(64);
  const codec::TopK codec{.fraction = 0.5};
  const codec::TopK::Pair pair{9, 1.0f};
  std::memcpy(bytes.data(), &pair, sizeof pair);
  float values[2] = {};
  CHECK_THROWS_WITH_AS(codec.decode_add(values, bytes.data(), 2),
                       "topk: an index of 9 in a bucket of 2 elements", Error);
}
