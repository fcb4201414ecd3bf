// Synthetic: random samples of any fields, for measuring throughput without files.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <convoy/core/philox.hpp>
#include <convoy/data/dataset.hpp>

namespace convoy::data {

/// A field to be filled at random: floating-point elements standard normal, integers uniform in [0, below). A
/// label of 1000 classes is {{"label", DType::i32, {}}, 1000}.
struct RandomField {
  Field field;
  int below = 256;
};

/// A Dataset of `size` random samples. Sample `index` is a pure function of (fields, seed, index), cut from a
/// pool of random elements made at construction, so that reading is only a copy. Copies share the pools.
class Synthetic {
 public:
  /// Throws ConfigError if an integer field has an empty range.
  Synthetic(std::size_t size, const std::vector<RandomField>& fields, std::uint64_t seed = 0)
      : size_(size), seed_(seed) {
    for (std::size_t i = 0; i < fields.size(); ++i) {
      const auto& [field, below] = fields[i];
      if (below < 1 || (field.dtype == DType::u8 && below > 256))
        fail<ConfigError>("data: field '", field.name, "' of ", name_of(field.dtype),
                          " cannot be drawn from [0, ", below, ")");
      fields_.push_back(field);
      pools_.push_back(std::make_shared<const Buffer<std::byte>>(fill(field, below, seed, i)));
    }
  }

  std::size_t size() const { return size_; }
  std::span<const Field> fields() const { return fields_; }

  void read(std::size_t index, Sample out) const {
    if (index >= size_) fail<DataError>("data: sample ", index, " was asked for, but the set holds ", size_);
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      const std::size_t width = size_of(fields_[i].dtype);
      const auto words = philox({static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                                 static_cast<std::uint32_t>(i), 0x73796e74u},
                                {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
      std::memcpy(out.bytes(i).data(), pools_[i]->data() + words[0] % slack * width, fields_[i].bytes());
    }
  }

 private:
  /// How many places of the pool a sample can start at.
  static constexpr std::size_t slack = 1 << 16;

  template <class T, class Draw>
  static void fill(Buffer<std::byte>& pool, Draw draw) {
    for (std::size_t at = 0; at < pool.size(); at += sizeof(T)) {
      const T value = draw();
      std::memcpy(pool.data() + at, &value, sizeof(T));
    }
  }

  static Buffer<std::byte> fill(const Field& field, int below, std::uint64_t seed, std::size_t index) {
    Buffer<std::byte> pool((field.elements() + slack - 1) * size_of(field.dtype));
    Philox random(seed ^ 0x73796e746865ull, index);
    const auto number = [&] { return static_cast<int>(random.below(static_cast<std::uint32_t>(below))); };
    switch (field.dtype) {
      case DType::f32:
        fill<f32>(pool, [&] { return random.normal(); });
        break;
      case DType::f64:
        fill<f64>(pool, [&] { return static_cast<f64>(random.normal()); });
        break;
      case DType::bf16:
        fill<bf16>(pool, [&] { return bf16(random.normal()); });
        break;
      case DType::f16:
        fill<f16>(pool, [&] { return f16(random.normal()); });
        break;
      case DType::i32:
        fill<i32>(pool, number);
        break;
      case DType::u8:
        fill<u8>(pool, [&] { return static_cast<u8>(number()); });
        break;
    }
    return pool;
  }

  std::size_t size_;
  std::uint64_t seed_;
  std::vector<Field> fields_;
  std::vector<std::shared_ptr<const Buffer<std::byte>>> pools_;
};

}  // namespace convoy::data
