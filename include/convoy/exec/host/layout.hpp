// Layout: a oneDNN memory layout in the size of a pointer.
#pragma once

#include <cstddef>
#include <forward_list>
#include <mutex>

#include <convoy/exec/host/onednn.hpp>

namespace convoy::exec::host {

/// A oneDNN memory descriptor. Each distinct one is stored once per process: with descriptors of some 700
/// bytes by value, the code that sets up primitives would be several times as large and as slow to compile.
class Layout {
 public:
  Layout() = default;
  /// The tag dnnl_format_tag_any lets oneDNN choose the order.
  [[gnu::cold]] Layout(const Dims& dims, dnnl_format_tag_t tag, dnnl_data_type_t type = dnnl_f32)
      : Layout(StoredDescriptor(dims, tag, type).get()) {}
  /// Strides are in elements.
  [[gnu::cold]] Layout(const Dims& dims, const Dims& strides, dnnl_data_type_t type)
      : Layout(StoredDescriptor(dims, strides, type).get()) {}
  [[gnu::cold]] explicit Layout(Descriptor descriptor)
      : stored_(descriptor == nullptr || rank_of(descriptor) == 0 ? nullptr : intern(descriptor)) {}

  Descriptor get() const { return stored_; }
  explicit operator bool() const { return stored_ != nullptr; }
  dnnl_data_type_t type() const { return type_of(stored_); }
  std::size_t bytes() const { return stored_ == nullptr ? 0 : dnnl_memory_desc_get_size(stored_); }
  /// Whether the same bytes hold the same elements. Strides along an extent of 1 do not count.
  [[gnu::cold]] friend bool operator==(const Layout& a, const Layout& b) {
    if (a.stored_ == nullptr || b.stored_ == nullptr) return a.stored_ == b.stored_;
    return dnnl_memory_desc_equal(a.stored_, b.stored_) != 0;
  }

 private:
  [[gnu::cold]] static Descriptor intern(Descriptor descriptor) {
    static std::mutex mutex;
    static std::forward_list<StoredDescriptor> all;
    const std::lock_guard lock(mutex);
    // Strides along an extent of 1 are kept apart: with some of them oneDNN has only reference code.
    for (const StoredDescriptor& known : all)
      if (dnnl_memory_desc_equal(known.get(), descriptor) != 0 &&
          order_hash(known.get()) == order_hash(descriptor))
        return known.get();
    return all.emplace_front(descriptor).get();
  }

  Descriptor stored_ = nullptr;
};

/// The layout of argument `index` (a DNNL_ARG number) that a primitive requires; empty if it has none.
[[gnu::cold]] inline Layout layout_of(const Description& description, int index) {
  return Layout(dnnl_primitive_desc_query_md(description.get(), dnnl_query_exec_arg_md, index));
}

}  // namespace convoy::exec::host
