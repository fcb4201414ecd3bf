// EMULATES
// TIMEOUT: 300
// ALSO: CONVOY_ISA=baseline CONVOY_ISA=avx2
// Codecs on a GPU, with kernels run on the CPU: bytes and numbers equal those of the host's codecs.
#include "emulation/emulation.hpp"

namespace {
[[maybe_unused]] const bool open_to_host = (emulation::settings.closed_to_host = false, true);
}  // namespace

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "sanitized.hpp"
#include <convoy/comm/codec/half.cuh>
#include <convoy/comm/codec/int8.cuh>
#include <convoy/comm/codec/top_k.cuh>
#include <convoy/core/philox.hpp>
#include <convoy/memory/device.cuh>

using namespace convoy;
using namespace convoy::comm;

namespace {

enum class Kind { usual, level, scaled, tiny, zero, huge, special };
constexpr Kind kinds[] = {Kind::usual, Kind::level, Kind::scaled, Kind::tiny,
                          Kind::zero,  Kind::huge,  Kind::special};

/// Numbers of a kind: of similar magnitudes, of very different ones, tiny, close to the largest, with NaNs
/// and infinities.
std::vector<float> numbers(Kind kind, std::int64_t count, std::uint64_t seed) {
  Philox random(seed, static_cast<std::uint64_t>(kind));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) {
    v = random.uniform(-1, 1);
    const std::uint32_t draw = random.below(1000);
    if (kind == Kind::level) v = static_cast<float>(static_cast<int>(draw % 5) - 2) * 0.25f;
    if (kind == Kind::scaled) v = std::ldexp(v, static_cast<int>(draw % 80) - 40);
    if (kind == Kind::tiny) v = std::ldexp(v, -static_cast<int>(120 + draw % 29));
    if (kind == Kind::zero) v = draw % 2 == 0 ? 0.0f : -0.0f;
    if (kind == Kind::huge) v = std::bit_cast<float>(0x7f7fff00 + draw % 0x100 + (v < 0 ? 0x80000000u : 0u));
    if (kind == Kind::special && draw < 3)
      v = draw == 0   ? std::numeric_limits<float>::quiet_NaN()
          : draw == 1 ? std::numeric_limits<float>::infinity()
                      : -std::numeric_limits<float>::infinity();
  }
  return values;
}

// Any NaN equals any other NaN.
bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) { return same(x, y); });
}
bool same(const std::vector<std::byte>& a, const std::vector<std::byte>& b) { return a == b; }

constexpr std::byte untouched{0x5a};

/// Numbers on the GPU, `offset` elements behind an aligned address; checks that adjacent memory does not
/// change.
template <class T>
class There {
 public:
  There(memory::Device& space, const std::vector<T>& values, std::size_t offset = 0)
      : space_(space), size_(values.size()), offset_(offset), array_(space, size_ + offset + beyond) {
    std::vector<std::byte> all(array_.bytes(), untouched);
    if (size_ > 0) std::memcpy(all.data() + offset * sizeof(T), values.data(), size_ * sizeof(T));
    space.write(array_.data(), all.data(), all.size());
  }
  T* data() { return array_.data() + offset_; }
  std::vector<T> read() {
    std::vector<std::byte> all(array_.bytes());
    space_.read(all.data(), array_.data(), all.size());
    const std::size_t begin = offset_ * sizeof(T), end = begin + size_ * sizeof(T);
    for (std::size_t i = 0; i < all.size(); ++i)
      if ((i < begin || i >= end) && all[i] != untouched) throw Error("memory beside was written");
    std::vector<T> values(size_);
    if (size_ > 0) std::memcpy(values.data(), all.data() + begin, size_ * sizeof(T));
    return values;
  }

 private:
  static constexpr std::size_t beyond = 64;
  memory::Device& space_;
  std::size_t size_, offset_;
  memory::Array<T, memory::Device> array_;
};

constexpr std::int64_t sizes[] = {1, 3, 31, 511, 512, 513, 4'100, 20'011};
constexpr int steps = sanitized ? 2 : 3;

/// Calls `body(kind, count, offset)` for kinds of numbers, sizes and alignments, with blocks in several
/// orders.
template <class Body>
void everywhere(Body&& body) {
  for (const auto order :
       {emulation::Order::forward, emulation::Order::backward, emulation::Order::shuffled}) {
    if (sanitized && order != emulation::Order::shuffled) continue;
    const emulation::With other(
        {.blocks = order, .threads = emulation::Order::backward, .closed_to_host = false});
    for (const std::int64_t count : sizes) {
      if ((sanitized || order != emulation::Order::forward) && count > 5'000) continue;
      for (const Kind kind : kinds)
        for (const std::size_t offset : {std::size_t{0}, std::size_t{1}}) {
          CAPTURE(static_cast<int>(kind));
          CAPTURE(count);
          CAPTURE(offset);
          body(kind, count, offset);
        }
    }
  }
}

std::vector<std::byte> bytes(std::int64_t count, std::byte value = untouched) {
  return std::vector<std::byte>(static_cast<std::size_t>(count), value);
}

}  // namespace

