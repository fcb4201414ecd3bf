// oneDNN through its C interface, which compiles in a fiftieth of the time of its C++ one: owning handles,
// and wrappers for the differences between 2.x and 3.x. 2.x describes an operation first and then asks for an
// implementation; 3.x does both at once and makes memory descriptors opaque.
//
// Here and in the rest of exec/host, functions that prepare stages, once per batch size, are cold: optimized
// for size and not inlined, because they are most of the code of an Exec and little of its run time.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

#include <oneapi/dnnl/dnnl.h>

#include <convoy/core/error.hpp>

#if DNNL_VERSION_MAJOR < 2 || (DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR < 6)
#error "convoy: exec::Host needs oneDNN 2.6 or later"
#endif

namespace convoy::exec::host {

[[noreturn]] inline void refuse(dnnl_status_t status, const char* what) {
  fail<ExecError>("exec: oneDNN failed to ", what, " (status ", static_cast<int>(status), ")");
}
/// Throws ExecError unless oneDNN succeeded in doing `what`.
inline void check(dnnl_status_t status, const char* what) {
  if (status != dnnl_success) refuse(status, what);
}

/// Owns a oneDNN object, or none.
template <class T, dnnl_status_t (*destroy)(T)>
class Handle {
 public:
  Handle() = default;
  Handle(Handle&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~Handle() {
    if (held_ != nullptr) destroy(held_);
  }
  T get() const { return held_; }
  /// The address for a oneDNN function to store a new object; to be called while the handle is empty.
  T* out() { return &held_; }
  explicit operator bool() const { return held_ != nullptr; }

 private:
  T held_ = nullptr;
};

using EngineHandle = Handle<dnnl_engine_t, dnnl_engine_destroy>;
using StreamHandle = Handle<dnnl_stream_t, dnnl_stream_destroy>;
using Attributes = Handle<dnnl_primitive_attr_t, dnnl_primitive_attr_destroy>;
using Description = Handle<dnnl_primitive_desc_t, dnnl_primitive_desc_destroy>;
using Primitive = Handle<dnnl_primitive_t, dnnl_primitive_destroy>;

/// The extents of a tensor.
struct Dims {
  Dims(std::initializer_list<std::int64_t> extents) {
    for (const std::int64_t extent : extents) values[count++] = extent;
  }
  int count = 0;
  dnnl_dims_t values = {};
};

/// Which result of a convolution or inner product is computed.
enum class Direction : unsigned char { forward, data, weights };

#if DNNL_VERSION_MAJOR >= 3

/// A tensor descriptor that is not owned.
using Descriptor = const_dnnl_memory_desc_t;

/// An owned tensor descriptor.
class StoredDescriptor {
 public:
  StoredDescriptor(const Dims& dims, dnnl_format_tag_t tag, dnnl_data_type_t type) {
    check(dnnl_memory_desc_create_with_tag(held_.out(), dims.count, dims.values, type, tag),
          "describe a tensor");
  }
  StoredDescriptor(const Dims& dims, const Dims& strides, dnnl_data_type_t type) {
    check(dnnl_memory_desc_create_with_strides(held_.out(), dims.count, dims.values, type, strides.values),
          "describe a tensor");
  }
  explicit StoredDescriptor(Descriptor other) {
    check(dnnl_memory_desc_clone(held_.out(), other), "copy the description of a tensor");
  }
  Descriptor get() const { return held_.get(); }

 private:
  Handle<dnnl_memory_desc_t, dnnl_memory_desc_destroy> held_;
};

inline int rank_of(Descriptor descriptor) {
  int rank = 0;
  return dnnl_memory_desc_query(descriptor, dnnl_query_ndims_s32, &rank) == dnnl_success ? rank : 0;
}
inline dnnl_data_type_t type_of(Descriptor descriptor) {
  dnnl_data_type_t type = dnnl_data_type_undef;
  check(dnnl_memory_desc_query(descriptor, dnnl_query_data_type, &type), "describe a tensor");
  return type;
}

/// Calls `mix` with each number that defines the element order; not at all if oneDNN does not tell it.
template <class Mix>
void for_each_of_order(Descriptor descriptor, Mix mix) {
  dnnl_format_kind_t kind = dnnl_format_kind_undef;
  check(dnnl_memory_desc_query(descriptor, dnnl_query_format_kind, &kind), "describe a tensor");
  if (kind != dnnl_blocked) return;
  auto numbers = [&](dnnl_query_t what) {
    const dnnl_dims_t* values = nullptr;
    check(dnnl_memory_desc_query(descriptor, what, static_cast<void*>(&values)), "describe a tensor");
    return *values;
  };
  int blocks = 0;
  check(dnnl_memory_desc_query(descriptor, dnnl_query_inner_nblks_s32, &blocks), "describe a tensor");
  for (int i = 0; i < rank_of(descriptor); ++i) mix(numbers(dnnl_query_strides)[i]);
  for (int i = 0; i < blocks; ++i)
    mix(numbers(dnnl_query_inner_blks)[i]), mix(numbers(dnnl_query_inner_idxs)[i]);
}

#else

using Descriptor = const dnnl_memory_desc_t*;

class StoredDescriptor {
 public:
  StoredDescriptor(const Dims& dims, dnnl_format_tag_t tag, dnnl_data_type_t type) {
    check(dnnl_memory_desc_init_by_tag(&held_, dims.count, dims.values, type, tag), "describe a tensor");
  }
  StoredDescriptor(const Dims& dims, const Dims& strides, dnnl_data_type_t type) {
    check(dnnl_memory_desc_init_by_strides(&held_, dims.count, dims.values, type, strides.values),
          "describe a tensor");
  }
  explicit StoredDescriptor(Descriptor other) : held_(*other) {}
  Descriptor get() const { return &held_; }

