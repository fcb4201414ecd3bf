// cuDNN's backend interface without a device, for the operations that cudnn_graph.hpp computes.
//
// A descriptor is a set of attributes. Finalizing it checks the attributes that it needs and the shapes of
// its tensors. A heuristic returns two engine configurations: one that uses tensor cores, which round f32
// inputs, and one that does not. The fallback returns the second one and one that reports nondeterministic
// results.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cudnn.h>

#include "cudnn_graph.hpp"
#include "device_memory.hpp"
#include "enqueued.hpp"
#include "settings.hpp"
#include "stream.hpp"

struct cudnnContext {
  cudaStream_t stream = nullptr;
  int device = emulation::current_device;
};

namespace emulation::dnn {

inline thread_local std::string last_reason;

template <class F>
cudnnStatus_t call(F&& f) {
  try {
    f();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    last_reason = refusal.reason;
    return refusal.status;
  }
}

struct Content;
using Shared = std::shared_ptr<const Content>;

/// The value of an attribute: elements of a type, or copies of other descriptors from when they were set.
struct Value {
  cudnnBackendAttributeType_t type{};
  std::int64_t count = 0;
  std::vector<std::byte> bytes;
  std::vector<Shared> descriptors;
};
struct Content {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<int, Value> values;
  Graph plan;                    // used by an execution plan
  mutable bool has_run = false;  // whether the plan has run
};
struct Backend {
  std::shared_ptr<Content> content;
};

inline std::size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_FRACTION:
      return 8;
    default:
      return 4;
  }
}

/// The attributes of a kind of descriptor: name, type, and whether it is required.
struct Rule {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  bool needed;
};
inline const std::vector<Rule>& rules_of(cudnnBackendDescriptorType_t type) {
  constexpr auto i64 = CUDNN_TYPE_INT64;
  constexpr auto other = CUDNN_TYPE_BACKEND_DESCRIPTOR;
  constexpr auto number = CUDNN_TYPE_FLOAT;  // or double
  static const std::map<cudnnBackendDescriptorType_t, std::vector<Rule>> rules = {
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR,
       {{CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, true},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, i64, true},
        {CUDNN_ATTR_TENSOR_STRIDES, i64, true},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, i64, true},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, i64, true},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, false},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, false}}},
      {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR,
       {{CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, true},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, true},
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, i64, true},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, i64, true},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, i64, true},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, i64, true},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, i64, true}}},
      {CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
       {{CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, true},
        {CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, true},
        {CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, number, false},
        {CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, number, false},
        {CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, number, false},
        {CUDNN_ATTR_POINTWISE_AXIS, i64, false}}},
      {CUDNN_BACKEND_MATMUL_DESCRIPTOR,
       {{CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, true},
        {CUDNN_ATTR_MATMUL_PADDING_VALUE, number, false}}},
      {CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
       {{CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, true},
        {CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, true}}},
      {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, other, true},
        {CUDNN_ATTR_OPERATION_MATMUL_BDESC, other, true},
        {CUDNN_ATTR_OPERATION_MATMUL_CDESC, other, true},
        {CUDNN_ATTR_OPERATION_MATMUL_DESC, other, true},
        {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, other, false},
        {CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, other, false},
        {CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, other, false}}},
      {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC, other, true},
        {CUDNN_ATTR_OPERATION_REDUCTION_YDESC, other, true},
        {CUDNN_ATTR_OPERATION_REDUCTION_DESC, other, true}}},
      {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC, other, true},
        {CUDNN_ATTR_OPERATION_RESHAPE_YDESC, other, true}}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, number, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, number, true}}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, number, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, number, true}}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, other, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, number, true},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, number, true}}},
      {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, other, true},
        {CUDNN_ATTR_OPERATION_POINTWISE_XDESC, other, true},
        {CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other, false},
        {CUDNN_ATTR_OPERATION_POINTWISE_TDESC, other, false},
        {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, other, false},
        {CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, other, false},
        {CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, other, false},
        {CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, number, false},
        {CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, number, false}}},
      {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, true},
        {CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, true},
        {CUDNN_ATTR_OPERATION_GENSTATS_XDESC, other, true},
        {CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, other, true},
        {CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, other, true}}},
      {CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, other, true},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, other, true}}},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR,
       {{CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, false},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, other, true}}},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR,
       {{CUDNN_ATTR_ENGINE_OPERATION_GRAPH, other, true},
        {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, i64, true},
        {CUDNN_ATTR_ENGINE_DEVICEPROP, other, false}}},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
       {{CUDNN_ATTR_ENGINECFG_ENGINE, other, true}, {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, other, false}}},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR,
       {{CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, other, true},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, true},
        {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, other, false}}},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR,
       {{CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, false},
        {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, other, false},
        {CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, false},
        {CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, other, false}}},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
       {{CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, i64, true},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, true},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, false}}},
      {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR,
       {{CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, false},
        {CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, false},
        {CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, false}}},
  };
  static const std::vector<Rule> none;
  const auto found = rules.find(type);
  return found == rules.end() ? none : found->second;
}

