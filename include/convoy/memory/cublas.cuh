// Matrix products by cuBLASLt, with the epilogues that linear layers use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <cublasLt.h>

#include <convoy/core/dtype.hpp>
#include <convoy/core/error.hpp>
#include <convoy/core/hash.hpp>
#include <convoy/memory/cuda.cuh>

namespace convoy::device {

inline void check(cublasStatus_t status, std::string_view what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    fail<DeviceError>("cublas: could not ", what, ": ", cublasLtGetStatusString(status));
}

/// What a product computes besides multiplying, with a vector or a matrix of its result's type. GELU is the
/// tanh approximation.
enum class ProductEpilogue : unsigned char {
  none,
  bias,        ///< adds the vector, of `columns` numbers, to every row
  bias_gelu,   ///< likewise; the sums go to the matrix, shaped like `out`, and their GELU to `out`
  gelu_slope,  ///< multiplies by the derivative of the GELU at the matrix's elements
  left_sums    ///< overwrites the vector with the sums of left's `rows` rows
};
/// The matrix is contiguous; the length of its rows is a multiple of this many elements.
inline constexpr int gelu_lanes = 8;

/// One product of row-major matrices: out [rows, columns] = left [rows, inner] right [inner, columns]. Each
/// factor may be stored transposed.
struct Product {
  DType element = DType::f32, out = DType::f32;
  bool reduced_products = false;  ///< whether tensor cores may round f32 inputs
  std::int64_t rows = 0, columns = 0, inner = 0;
  std::int64_t left_stride = 0;   ///< elements from row to row of left as stored; 0: contiguous
  bool left_transposed = false;   ///< left is stored [inner, rows]
  bool right_transposed = false;  ///< right is stored [columns, inner]
  bool accumulate = false;        ///< adds to `out` instead of overwriting it
  ProductEpilogue epilogue = ProductEpilogue::none;

  friend constexpr bool operator==(const Product&, const Product&) = default;

  /// The stride of a row of left as stored, and the extent of each factor and of the result, in elements.
  std::int64_t left_row() const { return left_stride > 0 ? left_stride : left_transposed ? rows : inner; }
  std::int64_t left_elements() const { return (left_transposed ? inner : rows) * left_row(); }
  std::int64_t right_elements() const { return inner * columns; }
  std::int64_t out_elements() const { return rows * columns; }
  /// Whether the epilogue has a matrix, which is as large as the result.
  bool has_matrix() const {
    return epilogue == ProductEpilogue::bias_gelu || epilogue == ProductEpilogue::gelu_slope;
  }
  std::uint64_t hash() const {
    std::uint64_t mixed = hash_start;
    for (const std::int64_t number :
         {static_cast<std::int64_t>(element), static_cast<std::int64_t>(out),
          static_cast<std::int64_t>(reduced_products), rows, columns, inner, left_stride,
          static_cast<std::int64_t>(left_transposed), static_cast<std::int64_t>(right_transposed),
          static_cast<std::int64_t>(accumulate), static_cast<std::int64_t>(epilogue)})
      mixed = hash_of(static_cast<std::uint64_t>(number), mixed);
    return mixed;
  }
};

/// Throws DeviceError: cuBLASLt has no algorithm for the product.
[[noreturn]] inline void fail_without_algorithm(const Product& p) {
  fail<DeviceError>("cublas: there is no algorithm for a product of ", p.rows, " x ", p.inner, " and ",
                    p.inner, " x ", p.columns);
}

/// A cuBLASLt algorithm. nvcc 13 fails on containers of a struct without a tag, such as cublasLtMatmulAlgo_t.
struct Algorithm : cublasLtMatmulAlgo_t {};

/// cuBLASLt on a stream's GPU, with one workspace for that stream.
class Cublas {
 public:
  /// NVIDIA's recommendation for Hopper, in bytes.
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;

  explicit Cublas(cudaStream_t stream) : stream_(stream), workspace_(make_workspace()) {
    check(cublasLtCreate(&handle_), "start");
  }
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas() { cublasLtDestroy(handle_); }

  cublasLtHandle_t handle() const { return handle_; }
  cudaStream_t stream() const { return stream_; }
  void* workspace() const { return workspace_.get(); }

