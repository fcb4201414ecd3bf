// Int8 on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include <convoy/comm/codec/int8.hpp>
#include <convoy/comm/codec/kernels.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::comm::codec {

namespace detail {

static_assert(Int8::block == Runs::size, "a block is a warp's");

/// Where a block lies among encoded parts: its bytes, and its unit behind the bytes of all blocks of its
/// part.
struct Int8Place {
  std::int64_t bytes, unit;

  __device__ Int8Place(const Parts& cut, std::int64_t block) {
    const std::int64_t blocks_a_part = cut.block / Int8::block, part = block / blocks_a_part;
    const std::int64_t within = block - part * blocks_a_part, begin = part * cut.bytes;
    bytes = begin + within * Int8::block;
    unit = begin + Int8::blocks_of(cut.size(part)) * Int8::block + within * 4;
  }
};

__device__ inline float unit_of(const std::byte* at) { return *reinterpret_cast<const float*>(at); }

/// Decodes four numbers of a block.
__device__ inline Four four_of(const std::byte* at, float unit) {
  const auto packed = *reinterpret_cast<const std::uint32_t*>(at);
  Four values;
  for (int k = 0; k < 4; ++k)
    values.lane[k] = static_cast<float>(static_cast<std::int8_t>(packed >> (8 * k))) * unit;
  return values;
}

/// A source of a run's numbers: gradients.
template <bool whole>
struct Int8OfValues {
  const float* values;
  Parts cut;

  __device__ void read(Four (&sums)[Runs::rows], std::int64_t run) const {
    for (int row = 0; row < Runs::rows; ++row)
      sums[row] = load_four<whole>(values, run * Runs::size + row * Runs::row + 4 * Runs::lane(), cut.count);
  }
};

/// A source of a run's numbers: the sums, in the order of ranks, of what the ranks have encoded.
struct Int8OfRanks {
  const std::byte *mine, *others;
  int rank, ranks;
  Parts cut;

  __device__ void read(Four (&sums)[Runs::rows], std::int64_t run) const {
    const Int8Place place(cut, run);
    for (int row = 0; row < Runs::rows; ++row) sums[row] = Four{};
    for (int r = 0; r < ranks; ++r) {
      const std::byte* from = r == rank ? mine : others + r * cut.bytes;
      const float unit = unit_of(from + place.unit);
      for (int row = 0; row < Runs::rows; ++row) {
        const Four more = four_of(from + place.bytes + row * Runs::row + 4 * Runs::lane(), unit);
        for (int k = 0; k < 4; ++k) sums[row].lane[k] += more.lane[k];
      }
    }
  }
};

template <bool whole, class Source>
__global__ void encode_int8(Source source, std::byte* to, const float* error, float* left, Parts cut) {
  Runs::for_each(Int8::blocks_of(cut.count), [&](std::int64_t run) {
    const std::int64_t begin = run * Runs::size + 4 * Runs::lane();
    Four sums[Runs::rows];
    source.read(sums, run);
    float most = 0;
    bool sound = true;
    for (int row = 0; row < Runs::rows; ++row) {
      const Four before = load_four<whole>(error, begin + row * Runs::row, cut.count);
      for (int k = 0; k < 4; ++k) {
        const float value = sums[row].lane[k] += before.lane[k];
        const float magnitude = value < 0 ? -value : value;
        most = magnitude > most ? magnitude : most;
        sound = sound && magnitude <= std::numeric_limits<float>::max();
      }
    }
    sound = __all_sync(device::full_warp, sound) != 0;
    most = device::warp_max(most);
    const Int8::Scale scale = Int8::scale_of(sound ? most : 0);
    const Int8Place place(cut, run);
    for (int row = 0; row < Runs::rows; ++row) {
      std::uint32_t packed = 0;
      for (int k = 0; k < 4; ++k) {
        float byte = 0;
        float& value = sums[row].lane[k];
        if (!sound) value = 0;  // a non-finite value is sent, not kept
        Int8::round(byte, value, scale);
        packed |= (static_cast<std::uint32_t>(static_cast<std::int32_t>(byte)) & 0xffu) << (8 * k);
      }
      *reinterpret_cast<std::uint32_t*>(to + place.bytes + row * Runs::row + 4 * Runs::lane()) = packed;
      store_four<whole>(left, begin + row * Runs::row, cut.count, sums[row]);
    }
    if (Runs::lane() == 0)
      *reinterpret_cast<float*>(to + place.unit) =
          sound ? scale.unit : std::numeric_limits<float>::quiet_NaN();
  });
}

template <bool whole>
__global__ void decode_int8(float* to, const std::byte* from, Parts cut) {
  Runs::for_each(Int8::blocks_of(cut.count), [&](std::int64_t run) {
    const Int8Place place(cut, run);
    const float unit = unit_of(from + place.unit);
    for (int row = 0; row < Runs::rows; ++row) {
      const int at = row * Runs::row + 4 * Runs::lane();
      store_four<whole>(to, run * Runs::size + at, cut.count, four_of(from + place.bytes + at, unit));
    }
  });
}

}  // namespace detail

template <>
struct Kernels<Int8> {
  static void encode(const Int8&, cudaStream_t stream, std::byte* to, const float* values, const float* error,
                     float* left, const Parts& parts) {
    if (device::aligned({values, error, left}))
      enqueue<true>(stream, detail::Int8OfValues<true>{values, parts}, to, error, left, parts);
    else
      enqueue<false>(stream, detail::Int8OfValues<false>{values, parts}, to, error, left, parts);
  }
  static void fold(const Int8&, cudaStream_t stream, std::byte* to, const std::byte* mine,
                   const std::byte* others, int rank, int ranks, const float* error, float* left,
                   const Parts& parts) {
    const Parts own{parts.size(rank), parts.block, parts.bytes};
    enqueue<true>(stream, detail::Int8OfRanks{mine, others, rank, ranks, own}, to, error, left, own);
  }
  static void decode(const Int8&, cudaStream_t stream, float* to, const std::byte* from, const Parts& parts) {
    if (parts.count <= 0) return;
    device::launch({stream, detail::Runs::blocks(Int8::blocks_of(parts.count))},
                   device::aligned({to}) ? detail::decode_int8<true> : detail::decode_int8<false>, to, from,
                   parts);
  }

 private:
  template <bool whole, class Source>
  static void enqueue(cudaStream_t stream, const Source& source, std::byte* to, const float* error,
                      float* left, const Parts& parts) {
    if (parts.count <= 0) return;
    device::launch({stream, detail::Runs::blocks(Int8::blocks_of(parts.count))},
                   detail::encode_int8<whole, Source>, source, to, error, left, parts);
  }
};

}  // namespace convoy::comm::codec