TEST_CASE_TEMPLATE("halves on a GPU are the host's", E, bf16, f16) {
  using Codec = codec::Half<E>;
  memory::Device space;
  everywhere([&](Kind kind, std::int64_t count, std::size_t offset) {
    const auto size = static_cast<std::size_t>(count);
    std::vector<float> error(size);
    for (int step = 0; step < steps; ++step) {
      const auto values = numbers(kind, count, static_cast<std::uint64_t>(step));
      std::vector<E> half(size);
      std::vector<float> left = error, decoded(size);
      Codec::encode(half.data(), values.data(), left.data(), count);
      Codec::decode(decoded.data(), half.data(), count);

      There<float> values_there(space, values, offset), error_there(space, error, offset),
          left_there(space, values, offset), decoded_there(space, values, offset);
      There<E> half_there(space, std::vector<E>(size));
      const auto encode = [&](float* to) {
        codec::Kernels<Codec>::encode({}, space.stream(), half_there.data(), values_there.data(),
                                      error_there.data(), to, count);
      };
      encode(left_there.data());
      CHECK(error_there.read() == error);  // the step may be skipped
      encode(error_there.data());
      codec::Kernels<Codec>::decode({}, space.stream(), decoded_there.data(), half_there.data(), count);
      const std::vector<E> sent = half_there.read();
      CHECK(std::equal(sent.begin(), sent.end(), half.begin(), [](E a, E b) {
        return std::isnan(static_cast<float>(a)) ? std::isnan(static_cast<float>(b)) : a == b;
      }));
      CHECK(same(left_there.read(), left));
      CHECK(same(error_there.read(), left));
      CHECK(same(decoded_there.read(), decoded));
      error = left;
    }
  });
}

TEST_CASE("int8 on a GPU is the host's, for the blocks of all ranks and for their sums") {
  using codec::Int8;
  memory::Device space;
  everywhere([&](Kind kind, std::int64_t count, std::size_t offset) {
    const int ranks = 1 + static_cast<int>(count % 4);
    const std::int64_t block = (count + ranks * Int8::block - 1) / (ranks * Int8::block) * Int8::block;
    const codec::Parts parts{count, block, Int8::bytes(block)};
    const auto size = static_cast<std::size_t>(count);
    const int own = static_cast<int>(count / block) % ranks;
    const auto begin = [&](int rank) { return std::min(count, rank * block); };
    std::vector<float> error(size), sum_error(static_cast<std::size_t>(parts.size(own)));
    for (int step = 0; step < steps; ++step) {
      const auto values = numbers(kind, count, static_cast<std::uint64_t>(step));
      auto encoded = bytes(ranks * parts.bytes), sums = bytes(parts.bytes);
      std::vector<float> left = error, sum_left = sum_error, decoded(size), sum(sum_error.size());
      for (int r = 0; r < ranks; ++r)
        Int8::encode(encoded.data() + r * parts.bytes, values.data() + begin(r), left.data() + begin(r),
                     parts.size(r));
      for (int r = 0; r < ranks; ++r)
        Int8::decode(decoded.data() + begin(r), encoded.data() + r * parts.bytes, parts.size(r));
      // Stand-ins for the other ranks' contributions to this rank's block.
      auto inbox = bytes(ranks * parts.bytes);
      for (int r = 0; r < ranks; ++r) {
        const auto theirs = numbers(kind, block, static_cast<std::uint64_t>(100 + r));
        std::vector<float> none(theirs.size());
        if (r != own)
          Int8::encode(inbox.data() + r * parts.bytes, theirs.data(), none.data(), parts.size(own));
        Int8::decode_add(sum.data(), (r == own ? encoded : inbox).data() + r * parts.bytes, parts.size(own));
      }
      Int8::encode(sums.data(), sum.data(), sum_left.data(), parts.size(own));

      There<float> values_there(space, values, offset), error_there(space, error, offset),
          left_there(space, values, offset), decoded_there(space, values, offset),
          sum_error_there(space, sum_error), sum_left_there(space, sum_error);
      There<std::byte> encoded_there(space, bytes(ranks * parts.bytes)), inbox_there(space, inbox),
          sums_there(space, bytes(parts.bytes));
      using Kernels = codec::Kernels<Int8>;
      const auto encode = [&](float* to) {
        Kernels::encode({}, space.stream(), encoded_there.data(), values_there.data(), error_there.data(), to,
                        parts);
      };
      encode(left_there.data());
      CHECK(error_there.read() == error);
      encode(error_there.data());
      Kernels::decode({}, space.stream(), decoded_there.data(), encoded_there.data(), parts);
      Kernels::fold({}, space.stream(), sums_there.data(), encoded_there.data() + own * parts.bytes,
                    inbox_there.data(), own, ranks, sum_error_there.data(), sum_left_there.data(), parts);
      CHECK(same(encoded_there.read(), encoded));
      CHECK(same(left_there.read(), left));
      CHECK(same(error_there.read(), left));
      CHECK(same(decoded_there.read(), decoded));
      CHECK(same(sums_there.read(), sums));
      CHECK(same(sum_left_there.read(), sum_left));
      CHECK(sum_error_there.read() == sum_error);
      error = left;
      sum_error = sum_left;
    }
  });
}

