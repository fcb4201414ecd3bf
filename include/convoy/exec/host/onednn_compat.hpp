// onednn_compat: what differs between oneDNN 2.x and 3.x, and nothing else. 2.x describes an operation first
// and then asks for an implementation; 3.x does both at once.
#pragma once

#include <cstdint>

#include <oneapi/dnnl/dnnl.hpp>

#if DNNL_VERSION_MAJOR < 2 || (DNNL_VERSION_MAJOR == 2 && DNNL_VERSION_MINOR < 6)
#error "convoy: exec::Host needs oneDNN 2.6 or later"
#endif

namespace convoy::exec::host {

using Desc = dnnl::memory::desc;
using Dims = dnnl::memory::dims;
using Tag = dnnl::memory::format_tag;

/// The descriptors and the window of a convolution; `bias` may be empty.
struct ConvolutionShape {
  Desc src, weights, bias, dst;
  Dims strides, dilates, padding_low, padding_high;  // a dilate is the number of elements between two taps
  dnnl::algorithm algorithm = dnnl::algorithm::convolution_direct;
};

/// The descriptors of an inner product; `bias` may be empty.
struct InnerProductShape {
  Desc src, weights, bias, dst;
};

inline bool is_empty(const Desc& desc) { return desc == Desc(); }

inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

#if DNNL_VERSION_MAJOR >= 3

inline auto describe_forward(const dnnl::engine& engine, const ConvolutionShape& c) {
  return dnnl::convolution_forward::primitive_desc(engine, dnnl::prop_kind::forward_training, c.algorithm,
                                                   c.src, c.weights, c.bias, c.dst, c.strides, c.dilates,
                                                   c.padding_low, c.padding_high, user_scratchpad());
}
inline auto describe_backward_data(const dnnl::engine& engine, const ConvolutionShape& c,
                                   const dnnl::convolution_forward::primitive_desc& hint) {
  return dnnl::convolution_backward_data::primitive_desc(engine, c.algorithm, c.src, c.weights, c.dst,
                                                         c.strides, c.dilates, c.padding_low, c.padding_high,
                                                         hint, user_scratchpad());
}
inline auto describe_backward_weights(const dnnl::engine& engine, const ConvolutionShape& c,
                                      const dnnl::convolution_forward::primitive_desc& hint) {
  return dnnl::convolution_backward_weights::primitive_desc(engine, c.algorithm, c.src, c.weights, c.bias,
                                                            c.dst, c.strides, c.dilates, c.padding_low,
                                                            c.padding_high, hint, user_scratchpad());
}
inline auto describe_forward(const dnnl::engine& engine, const InnerProductShape& p) {
  return dnnl::inner_product_forward::primitive_desc(engine, dnnl::prop_kind::forward_training, p.src,
                                                     p.weights, p.bias, p.dst, user_scratchpad());
}
inline auto describe_backward_data(const dnnl::engine& engine, const InnerProductShape& p,
                                   const dnnl::inner_product_forward::primitive_desc& hint) {
  return dnnl::inner_product_backward_data::primitive_desc(engine, p.src, p.weights, p.dst, hint,
                                                           user_scratchpad());
}
inline auto describe_backward_weights(const dnnl::engine& engine, const InnerProductShape& p,
                                      const dnnl::inner_product_forward::primitive_desc& hint) {
  return dnnl::inner_product_backward_weights::primitive_desc(engine, p.src, p.weights, p.bias, p.dst, hint,
                                                              user_scratchpad());
}

/// A hash of the element order of a descriptor.
inline std::uint64_t order_hash(const Desc& desc) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  auto mix = [&](std::int64_t v) { hash = (hash ^ static_cast<std::uint64_t>(v)) * 0x100000001b3ull; };
  for (auto v : desc.get_strides()) mix(v);
  for (auto v : desc.get_inner_blks()) mix(v);
  for (auto v : desc.get_inner_idxs()) mix(v);
  return hash;
}

#else

inline auto describe_forward(const dnnl::engine& engine, const ConvolutionShape& c) {
  return dnnl::convolution_forward::primitive_desc(
      {dnnl::prop_kind::forward_training, c.algorithm, c.src, c.weights, c.bias, c.dst, c.strides, c.dilates,
       c.padding_low, c.padding_high},
      user_scratchpad(), engine);
}
inline auto describe_backward_data(const dnnl::engine& engine, const ConvolutionShape& c,
                                   const dnnl::convolution_forward::primitive_desc& hint) {
  return dnnl::convolution_backward_data::primitive_desc(
      {c.algorithm, c.src, c.weights, c.dst, c.strides, c.dilates, c.padding_low, c.padding_high},
      user_scratchpad(), engine, hint);
}
inline auto describe_backward_weights(const dnnl::engine& engine, const ConvolutionShape& c,
                                      const dnnl::convolution_forward::primitive_desc& hint) {
  return dnnl::convolution_backward_weights::primitive_desc(
      {c.algorithm, c.src, c.weights, c.bias, c.dst, c.strides, c.dilates, c.padding_low, c.padding_high},
      user_scratchpad(), engine, hint);
}
inline auto describe_forward(const dnnl::engine& engine, const InnerProductShape& p) {
  return dnnl::inner_product_forward::primitive_desc(
      {dnnl::prop_kind::forward_training, p.src, p.weights, p.bias, p.dst}, user_scratchpad(), engine);
}
inline auto describe_backward_data(const dnnl::engine& engine, const InnerProductShape& p,
                                   const dnnl::inner_product_forward::primitive_desc& hint) {
  return dnnl::inner_product_backward_data::primitive_desc({p.src, p.weights, p.dst}, user_scratchpad(),
                                                           engine, hint);
}
inline auto describe_backward_weights(const dnnl::engine& engine, const InnerProductShape& p,
                                      const dnnl::inner_product_forward::primitive_desc& hint) {
  return dnnl::inner_product_backward_weights::primitive_desc({p.src, p.weights, p.bias, p.dst},
                                                              user_scratchpad(), engine, hint);
}

inline std::uint64_t order_hash(const Desc& desc) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  auto mix = [&](std::int64_t v) { hash = (hash ^ static_cast<std::uint64_t>(v)) * 0x100000001b3ull; };
  const auto& blocking = desc.data.format_desc.blocking;
  for (int i = 0; i < desc.data.ndims; ++i) mix(blocking.strides[i]);
  for (int i = 0; i < blocking.inner_nblks; ++i) mix(blocking.inner_blks[i]), mix(blocking.inner_idxs[i]);
  return hash;
}

#endif

}  // namespace convoy::exec::host