 private:
  dnnl_memory_desc_t held_;
};

inline int rank_of(Descriptor descriptor) { return descriptor->ndims; }
inline dnnl_data_type_t type_of(Descriptor descriptor) { return descriptor->data_type; }

template <class Mix>
void for_each_of_order(Descriptor descriptor, Mix mix) {
  const auto& blocking = descriptor->format_desc.blocking;
  for (int i = 0; i < descriptor->ndims; ++i) mix(blocking.strides[i]);
  for (int i = 0; i < blocking.inner_nblks; ++i) mix(blocking.inner_blks[i]), mix(blocking.inner_idxs[i]);
}

#endif

/// A hash of the element order of a descriptor.
[[gnu::cold]] inline std::uint64_t order_hash(Descriptor descriptor) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for_each_of_order(
      descriptor, [&](std::int64_t v) { hash = (hash ^ static_cast<std::uint64_t>(v)) * 0x100000001b3ull; });
  return hash;
}

/// The tensors of a convolution or inner product, and the window of a convolution; `bias` may be null. For a
/// gradient, the descriptors of tensors are those of their gradients.
struct ProductShape {
  Descriptor src = nullptr, weights = nullptr, bias = nullptr, dst = nullptr;
  bool is_convolution = false;
  dnnl_dims_t strides = {}, dilates = {};  // a dilate is the number of elements skipped between two taps
  dnnl_dims_t padding_low = {}, padding_high = {};
};

// Both versions of oneDNN make the description of a convolution or inner product for one direction.
#if DNNL_VERSION_MAJOR >= 3

[[gnu::cold]] inline dnnl_status_t create_convolution(dnnl_primitive_desc_t* made, dnnl_engine_t engine,
                                                      const_dnnl_primitive_attr_t attributes,
                                                      Direction direction, const ProductShape& s,
                                                      const_dnnl_primitive_desc_t hint) {
  switch (direction) {
    case Direction::forward:
      return dnnl_convolution_forward_primitive_desc_create(
          made, engine, dnnl_forward_training, dnnl_convolution_direct, s.src, s.weights, s.bias, s.dst,
          s.strides, s.dilates, s.padding_low, s.padding_high, attributes);
    case Direction::data:
      return dnnl_convolution_backward_data_primitive_desc_create(
          made, engine, dnnl_convolution_direct, s.src, s.weights, s.dst, s.strides, s.dilates, s.padding_low,
          s.padding_high, hint, attributes);
    case Direction::weights:
      return dnnl_convolution_backward_weights_primitive_desc_create(
          made, engine, dnnl_convolution_direct, s.src, s.weights, s.bias, s.dst, s.strides, s.dilates,
          s.padding_low, s.padding_high, hint, attributes);
  }
  return dnnl_unimplemented;
}

[[gnu::cold]] inline dnnl_status_t create_inner_product(dnnl_primitive_desc_t* made, dnnl_engine_t engine,
                                                        const_dnnl_primitive_attr_t attributes,
                                                        Direction direction, const ProductShape& s,
                                                        const_dnnl_primitive_desc_t hint) {
  switch (direction) {
    case Direction::forward:
      return dnnl_inner_product_forward_primitive_desc_create(made, engine, dnnl_forward_training, s.src,
                                                              s.weights, s.bias, s.dst, attributes);
    case Direction::data:
      return dnnl_inner_product_backward_data_primitive_desc_create(made, engine, s.src, s.weights, s.dst,
                                                                    hint, attributes);
    case Direction::weights:
      return dnnl_inner_product_backward_weights_primitive_desc_create(made, engine, s.src, s.weights, s.bias,
                                                                       s.dst, hint, attributes);
  }
  return dnnl_unimplemented;
}

#else

[[gnu::cold]] inline dnnl_status_t create_convolution(dnnl_primitive_desc_t* made, dnnl_engine_t engine,
                                                      const_dnnl_primitive_attr_t attributes,
                                                      Direction direction, const ProductShape& s,
                                                      const_dnnl_primitive_desc_t hint) {
  dnnl_convolution_desc_t convolution;
  dnnl_status_t status = dnnl_unimplemented;
  switch (direction) {
    case Direction::forward:
      status = dnnl_dilated_convolution_forward_desc_init(
          &convolution, dnnl_forward_training, dnnl_convolution_direct, s.src, s.weights, s.bias, s.dst,
          s.strides, s.dilates, s.padding_low, s.padding_high);
      break;
    case Direction::data:
      status = dnnl_dilated_convolution_backward_data_desc_init(&convolution, dnnl_convolution_direct, s.src,
                                                                s.weights, s.dst, s.strides, s.dilates,
                                                                s.padding_low, s.padding_high);
      break;
    case Direction::weights:
      status = dnnl_dilated_convolution_backward_weights_desc_init(&convolution, dnnl_convolution_direct,
                                                                   s.src, s.weights, s.bias, s.dst, s.strides,
                                                                   s.dilates, s.padding_low, s.padding_high);
      break;
  }
  return status == dnnl_success ? dnnl_primitive_desc_create(made, &convolution, attributes, engine, hint)
                                : status;
}

[[gnu::cold]] inline dnnl_status_t create_inner_product(dnnl_primitive_desc_t* made, dnnl_engine_t engine,
                                                        const_dnnl_primitive_attr_t attributes,
                                                        Direction direction, const ProductShape& s,
                                                        const_dnnl_primitive_desc_t hint) {
  dnnl_inner_product_desc_t product;
  dnnl_status_t status = dnnl_unimplemented;
  switch (direction) {
    case Direction::forward:
      status = dnnl_inner_product_forward_desc_init(&product, dnnl_forward_training, s.src, s.weights, s.bias,
                                                    s.dst);
      break;
    case Direction::data:
      status = dnnl_inner_product_backward_data_desc_init(&product, s.src, s.weights, s.dst);
      break;
    case Direction::weights:
      status = dnnl_inner_product_backward_weights_desc_init(&product, s.src, s.weights, s.bias, s.dst);
      break;
  }
  return status == dnnl_success ? dnnl_primitive_desc_create(made, &product, attributes, engine, hint)
                                : status;
}

#endif

/// oneDNN's first choice for one direction; empty if it has none. `hint` is the description chosen for
/// forward; null for forward itself.
[[gnu::cold]] inline Description describe(dnnl_engine_t engine, const_dnnl_primitive_attr_t attributes,
                                          Direction direction, const ProductShape& s,
                                          const_dnnl_primitive_desc_t hint) {
  Description made;
  const auto create = s.is_convolution ? create_convolution : create_inner_product;
  const dnnl_status_t status = create(made.out(), engine, attributes, direction, s, hint);
  return status == dnnl_success ? std::move(made) : Description();
}

/// oneDNN's first choice for the matrix product c = a b, or c += a b, plus `bias` in every row unless it is
/// null; empty if it has none.
[[gnu::cold]] inline Description describe_matrices(dnnl_engine_t engine, Descriptor a, Descriptor b,
                                                   Descriptor bias, Descriptor c, bool accumulate) {
  Attributes attributes;
  check(dnnl_primitive_attr_create(attributes.out()), "make attributes");
  check(dnnl_primitive_attr_set_scratchpad_mode(attributes.get(), dnnl_scratchpad_mode_user),
        "set an attribute");
  Handle<dnnl_post_ops_t, dnnl_post_ops_destroy> after;
  check(dnnl_post_ops_create(after.out()), "make attributes");
  Description made;
#if DNNL_VERSION_MAJOR >= 3
  // The type of the sum is left to oneDNN: 3.2 has only reference code for a bf16 product if it is named f32.
  if (accumulate)
    check(dnnl_post_ops_append_sum(after.get(), 1.0f, 0, dnnl_data_type_undef), "set an attribute");
  check(dnnl_primitive_attr_set_post_ops(attributes.get(), after.get()), "set an attribute");
  const dnnl_status_t status =
      dnnl_matmul_primitive_desc_create(made.out(), engine, a, b, bias, c, attributes.get());
#else
  if (accumulate) check(dnnl_post_ops_append_sum(after.get(), 1.0f), "set an attribute");
  check(dnnl_primitive_attr_set_post_ops(attributes.get(), after.get()), "set an attribute");
  dnnl_matmul_desc_t product;
  dnnl_status_t status = dnnl_matmul_desc_init(&product, a, b, bias, c);
  if (status == dnnl_success)
    status = dnnl_primitive_desc_create(made.out(), &product, attributes.get(), engine, nullptr);
#endif
  return status == dnnl_success ? std::move(made) : Description();
}

}  // namespace convoy::exec::host