TEST_CASE("the largest elements on a GPU are the host's") {
  using codec::TopK;
  memory::Device space;
  everywhere([&](Kind kind, std::int64_t count, std::size_t offset) {
    for (const double fraction : {0.01, 0.3, 1.0}) {
      if (sanitized && fraction == 0.3) continue;
      CAPTURE(fraction);
      const TopK topk{.fraction = fraction};
      const auto size = static_cast<std::size_t>(count), kept = static_cast<std::size_t>(topk.kept(count));
      const int ranks = 1 + static_cast<int>(count % 3);
      std::vector<float> error(size);
      for (int step = 0; step < (fraction < 0.1 ? steps : 1); ++step) {
        std::vector<float> decoded(size), left;
        auto encoded = bytes(ranks * topk.bytes(count));
        for (int r = ranks - 1; r >= 0; --r) {
          const auto values = numbers(kind, count, static_cast<std::uint64_t>(10 * step + r));
          left = error;
          topk.encode(encoded.data() + r * topk.bytes(count), values.data(), left.data(), count, {});
        }
        for (int r = 0; r < ranks; ++r)
          topk.decode_add(decoded.data(), encoded.data() + r * topk.bytes(count), count);

        const auto values = numbers(kind, count, static_cast<std::uint64_t>(10 * step));
        using Kernels = codec::Kernels<TopK>;
        There<float> values_there(space, values, offset), error_there(space, error, offset),
            left_there(space, values, offset), decoded_there(space, values, offset);
        There<std::byte> first_there(space, bytes(topk.bytes(count))), all_there(space, encoded),
            room_there(space, bytes(Kernels::room(topk, count)));
        const auto encode = [&](float* to) {
          Kernels::encode(topk, space.stream(), first_there.data(), values_there.data(), error_there.data(),
                          to, count, room_there.data());
        };
        encode(left_there.data());
        CHECK(same(error_there.read(), error));
        encode(error_there.data());
        Kernels::sum(topk, space.stream(), decoded_there.data(), all_there.data(), ranks, count);
        const std::vector<std::byte> sent = first_there.read();
        std::vector<TopK::Pair> pairs(kept), expected(kept);
        std::memcpy(pairs.data(), sent.data(), kept * sizeof(TopK::Pair));
        std::memcpy(expected.data(), encoded.data(), kept * sizeof(TopK::Pair));
        CHECK(std::equal(pairs.begin(), pairs.end(), expected.begin(),
                         [](const TopK::Pair& a, const TopK::Pair& b) {
                           return a.index == b.index && same(a.value, b.value);
                         }));
        CHECK(same(left_there.read(), left));
        CHECK(same(error_there.read(), left));
        CHECK(same(decoded_there.read(), decoded));
        error = left;
      }
    }
  });
}

TEST_CASE("what comes from many ranks is added up, and an index beyond the bucket becomes NaN") {
  using codec::TopK;
  memory::Device space;
  const TopK topk{.fraction = 1e-4};
  const std::int64_t count = 2'100;
  const int ranks = 300;  // more than the threads of a block
  auto encoded = bytes(ranks * topk.bytes(count), std::byte{});
  std::vector<float> sums(static_cast<std::size_t>(count));
  for (int r = 0; r < ranks; ++r) {
    const TopK::Pair pair{static_cast<std::uint32_t>(r * 7 % 2'100), 0.1f * static_cast<float>(r)};
    std::memcpy(encoded.data() + r * topk.bytes(count), &pair, sizeof pair);
    topk.decode_add(sums.data(), encoded.data() + r * topk.bytes(count), count);
  }
  There<float> to(space, sums);
  const auto sum = [&] {
    There<std::byte> from(space, encoded);
    codec::Kernels<TopK>::sum(topk, space.stream(), to.data(), from.data(), ranks, count);
    return to.read();
  };
  CHECK(sum() == sums);
  const TopK::Pair beyond{2'100, 1.0f};
  std::memcpy(encoded.data() + 17 * topk.bytes(count), &beyond, sizeof beyond);
  CHECK(std::isnan(sum().back()));
}
