// Dataset: what Trainer and Loader require of a data set. A user's own set needs three members and no base
// class.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <vector>

#include <convoy/core/dtype.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/core/name.hpp>
#include <convoy/core/philox.hpp>
#include <convoy/core/shape.hpp>
#include <convoy/data/error.hpp>
#include <convoy/memory/buffer.hpp>
#include <convoy/memory/pages.hpp>

namespace convoy::data {

/// One field of a sample: {"image", DType::f32, {1, 28, 28}}, {"label", DType::i32, {}}. It feeds the model's
/// input of the same name.
struct Field {
  Name name;
  DType dtype = DType::f32;
  Shape shape;

  constexpr std::size_t elements() const { return static_cast<std::size_t>(shape.size()); }
  constexpr std::size_t bytes() const { return elements() * size_of(dtype); }
  friend constexpr bool operator==(const Field&, const Field&) = default;
};

/// A view of one sample's memory, to which `read` writes. Field `i` is `as<T>(i)` or, untyped, `bytes(i)`.
class Sample {
 public:
  /// Row `row` of columns that start at `columns[i]` for each field.
  Sample(std::span<const Field> fields, std::byte* const* columns, std::size_t row)
      : fields_(fields), columns_(columns), row_(row) {}

  std::size_t fields() const { return fields_.size(); }
  const Field& field(std::size_t i) const { return fields_[i]; }

  std::span<std::byte> bytes(std::size_t i) const {
    const std::size_t size = fields_[i].bytes();
    return {columns_[i] + row_ * size, size};
  }

  /// The elements of field `i`. Throws DataError if the field does not exist or holds another type.
  template <class T>
  std::span<T> as(std::size_t i) const {
    if (i >= fields_.size())
      fail<DataError>("data: field ", i, " of a sample was asked for, but it has ", fields_.size(),
                      " fields");
    if (fields_[i].dtype != dtype_of<T>)
      fail<DataError>("data: field '", fields_[i].name, "' holds ", name_of(fields_[i].dtype), ", not ",
                      name_of(dtype_of<T>));
    return {reinterpret_cast<T*>(bytes(i).data()), fields_[i].elements()};
  }

 private:
  std::span<const Field> fields_;
  std::byte* const* columns_;
  std::size_t row_;
};

/// Owned memory for up to `rows` samples: one contiguous, aligned column per field, so that a column is a
/// tensor of the batch without a copy.
class Samples {
 public:
  Samples() = default;
  Samples(std::span<const Field> fields, std::size_t rows,
          std::pmr::memory_resource* resource = memory::pages())
      : fields_(fields.begin(), fields.end()) {
    std::size_t total = 0;
    std::vector<std::size_t> offsets;
    for (const Field& field : fields_) {
      offsets.push_back(total);
      total += (rows * field.bytes() + alignment - 1) / alignment * alignment;
    }
    memory_ = Buffer<std::byte>(total, resource);
    for (std::size_t offset : offsets) columns_.push_back(memory_.data() + offset);
  }

  std::span<const Field> fields() const { return fields_; }
  /// The start of each field's column.
  std::span<std::byte* const> columns() const { return columns_; }
  /// A view of one row; valid as long as this object.
  Sample row(std::size_t i) const { return {fields_, columns_.data(), i}; }

 private:
  std::vector<Field> fields_;
  Buffer<std::byte> memory_;
  std::vector<std::byte*> columns_;
};

/// The rows that a data set is to write: which samples, where to, and what their random numbers are a
/// function of. Rows that are adjacent in memory are adjacent in the epoch's order.
class Rows {
 public:
  /// What random numbers may depend on besides a row's position: the loader's seed and the epoch.
  struct Draw {
    std::uint64_t seed = 0;
    std::int64_t epoch = 0;
    friend constexpr bool operator==(const Draw&, const Draw&) = default;
  };

  /// Samples `indices` go to the rows from `first_row` on; the first has position `position` in the epoch's
  /// order.
  Rows(std::span<const Field> fields, std::byte* const* columns, std::size_t first_row,
       std::span<const std::uint64_t> indices, std::int64_t position, Draw draw)
      : fields_(fields),
        columns_(columns),
        first_row_(first_row),
        indices_(indices),
        position_(position),
        draw_(draw) {}

