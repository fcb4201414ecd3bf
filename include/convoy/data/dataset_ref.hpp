// DatasetRef: a data set behind a pointer, so that training loops are compiled once, not once a data set.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include <convoy/data/dataset.hpp>

namespace convoy::data {

/// Refers to a data set that outlives it; itself a Dataset. Empty when made from nothing.
class DatasetRef {
 public:
  DatasetRef() = default;
  template <class D>
  requires(!std::same_as<D, DatasetRef>) DatasetRef(const D* set) {
    if constexpr (require_dataset<D>()) {
      set_ = set;
      size_ = [](const void* p) -> std::size_t { return static_cast<const D*>(p)->size(); };
      fields_ = [](const void* p) -> std::span<const Field> { return static_cast<const D*>(p)->fields(); };
      fill_ = [](const void* p, const Rows& rows) { data::fill(*static_cast<const D*>(p), rows); };
    }
  }

  explicit operator bool() const { return set_ != nullptr; }
  std::size_t size() const { return size_(set_); }
  std::span<const Field> fields() const { return fields_(set_); }
  void fill(const Rows& rows) const { fill_(set_, rows); }

 private:
  const void* set_ = nullptr;
  std::size_t (*size_)(const void*) = nullptr;
  std::span<const Field> (*fields_)(const void*) = nullptr;
  void (*fill_)(const void*, const Rows&) = nullptr;
};
static_assert(Dataset<DatasetRef>);

}  // namespace convoy::data
