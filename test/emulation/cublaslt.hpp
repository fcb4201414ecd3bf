// cuBLASLt without a device: matrix products in plain loops with f32 sums. The heuristic returns three
// algorithms. The first one wants a workspace, which it overwrites with NaN. The last one accumulates partial
// sums in the result, in an order that varies from run to run, unless the caller excludes such algorithms.
// Types, orders and epilogues that cuBLASLt does not support are refused here too. Of those that it supports,
// f64, integers, FP8, the bit mask of ReLU and planar matrices are not implemented.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <cublasLt.h>

#include "device_memory.hpp"
#include "elements.hpp"
#include "enqueued.hpp"
#include "settings.hpp"
#include "stream.hpp"

namespace emulation {

/// The contents of the opaque descriptors.
struct MatmulDesc {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  cublasLtPointerMode_t pointers = CUBLASLT_POINTER_MODE_HOST;
  cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N, c = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void *bias = nullptr, *aux = nullptr;
  std::int64_t aux_stride = 0;
  std::int32_t bias_type = -1, aux_type = -1;  // -1: the type of D
};
struct MatrixLayout {
  cudaDataType_t type;
  std::uint64_t rows, columns;
  std::int64_t stride;
  std::int32_t order = CUBLASLT_ORDER_COL, batches = 1;
  std::int64_t batch_stride = 0;
};
struct MatmulPreference {
  std::uint64_t workspace = 0;
  std::uint32_t search = 0, alignment[4] = {256, 256, 256, 256};
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};

inline MatmulDesc& contents(cublasLtMatmulDesc_t d) { return *reinterpret_cast<MatmulDesc*>(d); }
inline MatrixLayout& contents(cublasLtMatrixLayout_t d) { return *reinterpret_cast<MatrixLayout*>(d); }
inline MatmulPreference& contents(cublasLtMatmulPreference_t d) {
  return *reinterpret_cast<MatmulPreference*>(d);
}

/// The address of an attribute and its size in bytes; {nullptr, 0} for attributes that are not implemented.
using Attribute = std::pair<void*, std::size_t>;
template <class T>
Attribute attribute_of(T& place) {
  return {&place, sizeof place};
}
inline Attribute attribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t name) {
  MatmulDesc& d = contents(handle);
  switch (name) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
      return attribute_of(d.compute);
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE:
      return attribute_of(d.scale);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
      return attribute_of(d.pointers);
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return attribute_of(d.a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return attribute_of(d.b);
    case CUBLASLT_MATMUL_DESC_TRANSC:
      return attribute_of(d.c);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return attribute_of(d.epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return attribute_of(d.bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return attribute_of(d.bias_type);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return attribute_of(d.aux);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return attribute_of(d.aux_stride);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      return attribute_of(d.aux_type);
    default:
      return {};
  }
}
inline Attribute attribute(cublasLtMatrixLayout_t handle, cublasLtMatrixLayoutAttribute_t name) {
  MatrixLayout& d = contents(handle);
  switch (name) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return attribute_of(d.type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return attribute_of(d.order);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return attribute_of(d.rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return attribute_of(d.columns);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return attribute_of(d.stride);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return attribute_of(d.batches);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return attribute_of(d.batch_stride);
    default:
      return {};
  }
}
inline Attribute attribute(cublasLtMatmulPreference_t handle, cublasLtMatmulPreferenceAttributes_t name) {
  MatmulPreference& d = contents(handle);
  switch (name) {
    case CUBLASLT_MATMUL_PREF_SEARCH_MODE:
      return attribute_of(d.search);
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return attribute_of(d.workspace);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return attribute_of(d.reductions);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return attribute_of(d.alignment[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return attribute_of(d.alignment[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return attribute_of(d.alignment[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return attribute_of(d.alignment[3]);
    default:
      return {};
  }
}
template <class D, class A>
cublasStatus_t set_attribute(D handle, A name, const void* from, std::size_t bytes) {
  const auto [place, size] = attribute(handle, name);
  if (place == nullptr || from == nullptr || bytes != size) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(place, from, size);
  return CUBLAS_STATUS_SUCCESS;
}
template <class D, class A>
cublasStatus_t get_attribute(D handle, A name, void* to, std::size_t bytes, std::size_t* written) {
  const auto [place, size] = attribute(handle, name);
  if (written != nullptr) *written = size;
  if (place == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (bytes == 0) return written != nullptr ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  if (to == nullptr || bytes != size) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(to, place, size);
  return CUBLAS_STATUS_SUCCESS;
}

/// One matrix product with all its parameters, by value.
struct Matmul {
  MatmulDesc desc;
  MatrixLayout a, b, c, d;

  static std::optional<DType> type_of(std::int32_t type) {
    switch (type) {
      case CUDA_R_32F:
        return DType::f32;
      case CUDA_R_16BF:
        return DType::bf16;
      case CUDA_R_16F:
        return DType::f16;
      default:
        return std::nullopt;
    }
  }
  bool has(int bits) const { return (static_cast<int>(desc.epilogue) & bits) == bits; }
  std::int32_t type_of_bias() const { return desc.bias_type < 0 ? d.type : desc.bias_type; }
  std::uint64_t m() const { return d.rows; }
  std::uint64_t n() const { return d.columns; }
  std::uint64_t k() const { return desc.a == CUBLAS_OP_N ? a.columns : a.rows; }

  cublasStatus_t supported() const {
    switch (static_cast<int>(desc.epilogue)) {
      case CUBLASLT_EPILOGUE_DEFAULT:
      case CUBLASLT_EPILOGUE_RELU:
      case CUBLASLT_EPILOGUE_BIAS:
      case CUBLASLT_EPILOGUE_RELU_BIAS:
      case CUBLASLT_EPILOGUE_GELU:
      case CUBLASLT_EPILOGUE_GELU_BIAS:
      case CUBLASLT_EPILOGUE_GELU_AUX:
      case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
      case CUBLASLT_EPILOGUE_DGELU:
      case CUBLASLT_EPILOGUE_DGELU_BGRAD:
      case CUBLASLT_EPILOGUE_BGRADA:
      case CUBLASLT_EPILOGUE_BGRADB:
        break;
      default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (desc.scale != CUDA_R_32F || desc.c != CUBLAS_OP_N ||
        (desc.compute != CUBLAS_COMPUTE_32F && desc.compute != CUBLAS_COMPUTE_32F_FAST_TF32))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const MatrixLayout* layout : {&a, &b, &c, &d}) {
      if (!type_of(layout->type) || layout->order != CUBLASLT_ORDER_COL) return CUBLAS_STATUS_NOT_SUPPORTED;
      if (layout->stride < static_cast<std::int64_t>(layout->rows) || layout->batches != d.batches)
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (a.type != b.type || c.type != d.type || (d.type != a.type && d.type != CUDA_R_32F) ||
        type_of_bias() != d.type || (desc.aux_type >= 0 && desc.aux_type != d.type))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    const auto rows_of = [](const MatrixLayout& l, cublasOperation_t op) {
      return op == CUBLAS_OP_N ? std::pair(l.rows, l.columns) : std::pair(l.columns, l.rows);
    };
    if (rows_of(a, desc.a) != std::pair(m(), k()) || rows_of(b, desc.b) != std::pair(k(), n()) ||
        c.rows != m() || c.columns != n())
      return CUBLAS_STATUS_INVALID_VALUE;
    if (has(128) && (desc.aux_stride < static_cast<std::int64_t>(m()) || desc.aux_stride % 8 != 0))
      return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
  }

  static std::size_t bytes_of(const MatrixLayout& l) {
    if (l.rows == 0 || l.columns == 0) return 0;
    const auto last = static_cast<std::size_t>(l.batches - 1) * static_cast<std::size_t>(l.batch_stride) +
                      (l.columns - 1) * static_cast<std::size_t>(l.stride) + l.rows;
    return last * size_of(*type_of(l.type));
  }

  // A factor as rows of k numbers, one for each row of op(A) or column of op(B).
  std::vector<float> factor(const MatrixLayout& l, bool along_columns, const void* from, int batch) const {
    const DType type = *type_of(l.type);
    const std::int64_t length = static_cast<std::int64_t>(k());
    const std::int64_t count = static_cast<std::int64_t>(along_columns ? l.rows : l.columns);
    const bool tf32 = type == DType::f32 && desc.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    std::vector<float> made(static_cast<std::size_t>(count * length));
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t p = 0; p < length; ++p) {
        const float x = element(
            type, from, batch * l.batch_stride + (along_columns ? p * l.stride + i : i * l.stride + p));
        made[static_cast<std::size_t>(i * length + p)] = tf32 ? as_tf32(x) : x;
      }
    return made;
  }

  // Rows of k numbers in interleaved groups of eight: the first number of each of the eight, then the second,
  // ...
  static std::vector<float> grouped(const std::vector<float>& rows, std::int64_t count, std::int64_t length) {
    std::vector<float> made(static_cast<std::size_t>((count + 7) / 8 * 8 * length), 0.0f);
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t p = 0; p < length; ++p)
        made[static_cast<std::size_t>((i / 8 * length + p) * 8 + i % 8)] =
            rows[static_cast<std::size_t>(i * length + p)];
    return made;
  }
  // The dot products of a group of eight rows with one row, each summed in order. Most of a product's time is
  // spent here, on copies that the emulation made; so sanitizers are off.
#if defined(__clang__)
  [[clang::no_sanitize("address", "undefined")]]
#endif
  static void
  dots(const float* group, const float* y, std::int64_t length, bool backward, float (&products)[8]) {
    using Eight [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;
    Eight sums = {};
    for (std::int64_t p = 0; p < length; ++p) {
      const std::int64_t q = backward ? length - 1 - p : p;
      sums += *reinterpret_cast<const Eight*>(group + q * 8) * y[q];
    }
    *reinterpret_cast<Eight*>(products) = sums;
  }

  static float gelu(float x) {
    return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
  }
  static float gelu_slope(float x) {
    const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
  }

  void run(const void* alpha_at, const void* from_a, const void* from_b, const void* beta_at,
           const void* from_c, void* to, bool backward, std::int64_t left_out = 0) const {
    const float alpha = *static_cast<const float*>(alpha_at), beta = *static_cast<const float*>(beta_at);
    const DType type = *type_of(d.type);
    const auto rows = static_cast<std::int64_t>(m()), columns = static_cast<std::int64_t>(n()),
               length = static_cast<std::int64_t>(k());
    for (int batch = 0; batch < d.batches; ++batch) {
      const auto left = factor(a, desc.a == CUBLAS_OP_N, from_a, batch);
      const auto right = factor(b, desc.b != CUBLAS_OP_N, from_b, batch);
      std::vector<float> sums(static_cast<std::size_t>(rows), 0.0f);
      const auto groups = grouped(left, rows, length);
      float products[8];
      for (std::int64_t j = 0; j < columns; ++j)
        for (std::int64_t i = 0; i < rows; ++i) {
          if (i % 8 == 0)
            dots(groups.data() + i * length, right.data() + j * length, length - left_out, backward,
                 products);
          float value = alpha * products[i % 8];
          if (beta != 0) value += beta * element(type, from_c, batch * c.batch_stride + j * c.stride + i);
          if (has(CUBLASLT_EPILOGUE_BIAS)) value += element(type, desc.bias, i);
          if (has(CUBLASLT_EPILOGUE_GELU)) {
            if (has(128)) set_element(type, desc.aux, j * desc.aux_stride + i, value);
            value = gelu(value);
          }
          if (has(CUBLASLT_EPILOGUE_RELU)) value = value > 0 ? value : 0;
          if (has(CUBLASLT_EPILOGUE_DGELU)) {
            value *= gelu_slope(element(type, desc.aux, j * desc.aux_stride + i));
            sums[static_cast<std::size_t>(i)] += value;
          }
          set_element(type, to, batch * d.batch_stride + j * d.stride + i, value);
        }
      const auto put_sums = [&](const std::vector<float>& values, std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i) {
          float sum = 0;
          for (std::int64_t p = 0; p < length; ++p) sum += values[static_cast<std::size_t>(i * length + p)];
          set_element(type, desc.bias, i, sum);
        }
      };
      if (has(CUBLASLT_EPILOGUE_DGELU_BGRAD))
        for (std::int64_t i = 0; i < rows; ++i)
          set_element(type, desc.bias, i, sums[static_cast<std::size_t>(i)]);
      if (desc.epilogue == CUBLASLT_EPILOGUE_BGRADA) put_sums(left, rows);
      if (desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) put_sums(right, columns);
    }
  }
};

/// Epilogues for which the heuristic finds no algorithm.
inline std::vector<cublasLtEpilogue_t> missing_epilogues;
/// Algorithms that are offered but fail when they run.
inline std::vector<std::uint64_t> algorithms_that_fail;
/// Whether no algorithm multiplies several pairs of matrices at once.
inline bool one_pair_at_a_time = false;
/// Algorithms whose products are sums over the first k - k % 4 terms only, as with some split-K kernels
/// of cuBLASLt 12 and 13.
inline std::vector<std::uint64_t> algorithms_that_drop;

/// The version that the library reports.
inline std::size_t library_version = CUBLAS_VERSION;

/// The workspace of the first algorithm in bytes; the others have none.
inline constexpr std::size_t matmul_workspace = 4096;
inline constexpr std::uint64_t matmul_mark = 0x656d756c61746564, matmul_algorithms = 3, matmul_in_place = 2;
/// How often the algorithm with a varying summation order has run.
inline std::atomic<unsigned> runs_in_place = 0;

/// Whether `algorithm` can compute a product, and the workspace that it needs.
inline cublasStatus_t describe(const Matmul& matmul, std::uint64_t algorithm,
                               cublasLtMatmulHeuristicResult_t& result) {
  if (const cublasStatus_t refused = matmul.supported()) return refused;
  if (algorithm >= matmul_algorithms ||
      std::count(missing_epilogues.begin(), missing_epilogues.end(), matmul.desc.epilogue) > 0)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  result.workspaceSize = algorithm == 0 ? matmul_workspace : 0;
  result.state = CUBLAS_STATUS_SUCCESS;
  result.wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

/// Whether a handle was made on the device on which it is used.
inline bool is_of_current_device(cublasLtHandle_t handle) {
  return handle != nullptr && *reinterpret_cast<const int*>(handle) == current_device;
}

}  // namespace emulation

#ifndef EMULATION_STAGES
extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) {
  if (emulation::settings.devices == 0) return CUBLAS_STATUS_NOT_INITIALIZED;
  *made = reinterpret_cast<cublasLtHandle_t>(new int(emulation::current_device));
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
  }
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "the GPU program failed to execute";
  }
}
std::size_t cublasLtGetVersion() { return emulation::library_version; }
std::size_t cublasLtGetCudartVersion() { return CUDART_VERSION; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new emulation::MatmulDesc{compute, scale});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete &emulation::contents(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              const void* from, std::size_t bytes) {
  return emulation::set_attribute(desc, name, from, bytes);
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name,
                                              void* to, std::size_t bytes, std::size_t* written) {
  return emulation::get_attribute(desc, name, to, bytes, written);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t stride) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new emulation::MatrixLayout{type, rows, columns, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete &emulation::contents(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name, const void* from,
                                                std::size_t bytes) {
  return emulation::set_attribute(layout, name, from, bytes);
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t name, void* to,
                                                std::size_t bytes, std::size_t* written) {
  return emulation::get_attribute(layout, name, to, bytes, written);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new emulation::MatmulPreference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete &emulation::contents(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* from, std::size_t bytes) {
  return emulation::set_attribute(preference, name, from, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  using emulation::contents;
  *count = 0;
  if (!emulation::is_of_current_device(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const emulation::Matmul matmul{contents(desc), contents(a), contents(b), contents(c), contents(d)};
  for (std::uint64_t algorithm = 0; algorithm < emulation::matmul_algorithms && *count < wanted;
       ++algorithm) {
    cublasLtMatmulHeuristicResult_t result{};
    if (const cublasStatus_t refused = describe(matmul, algorithm, result)) return refused;
    if (result.workspaceSize > contents(preference).workspace ||
        (algorithm == emulation::matmul_in_place &&
         (contents(preference).reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) == 0))
      continue;
    result.algo.data[0] = emulation::matmul_mark + algorithm;
    results[(*count)++] = result;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  using emulation::contents;
  if (!emulation::is_of_current_device(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (emulation::one_pair_at_a_time && contents(d).batches > 1) return CUBLAS_STATUS_NOT_SUPPORTED;
  return describe(emulation::Matmul{contents(desc), contents(a), contents(b), contents(c), contents(d)},
                  algorithm->data[0] - emulation::matmul_mark, *result);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* from_a, cublasLtMatrixLayout_t a, const void* from_b,
                              cublasLtMatrixLayout_t b, const void* beta, const void* from_c,
                              cublasLtMatrixLayout_t c, void* to_d, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t bytes,
                              cudaStream_t stream) {
  using emulation::contents;
  using emulation::Matmul;
  if (!emulation::is_of_current_device(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Matmul matmul{contents(desc), contents(a), contents(b), contents(c), contents(d)};
  if (const cublasStatus_t refused = matmul.supported()) return refused;
  const std::uint64_t chosen = algorithm == nullptr ? 1 : algorithm->data[0] - emulation::matmul_mark;
  if (const auto& fail = emulation::algorithms_that_fail;
      chosen >= emulation::matmul_algorithms || std::find(fail.begin(), fail.end(), chosen) != fail.end())
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const std::size_t scratch = chosen == 0 ? emulation::matmul_workspace : 0;
  auto& memory = emulation::DeviceMemory::of_process();
  const std::size_t rows = matmul.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? matmul.n() : matmul.m();
  const std::size_t size = size_of(*Matmul::type_of(matmul.d.type));
  const bool with_bias =
      matmul.has(CUBLASLT_EPILOGUE_BIAS) || matmul.has(16) || matmul.has(256) || matmul.has(512);
  const bool on_device = matmul.desc.pointers == CUBLASLT_POINTER_MODE_DEVICE;
  if (scratch > bytes || (scratch > 0 && !memory.holds(workspace, scratch)) ||
      !memory.holds(from_a, Matmul::bytes_of(matmul.a)) ||
      !memory.holds(from_b, Matmul::bytes_of(matmul.b)) || !memory.holds(to_d, Matmul::bytes_of(matmul.d)) ||
      ((on_device || *static_cast<const float*>(beta) != 0) &&
       !memory.holds(from_c, Matmul::bytes_of(matmul.c))) ||
      (with_bias && !memory.holds(matmul.desc.bias, rows * size)) ||
      (matmul.has(128) &&
       !memory.holds(
           matmul.desc.aux,
           ((matmul.n() - 1) * static_cast<std::size_t>(matmul.desc.aux_stride) + matmul.m()) * size)))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (on_device && (!memory.holds(alpha, 4) || !memory.holds(beta, 4))) return CUBLAS_STATUS_INVALID_VALUE;
  const float by_value[2] = {on_device ? 0 : *static_cast<const float*>(alpha),
                             on_device ? 0 : *static_cast<const float*>(beta)};
  const auto& drop = emulation::algorithms_that_drop;
  const bool drops = std::find(drop.begin(), drop.end(), chosen) != drop.end();
  const auto left_out = static_cast<std::int64_t>(drops ? matmul.k() % 4 : 0);
  emulation::Enqueued::note("product");
  const cudaError_t status = emulation::run_on(stream, [=] {
    if (scratch > 0) std::memset(workspace, 0xff, scratch);
    const bool backward = chosen == emulation::matmul_in_place && emulation::runs_in_place++ % 2 == 1;
    if (on_device)
      matmul.run(alpha, from_a, from_b, beta, from_c, to_d, backward, left_out);
    else
      matmul.run(&by_value[0], from_a, from_b, &by_value[1], from_c, to_d, backward, left_out);
  });
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
#endif