  std::size_t size() const { return indices_.size(); }
  /// The sample index of row `i`.
  std::size_t index(std::size_t i) const { return static_cast<std::size_t>(indices_[i]); }
  /// The position of row `i` in the epoch's order, the same for any number of ranks.
  std::int64_t position(std::size_t i) const { return position_ + static_cast<std::int64_t>(i); }
  std::uint64_t seed() const { return draw_.seed; }
  std::int64_t epoch() const { return draw_.epoch; }
  Draw draw() const { return draw_; }
  /// Where row `i` is written.
  Sample operator[](std::size_t i) const { return {fields_, columns_, first_row_ + i}; }
  /// The elements of field `f` of all rows. Throws DataError as `Sample::as` does.
  template <class T>
  std::span<T> column(std::size_t f) const {
    const auto first = (*this)[0].as<T>(f);
    return {first.data(), first.size() * size()};
  }

 private:
  std::span<const Field> fields_;
  std::byte* const* columns_;
  std::size_t first_row_;
  std::span<const std::uint64_t> indices_;
  std::int64_t position_;
  Draw draw_;
};

/// The random numbers of one thing (a sample or a position) in one epoch for one use; different uses have
/// different numbers. A pure function of its arguments.
constexpr Philox random_of(Rows::Draw draw, std::uint64_t thing, std::uint64_t use) {
  return Philox(hash_of(draw.epoch, hash_of(use, hash_of(draw.seed))), thing);
}

namespace detail {
template <class D>
concept HasSize = requires(const D& d) {
  { d.size() } -> std::convertible_to<std::size_t>;
};
// A container that is returned by value is gone before its span is used.
template <class List>
concept Outlives =
    std::is_lvalue_reference_v<List> || std::ranges::enable_borrowed_range<std::remove_cv_t<List>>;
template <class D>
concept HasFields = requires(const D& d) {
  { d.fields() } -> std::convertible_to<std::span<const Field>>;
  requires Outlives<decltype(d.fields())>;
};
template <class D>
concept HasRead = requires(const D& d, std::size_t index, Sample out) {
  d.read(index, out);
};
template <class D>
concept HasFill = requires(const D& d, const Rows& rows) {
  d.fill(rows);
};
template <class D>
concept IsSplit = !HasSize<D> && requires(const D& d) {
  d.train.size();
  d.test.size();
};
}  // namespace detail

/// A data set:
///   - `size()`: the number of samples;
///   - `fields()`: what one sample consists of, the same for all, as a `std::span<const Field>` or as a
///     reference to a container of fields, which lives as long as the set;
///   - `read(index, out) const`: writes sample `index` to `out`; or
///   - `fill(rows) const`: writes several samples at once. Random ones may depend on the seed, the epoch and
///     the position in the epoch's order, and on nothing else that changes.
///
/// Prefetch threads, and ranks that are threads, call these members concurrently on one object. They may
/// throw; `Loader::next` rethrows the exception. What a row holds must not depend on the rows of other
/// batches, ranks and threads, so that an epoch can be entered anywhere.
template <class D>
concept Dataset = detail::HasSize<D> && detail::HasFields<D> &&(detail::HasRead<D> || detail::HasFill<D>);

/// Writes rows of any data set, by its `fill` if it has one, else by its `read`.
template <class D>
void fill(const D& set, const Rows& rows) {
  if constexpr (detail::HasFill<D>) {
    set.fill(rows);
  } else {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Sample out = rows[i];
      set.read(rows.index(i), out);
    }
  }
}

/// Writes sample `index` as it is in epoch 0 with seed 0 and without shuffling; for inspection and tests.
template <class D>
void read(const D& set, std::size_t index, const Samples& to, std::size_t row = 0) {
  const std::uint64_t indices[] = {index};
  fill(set, Rows(to.fields(), to.columns().data(), row, indices, static_cast<std::int64_t>(index), {}));
}

/// True for a Dataset; otherwise the compile error is one sentence that says which member is missing.
template <class D>
consteval bool require_dataset() {
  if constexpr (detail::IsSplit<D>) {
    static_assert(
        !detail::IsSplit<D>,
        "convoy: this is a training set and a test set: pass one of them, its member `train` or `test`");
  } else if constexpr (!detail::HasSize<D>) {
    static_assert(detail::HasSize<D>, "convoy: this data set has no `size() const` that returns std::size_t");
  } else if constexpr (!detail::HasFields<D>) {
    static_assert(detail::HasFields<D>,
                  "convoy: this data set has no `fields() const` that returns std::span<const data::Field>");
  } else if constexpr (!Dataset<D>) {
    static_assert(Dataset<D>,
                  "convoy: this data set has neither `read(std::size_t index, data::Sample out) const` "
                  "nor `fill(const data::Rows& rows) const`");
  }
  return Dataset<D>;
}

}  // namespace convoy::data