 private:
  static void* make_workspace() {
    void* made = nullptr;
    check(cudaMalloc(&made, workspace_bytes), "allocate the workspace of matrix products");
    return made;
  }

  cudaStream_t stream_;
  Owned<void*, cudaFree> workspace_;
  cublasLtHandle_t handle_ = nullptr;
};

/// A product as described to cuBLASLt, run by the algorithm given to `take`. cuBLASLt matrices are
/// column-major, so cuBLASLt computes the transposed product: `right` comes first, and its rows of the result
/// are columns here.
class ProductPlan {
 public:
  ProductPlan(const Cublas& library, const Product& p) : library_(&library), product_(p) {
    const cudaDataType_t element = type_of(p.element), out = type_of(p.out);
    const bool fast = p.element == DType::f32 && p.reduced_products;
    operation_ = own(operations_, [&](cublasLtMatmulDesc_t* made) {
      return cublasLtMatmulDescCreate(made, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                      CUDA_R_32F);
    });
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.right_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.left_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    // The heuristic infers the alignment from the address.
    const auto* const aligned = reinterpret_cast<const void*>(std::uintptr_t{alignment});
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p.epilogue));
    if (has_vector()) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
    }
    if (p.has_matrix()) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, out);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.columns);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned);
    }
    const std::int64_t right_row = p.right_transposed ? p.inner : p.columns;
    right_ = layout(element, right_row, p.right_elements() / right_row, right_row);
    left_ = layout(element, p.left_transposed ? p.rows : p.inner, p.left_transposed ? p.inner : p.rows,
                   p.left_row());
    out_ = layout(out, p.columns, p.rows, p.columns);
  }
  ProductPlan(const ProductPlan&) = delete;
  ProductPlan& operator=(const ProductPlan&) = delete;
  ~ProductPlan() {
    for (const cublasLtMatrixLayout_t made : layouts_) cublasLtMatrixLayoutDestroy(made);
    for (const cublasLtMatmulDesc_t made : operations_) cublasLtMatmulDescDestroy(made);
  }

  /// At most `most` algorithms in the heuristic's order, fastest first; none if cuBLASLt has none with this
  /// epilogue. Every algorithm gives the same bits in every run: split-K products write f32 partial sums to
  /// the workspace, and a separate pass adds them. Partial sums in the result would be added in an order that
  /// cuBLASLt does not guarantee, and 16-bit partial sums would be rounded once more.
  std::vector<Algorithm> algorithms(int most = most_algorithms) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "describe a matrix product");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof value),
            "describe a matrix product");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, Cublas::workspace_bytes);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto name :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(name, alignment);
    cublasLtMatmulHeuristicResult_t found[most_algorithms]{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(library_->handle(), operation_, right_, left_, out_, out_, preference,
                                       std::min(most, most_algorithms), found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    // A valid product with an unsupported epilogue gets this status; the caller then computes the epilogue.
    if (status == CUBLAS_STATUS_INVALID_VALUE && product_.epilogue != ProductEpilogue::none) return {};
    check(status, "choose an algorithm for a matrix product");
    std::vector<Algorithm> all;
    for (int i = 0; i < count; ++i)
      if (found[i].state == CUBLAS_STATUS_SUCCESS) all.push_back({found[i].algo});
    return all;
  }

  /// Whether this GPU can run the product by an algorithm chosen in another run.
  bool accepts(const Algorithm& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(library_->handle(), operation_, right_, left_, out_, out_, &algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= Cublas::workspace_bytes;
  }
  void take(const Algorithm& algorithm) { algorithm_ = algorithm; }

  /// Elements from one of several matrices to the next.
  struct Apart {
    std::int64_t left = 0, right = 0, out = 0;
    friend constexpr bool operator==(const Apart&, const Apart&) = default;
  };
  /// From here on a run multiplies `count` pairs of matrices.
  void repeat(int count, const Apart& apart) {
    if (count == count_ && apart == apart_) return;
    count_ = count;
    apart_ = apart;
    const auto lay_out = [&](cublasLtMatrixLayout_t layout, std::int64_t stride) {
      const std::int32_t matrices = count;
      check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices,
                                             sizeof matrices),
            "describe several matrices");
      check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                             sizeof stride),
            "describe several matrices");
    };
    lay_out(left_, apart.left);
    lay_out(right_, apart.right);
    lay_out(out_, apart.out);
  }

  /// `vector` and `matrix` are the epilogue's.
  void run(const void* left, const void* right, const void* vector, void* out, void* matrix = nullptr) {
    point_to(vector, matrix);
    run_scaled(1.0f, left, right, kept(), out, out);
  }
  /// The same with an algorithm that has not run on this GPU before. False if cuBLASLt refuses it, as it may
  /// even if its heuristic proposed the algorithm.
  bool try_run(const void* left, const void* right, const void* vector, void* out, void* matrix) {
    point_to(vector, matrix);
    if (start(1.0f, left, right, kept(), out, out) == CUBLAS_STATUS_SUCCESS) return true;
    cudaGetLastError();  // clears the error, which a later call would report
    return false;
  }

  /// out = factor left right + kept from, where `from` is laid out like `out` and may be `out`. An epilogue
  /// uses the vector and matrix of the last `run`.
  void run_scaled(float factor, const void* left, const void* right, float kept, const void* from,
                  void* out) const {
    check(start(factor, left, right, kept, from, out), "multiply matrices");
  }

 private:
  /// Alignment of all matrices and vectors in bytes: less than that of 16-bit parameter slots, and enough for
  /// the widest loads. cuBLASLt's default assumption is 256.
  static constexpr std::uint32_t alignment = 16;
  static constexpr int most_algorithms = 64;

  float kept() const { return product_.accumulate ? 1.0f : 0.0f; }
  void point_to(const void* vector, const void* matrix) {
    if (has_vector() && vector != vector_) {
      vector_ = vector;
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector);
    }
    if (product_.has_matrix() && matrix != matrix_) {
      matrix_ = matrix;
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, matrix);
    }
  }
  cublasStatus_t start(float factor, const void* left, const void* right, float kept, const void* from,
                       void* out) const {
    return cublasLtMatmul(library_->handle(), operation_, &factor, right, right_, left, left_, &kept, from,
                          out_, out, out_, &algorithm_, library_->workspace(), Cublas::workspace_bytes,
                          library_->stream());
  }

  bool has_vector() const {
    return product_.epilogue == ProductEpilogue::bias || product_.epilogue == ProductEpilogue::bias_gelu ||
           product_.epilogue == ProductEpilogue::left_sums;
  }
  static cublasLtEpilogue_t epilogue_of(ProductEpilogue epilogue) {
    switch (epilogue) {
      case ProductEpilogue::bias:
        return CUBLASLT_EPILOGUE_BIAS;
      case ProductEpilogue::bias_gelu:
        return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
      case ProductEpilogue::gelu_slope:
        return CUBLASLT_EPILOGUE_DGELU;
      case ProductEpilogue::left_sums:
        return CUBLASLT_EPILOGUE_BGRADB;  // left is cuBLASLt's second matrix
      default:
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
  }
  static cudaDataType_t type_of(DType element) {
    return element == DType::bf16 ? CUDA_R_16BF : element == DType::f16 ? CUDA_R_16F : CUDA_R_32F;
  }
  template <class T, class Create>
  static T own(std::vector<T>& all, Create create) {
    T made = nullptr;
    check(create(&made), "describe a matrix product");
    all.push_back(made);
    return made;
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t name, const T& value) {
    check(cublasLtMatmulDescSetAttribute(operation_, name, &value, sizeof value),
          "describe a matrix product");
  }
  cublasLtMatrixLayout_t layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                                std::int64_t stride) {
    return own(layouts_, [&](cublasLtMatrixLayout_t* made) {
      return cublasLtMatrixLayoutCreate(made, type, static_cast<std::uint64_t>(rows),
                                        static_cast<std::uint64_t>(columns), stride);
    });
  }

  const Cublas* library_;
  Product product_;
  std::vector<cublasLtMatmulDesc_t> operations_;
  std::vector<cublasLtMatrixLayout_t> layouts_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, out_ = nullptr;
  Algorithm algorithm_{};
  const void *vector_ = nullptr, *matrix_ = nullptr;
  int count_ = 1;
  Apart apart_;
};

}  // namespace convoy::device
