// DatasetRef: a data set behind a pointer, so that training loops are compiled once, not once a data set.
#pragma once

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
      read_ = [](const void* p, std::size_t index, Sample out) {
        static_cast<const D*>(p)->read(index, out);
      };
    }
  }

  explicit operator bool() const { return set_ != nullptr; }
  std::size_t size() const { return size_(set_); }
  std::span<const Field> fields() const { return fields_(set_); }
  void read(std::size_t index, Sample out) const { read_(set_, index, out); }

 private:
  const void* set_ = nullptr;
  std::size_t (*size_)(const void*) = nullptr;
  std::span<const Field> (*fields_)(const void*) = nullptr;
  void (*read_)(const void*, std::size_t, Sample) = nullptr;
};
static_assert(Dataset<DatasetRef>);

}  // namespace convoy::data