inline const Value* find(const Content& c, cudnnBackendAttributeName_t name) {
  const auto found = c.values.find(name);
  return found == c.values.end() ? nullptr : &found->second;
}
template <class T>
std::vector<T> list(const Content& c, cudnnBackendAttributeName_t name) {
  const Value* value = find(c, name);
  if (value == nullptr) return {};
  std::vector<T> made(static_cast<std::size_t>(value->count));
  std::memcpy(made.data(), value->bytes.data(), value->bytes.size());
  return made;
}
template <class T>
T one(const Content& c, cudnnBackendAttributeName_t name, T otherwise = {}) {
  const Value* value = find(c, name);
  if (value == nullptr) return otherwise;
  T made{};
  if (value->bytes.size() < sizeof made) refuse(CUDNN_STATUS_BAD_PARAM, "an attribute has too few elements");
  std::memcpy(&made, value->bytes.data(), sizeof made);
  return made;
}
inline double real(const Content& c, cudnnBackendAttributeName_t name, double otherwise) {
  const Value* value = find(c, name);
  if (value == nullptr) return otherwise;
  return value->type == CUDNN_TYPE_DOUBLE ? one<double>(c, name) : static_cast<double>(one<float>(c, name));
}
inline const Content& inner(const Content& c, cudnnBackendAttributeName_t name) {
  const Value* value = find(c, name);
  if (value == nullptr || value->descriptors.empty())
    refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a descriptor lacks attribute " + std::to_string(name));
  return *value->descriptors.front();
}
inline Tensor tensor_of(const Content& c) {
  if (c.type != CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "an operation wants a tensor there");
  Tensor t;
  t.id = one<std::int64_t>(c, CUDNN_ATTR_TENSOR_UNIQUE_ID);
  t.type = one<cudnnDataType_t>(c, CUDNN_ATTR_TENSOR_DATA_TYPE);
  t.sizes = list<std::int64_t>(c, CUDNN_ATTR_TENSOR_DIMENSIONS);
  t.strides = list<std::int64_t>(c, CUDNN_ATTR_TENSOR_STRIDES);
  t.alignment = one<std::int64_t>(c, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  t.is_virtual = one<bool>(c, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false);
  t.by_value = one<bool>(c, CUDNN_ATTR_TENSOR_IS_BY_VALUE, false);
  return t;
}

inline Operation convolution_of(const Content& c, Kind kind, cudnnBackendAttributeName_t x,
                                cudnnBackendAttributeName_t w, cudnnBackendAttributeName_t y,
                                cudnnBackendAttributeName_t desc, cudnnBackendAttributeName_t alpha,
                                cudnnBackendAttributeName_t beta) {
  Operation o;
  o.kind = kind;
  o.x = tensor_of(inner(c, x));
  o.w = tensor_of(inner(c, w));
  o.y = tensor_of(inner(c, y));
  const Content& convolution = inner(c, desc);
  o.pre = list<std::int64_t>(convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
  o.post = list<std::int64_t>(convolution, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  o.strides = list<std::int64_t>(convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  o.dilations = list<std::int64_t>(convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS);
  if (one<cudnnConvolutionMode_t>(convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION)
    refuse(CUDNN_STATUS_NOT_SUPPORTED, "the emulation has no convolutions with a mirrored filter");
  if (one<cudnnDataType_t>(convolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT)
    refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "the emulation sums in f32 only");
  o.alpha = real(c, alpha, 1);
  o.beta = real(c, beta, 0);
  return o;
}

inline Operation statistics_of(const Content& c) {
  Operation o;
  o.kind = Kind::statistics;
  o.x = tensor_of(inner(c, CUDNN_ATTR_OPERATION_GENSTATS_XDESC));
  o.y = tensor_of(inner(c, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC));
  o.w = tensor_of(inner(c, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC));
  return o;
}

inline Operation batch_norm_weights_of(const Content& c) {
  Operation o;
  o.kind = Kind::batch_norm_weights;
  o.x = tensor_of(inner(c, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC));
  o.w = tensor_of(inner(c, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC));
  for (const auto name :
       {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS})
    o.of_channels.push_back(tensor_of(inner(c, name)));
  return o;
}

inline Operation product_of(const Content& c) {
  Operation o;
  o.kind = Kind::product;
  o.x = tensor_of(inner(c, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
  o.w = tensor_of(inner(c, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
  o.y = tensor_of(inner(c, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
  for (const auto name :
       {CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC,
        CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC})
    o.counts.push_back(find(c, name) != nullptr ? tensor_of(inner(c, name)) : Tensor());
  return o;
}

inline Operation reduction_of(const Content& c) {
  Operation o;
  o.kind = Kind::reduction;
  o.x = tensor_of(inner(c, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
  o.y = tensor_of(inner(c, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
  o.reduces_by = one<cudnnReduceTensorOp_t>(inner(c, CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                                            CUDNN_ATTR_REDUCTION_OPERATOR);
  if (o.reduces_by != CUDNN_REDUCE_TENSOR_ADD && o.reduces_by != CUDNN_REDUCE_TENSOR_MAX)
    refuse(CUDNN_STATUS_NOT_SUPPORTED, "the emulation has no such reduction");
  return o;
}

inline Operation reshape_of(const Content& c) {
  Operation o;
  o.kind = Kind::reshape;
  o.x = tensor_of(inner(c, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
  o.y = tensor_of(inner(c, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
  return o;
}

inline Operation operation_of(const Content& c) {
  switch (c.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return convolution_of(
          c, Kind::forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return convolution_of(
          c, Kind::data, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return convolution_of(c, Kind::filter, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
    case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR:
      return statistics_of(c);
    case CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR:
      return batch_norm_weights_of(c);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return product_of(c);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return reduction_of(c);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      return reshape_of(c);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      break;
    default:
      refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the emulation has no such operation");
  }
  Operation o;
  o.kind = Kind::pointwise;
  const Content& how = inner(c, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  o.mode = one<cudnnPointwiseMode_t>(how, CUDNN_ATTR_POINTWISE_MODE);
  o.alpha = real(c, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, 1);
  o.beta = real(c, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, 1);
  o.lower = real(how, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, o.lower);
  o.upper = real(how, CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, o.upper);
  o.slope = real(how, CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, o.slope);
  switch (o.mode) {
    case CUDNN_POINTWISE_IDENTITY:
    case CUDNN_POINTWISE_RELU_FWD:
    case CUDNN_POINTWISE_EXP:
    case CUDNN_POINTWISE_LOG:
      break;
    case CUDNN_POINTWISE_GEN_INDEX:
      o.axis = one<std::int64_t>(how, CUDNN_ATTR_POINTWISE_AXIS, -1);
      if (o.axis < 0 || o.axis > 3) refuse(CUDNN_STATUS_BAD_PARAM, "an index has no axis");
      break;
    case CUDNN_POINTWISE_BINARY_SELECT:
      o.counts.push_back(tensor_of(inner(c, CUDNN_ATTR_OPERATION_POINTWISE_TDESC)));
      [[fallthrough]];
    case CUDNN_POINTWISE_ADD:
    case CUDNN_POINTWISE_SUB:
    case CUDNN_POINTWISE_MUL:
    case CUDNN_POINTWISE_DIV:
    case CUDNN_POINTWISE_CMP_GT:
    case CUDNN_POINTWISE_CMP_GE:
    case CUDNN_POINTWISE_CMP_LT:
    case CUDNN_POINTWISE_LOGICAL_AND:
      o.two_inputs = true;
      o.w = tensor_of(inner(c, CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
      break;
    case CUDNN_POINTWISE_RELU_BWD:
      o.two_inputs = true;
      o.x = tensor_of(inner(c, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC));
      o.w = tensor_of(inner(c, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
      o.y = tensor_of(inner(c, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC));
      return o;
    default:
      refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the emulation has no such pointwise operation");
  }
  o.x = tensor_of(inner(c, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
  o.y = tensor_of(inner(c, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  return o;
}

/// The operations of a graph descriptor in topological order.
inline Graph graph_of(const Content& c) {
  std::vector<Operation> left;
  for (const Shared& operation : find(c, CUDNN_ATTR_OPERATIONGRAPH_OPS)->descriptors)
    left.push_back(operation_of(*operation));
  Graph graph;
  while (!left.empty()) {
    const auto ready = std::find_if(left.begin(), left.end(), [&](const Operation& o) {
      const auto inputs = o.inputs();
      return std::none_of(inputs.begin(), inputs.end(), [&](const Tensor* t) {
        return std::any_of(left.begin(), left.end(), [&](const Operation& maker) {
          const auto outputs = maker.outputs();
          return &maker != &o && std::any_of(outputs.begin(), outputs.end(),
                                             [&](const Tensor* made) { return made->id == t->id; });
        });
      });
    });
    if (ready == left.end()) refuse(CUDNN_STATUS_BAD_PARAM, "a graph's operations wait for one another");
    graph.operations.push_back(*ready);
    left.erase(ready);
  }
  std::map<std::int64_t, bool> made;
  for (const Operation& o : graph.operations) {
    for (const Tensor* t : o.inputs())
      if (t->is_virtual && !made[t->id])
        refuse(CUDNN_STATUS_BAD_PARAM, "no operation makes virtual tensor " + std::to_string(t->id));
    for (const Tensor* t : o.outputs()) made[t->id] = true;
  }
  return graph;
}

/// How often the usual heuristic lists each engine, as it does with several settings of an engine's knobs;
/// and whether engines compile kernels when a plan is built.
inline int configurations_of_an_engine = 1;
inline bool compiles = false;

inline std::vector<std::int64_t> results_of(const Content& heuristic) {
  const auto mode = one<cudnnBackendHeurMode_t>(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE);
  if (mode == CUDNN_HEUR_MODE_FALLBACK) return {1, 2};
  std::vector<std::int64_t> all;
  for (int i = 0; i < configurations_of_an_engine; ++i) all.insert(all.end(), {0, 1, 3});
  return all;
}
inline std::vector<cudnnBackendNumericalNote_t> notes_of(std::int64_t engine) {
  if (engine == 0) return {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  if (engine == 2) return {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
  if (engine == 3)
    return {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  return {};
}

/// A finalized descriptor of engine number `index` for a graph.
inline std::shared_ptr<Content> engine_of(const Shared& graph, std::int64_t index) {
  auto engine = std::make_shared<Content>();
  engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
  engine->finalized = true;
  engine->values[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {graph}};
  Value number{CUDNN_TYPE_INT64, 1, std::vector<std::byte>(sizeof index), {}};
  std::memcpy(number.bytes.data(), &index, sizeof index);
  engine->values[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = number;
  return engine;
}
inline std::shared_ptr<Content> configuration_of(const Shared& graph, std::int64_t index) {
  auto configuration = std::make_shared<Content>();
  configuration->type = CUDNN_BACKEND_ENGINECFG_DESCRIPTOR;
  configuration->finalized = true;
  configuration->values[CUDNN_ATTR_ENGINECFG_ENGINE] = {
      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {engine_of(graph, index)}};
  return configuration;
}

inline void finalize(Content& c) {
  for (const Rule& rule : rules_of(c.type))
    if (rule.needed && find(c, rule.name) == nullptr)
      refuse(CUDNN_STATUS_BAD_PARAM, "a descriptor of type " + std::to_string(c.type) + " lacks attribute " +
                                         std::to_string(rule.name));
  const auto count = [&](cudnnBackendAttributeName_t name) { return find(c, name)->count; };
  switch (c.type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR: {
      const Tensor t = tensor_of(c);
      if (t.sizes.size() != t.strides.size() || t.sizes.empty() ||
          std::any_of(t.sizes.begin(), t.sizes.end(), [](std::int64_t s) { return s < 1; }))
        refuse(CUDNN_STATUS_BAD_PARAM, "a tensor's sizes or strides are wrong");
      break;
    }
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: {
      const auto spatial = one<std::int64_t>(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
      for (const auto name : {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS,
                              CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES})
        if (count(name) != spatial) refuse(CUDNN_STATUS_BAD_PARAM, "a convolution's dimensions disagree");
      break;
    }
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      operation_of(c);
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      graph_of(c);
      break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      if (static_cast<std::uint64_t>(one<std::int64_t>(c, CUDNN_ATTR_ENGINE_GLOBAL_INDEX)) >= Graph::engines)
        refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "there is no such engine");
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
      const Content& graph = inner(c, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      if (find(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE) == nullptr &&
          find(c, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP) == nullptr)
        refuse(CUDNN_STATUS_BAD_PARAM, "a heuristic has neither a handle nor a device's properties");
      for (const Operation& o : graph_of(graph).operations) o.check();
      break;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      if (find(c, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) == nullptr &&
          find(c, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP) == nullptr)
        refuse(CUDNN_STATUS_BAD_PARAM, "a plan has neither a handle nor a device's properties");
      if (find(c, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) != nullptr) {
        const Content& engine =
            inner(inner(c, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG), CUDNN_ATTR_ENGINECFG_ENGINE);
        c.plan = graph_of(inner(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
        c.plan.engine = one<std::int64_t>(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
      } else {
        const auto text = list<char>(c, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
        c.plan = graph_of(std::string(text.begin(), text.end()));
      }
      for (const Operation& o : c.plan.operations) o.check();
      if (!c.plan.has_engine())
        refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "no engine computes a graph");
      break;
    }
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
      if (count(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) != count(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS))
        refuse(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "a variant pack has not one pointer for each id");
      break;
    default:
      break;
  }
  c.finalized = true;
}

inline Content& content_of(cudnnBackendDescriptor_t handle) {
  if (handle == nullptr) refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "a descriptor is null");
  return *static_cast<Backend*>(handle)->content;
}

inline void expect_device_of(cudnnHandle_t handle) {
  if (handle->device != current_device)
    refuse(CUDNN_STATUS_BAD_PARAM, "the current device is not that of the handle");
}

inline void set(Content& c, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                std::int64_t count, const void* from) {
  if (c.finalized) refuse(CUDNN_STATUS_BAD_PARAM, "a finalized descriptor is changed");
  if (count < 1 || from == nullptr) refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "an attribute has no value");
  const auto& rules = rules_of(c.type);
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const Rule& r) { return r.name == name; });
  if (rule == rules.end())
    refuse(CUDNN_STATUS_NOT_SUPPORTED, "the emulation knows no attribute " + std::to_string(name) +
                                           " of a descriptor of type " + std::to_string(c.type));
  if (rule->type != type && !(rule->type == CUDNN_TYPE_FLOAT && type == CUDNN_TYPE_DOUBLE))
    refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "attribute " + std::to_string(name) + " has another type");
  if (type == CUDNN_TYPE_HANDLE) expect_device_of(*static_cast<const cudnnHandle_t*>(from));
  Value value{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (std::int64_t k = 0; k < count; ++k) {
      const auto handle = static_cast<const cudnnBackendDescriptor_t*>(from)[k];
      if (!content_of(handle).finalized)
        refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor within another is not finalized");
      value.descriptors.push_back(static_cast<Backend*>(handle)->content);
    }
  } else {
    const auto* first = static_cast<const std::byte*>(from);
    value.bytes.assign(first, first + static_cast<std::size_t>(count) * bytes_of(type));
  }
  c.values[name] = std::move(value);
}

template <class T>
void give(const std::vector<T>& values, std::int64_t wanted, std::int64_t* count, void* to) {
  if (count != nullptr) *count = static_cast<std::int64_t>(values.size());
  if (to != nullptr && wanted > 0 && !values.empty())
    std::memcpy(to, values.data(), sizeof(T) * std::min(values.size(), static_cast<std::size_t>(wanted)));
}
// Copies contents into descriptors that the caller has made.
inline void give_descriptors(const std::vector<std::shared_ptr<Content>>& contents, std::int64_t wanted,
                             std::int64_t* count, void* to) {
  if (count != nullptr) {
    *count = static_cast<std::int64_t>(contents.size());
    if (to != nullptr) *count = std::min(*count, wanted);
  }
  for (std::size_t k = 0; to != nullptr && k < std::min(contents.size(), static_cast<std::size_t>(wanted));
       ++k) {
    const auto handle = static_cast<const cudnnBackendDescriptor_t*>(to)[k];
    if (content_of(handle).type != contents[k]->type)
      refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "a result is asked for in a descriptor of another type");
    static_cast<Backend*>(handle)->content = contents[k];
  }
}

inline void get(const Content& c, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                std::int64_t wanted, std::int64_t* count, void* to) {
  if (!c.finalized)
    refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor is asked before it is finalized");
  const auto wants = [&](cudnnBackendAttributeType_t right) {
    if (type != right)
      refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
             "attribute " + std::to_string(name) + " has another type");
  };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      wants(CUDNN_TYPE_BACKEND_DESCRIPTOR);
      std::vector<std::shared_ptr<Content>> made;
      const Shared graph = find(c, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH)->descriptors.front();
      if (graph_of(*graph).has_engine())
        for (const std::int64_t index : results_of(c)) made.push_back(configuration_of(graph, index));
      return give_descriptors(made, wanted, count, to);
    }
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
      wants(CUDNN_TYPE_NUMERICAL_NOTE);
      return give(notes_of(one<std::int64_t>(c, CUDNN_ATTR_ENGINE_GLOBAL_INDEX)), wanted, count, to);
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
      wants(CUDNN_TYPE_BEHAVIOR_NOTE);
      return give(
          std::vector<cudnnBackendBehaviorNote_t>(compiles ? 1 : 0, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION),
          wanted, count, to);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
      wants(CUDNN_TYPE_INT64);
      return give(std::vector<std::int64_t>{Graph::engines}, wanted, count, to);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      wants(CUDNN_TYPE_INT64);
      return give(std::vector<std::int64_t>{static_cast<std::int64_t>(c.plan.workspace())}, wanted, count,
                  to);
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: {
      wants(CUDNN_TYPE_CHAR);
      const std::string text = text_of(c.plan);
      return give(std::vector<char>(text.begin(), text.end()), wanted, count, to);
    }
    default:
      break;
  }
  const Value* value = find(c, name);
  if (value == nullptr) refuse(CUDNN_STATUS_BAD_PARAM, "attribute " + std::to_string(name) + " is not there");
  wants(value->type);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    std::vector<std::shared_ptr<Content>> made;
    for (const Shared& content : value->descriptors)
      made.push_back(std::const_pointer_cast<Content>(content));
    return give_descriptors(made, wanted, count, to);
  }
  if (count != nullptr) *count = value->count;
  if (to != nullptr)
    std::memcpy(to, value->bytes.data(),
                std::min(value->bytes.size(), static_cast<std::size_t>(wanted) * bytes_of(type)));
}

/// Engines whose plans can be finalized but fail when they run.
inline std::vector<std::int64_t> engines_that_fail;

inline void execute(cudnnHandle_t handle, const Content& plan, const Content& pack) {
  if (!plan.finalized || !pack.finalized)
    refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a plan or its arguments are not finalized");
  expect_device_of(handle);
  if (std::find(engines_that_fail.begin(), engines_that_fail.end(), plan.plan.engine) !=
      engines_that_fail.end())
    refuse(CUDNN_STATUS_EXECUTION_FAILED, "a kernel of the engine could not be started");
  const auto ids = list<std::int64_t>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto given = list<void*>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<std::int64_t, void*> pointers;
  for (std::size_t k = 0; k < ids.size(); ++k) pointers[ids[k]] = given[k];
  std::map<std::int64_t, float> by_value;
  auto& memory = DeviceMemory::of_process();
  for (const Operation& o : plan.plan.operations) {
    auto tensors = o.inputs();
    for (const Tensor* t : o.outputs()) tensors.push_back(t);
    for (const Tensor* t : tensors) {
      if (t->is_virtual) continue;
      const auto found = pointers.find(t->id);
      const std::string name = "tensor " + std::to_string(t->id);
      if (found == pointers.end() || found->second == nullptr)
        refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "there is no pointer for " + name);
      if (t->by_value) {
        by_value[t->id] = element(t->element(), found->second, 0);
        continue;
      }
      if (reinterpret_cast<std::uintptr_t>(found->second) % static_cast<std::uintptr_t>(t->alignment) != 0)
        refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, name + " is not aligned as it was said to be");
      if (!memory.holds(found->second, t->bytes()))
        refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND,
               name + " does not lie within an allocation of the device");
    }
  }
  for (const std::int64_t id : ids)
    if (std::none_of(plan.plan.operations.begin(), plan.plan.operations.end(), [&](const Operation& o) {
          auto tensors = o.inputs();
          for (const Tensor* t : o.outputs()) tensors.push_back(t);
          return std::any_of(tensors.begin(), tensors.end(),
                             [&](const Tensor* t) { return t->id == id && !t->is_virtual; });
        }))
      refuse(CUDNN_STATUS_BAD_PARAM, "no tensor wants pointer " + std::to_string(id));
  void* workspace = one<void*>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (!memory.holds(workspace, plan.plan.workspace()))
    refuse(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
           "the workspace does not lie within an allocation of the device");
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0)
    refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
           "the workspace is not aligned as cudaMalloc aligns memory");
  if (!plan.has_run && is_capturing(handle->stream)) {
    cannot_be_captured(handle->stream);
    refuse(CUDNN_STATUS_EXECUTION_FAILED, "the first run of a plan loads its kernels, and is not captured");
  }
  plan.has_run = true;
  if (plan.plan.has(Kind::product)) Enqueued::note("attention");
  const cudaError_t status =
      run_on(handle->stream, [graph = plan.plan, pointers, by_value, workspace]() mutable {
        for (auto& [id, value] : by_value) pointers[id] = &value;
        std::memset(workspace, 0xff, graph.workspace());
        Execution(graph, pointers).run();
      });
  if (status != cudaSuccess) refuse(CUDNN_STATUS_EXECUTION_FAILED, "the stream takes no more work");
}

}  // namespace emulation::dnn

#ifndef EMULATION_STAGES
extern "C" {

std::size_t cudnnGetVersion() { return CUDNN_VERSION; }
std::size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return status >= CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_BAD_PARAM";
  }
}
void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  std::snprintf(message, bytes, "%s", emulation::dnn::last_reason.c_str());
  emulation::dnn::last_reason.clear();
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* made) {
  return emulation::dnn::call([&] {
    if (emulation::settings.devices == 0)
      emulation::dnn::refuse(CUDNN_STATUS_NOT_INITIALIZED, "there is no device");
    *made = new cudnnContext;
  });
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  using namespace emulation::dnn;
  return call([&] {
    if (rules_of(type).empty()) refuse(CUDNN_STATUS_NOT_SUPPORTED, "the emulation has no such descriptor");
    auto content = std::make_shared<Content>();
    content->type = type;
    *made = new Backend{std::move(content)};
  });
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<emulation::dnn::Backend*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* from) {
  using namespace emulation::dnn;
  return call([&] { set(content_of(descriptor), name, type, count, from); });
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       std::int64_t wanted, std::int64_t* count, void* to) {
  using namespace emulation::dnn;
  return call([&] { get(content_of(descriptor), name, type, wanted, count, to); });
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  using namespace emulation::dnn;
  return call([&] { finalize(content_of(descriptor)); });
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  using namespace emulation::dnn;
  return call([&] { execute(handle, content_of(plan), content_of(pack)); });
}

}  // extern "C"
#endif
