// DatasetRef: a type-erased reference to a data set, so that training loops are compiled once, not once per
// data set.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>

#include <convoy/data/dataset.hpp>
#include <convoy/data/stored_images.hpp>

namespace convoy::data {

namespace detail {
template <class D>
concept StoresImages = requires(const D& d) {
  { d.stored_images() } -> std::same_as<StoredImages>;
};
}  // namespace detail

/// Refers to a data set, which must outlive it. Itself a Dataset. Empty if default-constructed.
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
      by_index_ = !detail::HasFill<D>;
      if constexpr (detail::StoresImages<D>)
        stored_images_ = [](const void* p) { return static_cast<const D*>(p)->stored_images(); };
    }
  }

  explicit operator bool() const { return set_ != nullptr; }
  std::size_t size() const { return size_(set_); }
  std::span<const Field> fields() const { return fields_(set_); }
  void fill(const Rows& rows) const { fill_(set_, rows); }
  /// Whether a row depends on its index alone.
  bool by_index() const { return by_index_; }
  /// What a device may store in place of the set's rows, if the set provides it.
  std::optional<StoredImages> stored_images() const {
    if (stored_images_ == nullptr) return std::nullopt;
    return stored_images_(set_);
  }

 private:
  const void* set_ = nullptr;
  std::size_t (*size_)(const void*) = nullptr;
  std::span<const Field> (*fields_)(const void*) = nullptr;
  void (*fill_)(const void*, const Rows&) = nullptr;
  StoredImages (*stored_images_)(const void*) = nullptr;
  bool by_index_ = false;
};
static_assert(Dataset<DatasetRef>);

}  // namespace convoy::data
