// EMULATES
// The emulated cuBLASLt computes what plain loops compute, and refuses what the library refuses.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include "emulated_libraries.hpp"
#include "emulation/cublaslt.hpp"
#include <convoy/core/dtype.hpp>

using namespace convoy;
using emulated_libraries::OnDevice;
using emulated_libraries::waves;
using emulated_libraries::wrong;

namespace {

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
}

template <class T>
constexpr cudaDataType_t cuda_type = std::is_same_v<T, float>  ? CUDA_R_32F
                                     : std::is_same_v<T, bf16> ? CUDA_R_16BF
                                                               : CUDA_R_16F;
/// One matrix product: sizes, transpositions and epilogue. Matrices are column-major, with a leading
/// dimension 8 elements larger than needed.
struct Product {
  std::uint64_t m = 5, n = 7, k = 6;
  bool a = false, b = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float alpha = 1, beta = 0;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  void *bias = nullptr, *aux = nullptr;
  std::int64_t ld(std::uint64_t rows) const { return static_cast<std::int64_t>(rows + 7) / 8 * 8 + 8; }
  std::size_t a_size() const { return static_cast<std::size_t>(ld(a ? k : m)) * (a ? m : k); }
  std::size_t b_size() const { return static_cast<std::size_t>(ld(b ? n : k)) * (b ? k : n); }
  std::size_t d_size() const { return static_cast<std::size_t>(ld(m)) * n; }
};

struct Matmul {
  cublasLtHandle_t handle{};
  cublasLtMatmulDesc_t desc{};
  cublasLtMatrixLayout_t a{}, b{}, d{};
  cublasLtMatmulPreference_t preference{};
  Product p;

  Matmul(const Product& product, cudaDataType_t in, cudaDataType_t out) : p(product) {
    REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    cublasLtMatmulDescCreate(&desc, p.compute, CUDA_R_32F);
    const auto set = [&](cublasLtMatmulDescAttributes_t name, const auto& value) {
      REQUIRE(cublasLtMatmulDescSetAttribute(desc, name, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p.ld(p.m));
    cublasLtMatrixLayoutCreate(&a, in, p.a ? p.k : p.m, p.a ? p.m : p.k, p.ld(p.a ? p.k : p.m));
    cublasLtMatrixLayoutCreate(&b, in, p.b ? p.n : p.k, p.b ? p.k : p.n, p.ld(p.b ? p.n : p.k));
    cublasLtMatrixLayoutCreate(&d, out, p.m, p.n, p.ld(p.m));
    cublasLtMatmulPreferenceCreate(&preference);
    const std::size_t most = 4096;
    cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                         sizeof most);
  }
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;
  ~Matmul() {
    cublasLtMatmulPreferenceDestroy(preference);
    for (const auto layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(desc);
    cublasLtDestroy(handle);
  }
  cublasStatus_t algorithms(std::vector<cublasLtMatmulAlgo_t>& found) const {
    cublasLtMatmulHeuristicResult_t results[4];
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, 4, results, &count);
    for (int k = 0; k < count; ++k) found.push_back(results[k].algo);
    return status;
  }
  cublasStatus_t run(const void* from_a, const void* from_b, void* to, const cublasLtMatmulAlgo_t& algorithm,
                     void* workspace, std::size_t bytes, cudaStream_t stream = nullptr) const {
    return cublasLtMatmul(handle, desc, &p.alpha, from_a, a, from_b, b, &p.beta, to, d, to, d, &algorithm,
                          workspace, bytes, stream);
  }
};

template <class In, class Out>
void check_product(Product p) {
  const auto a = waves<In>(p.a_size(), 0.7f), b = waves<In>(p.b_size(), 0.3f);
  const auto before = waves<Out>(p.d_size(), 0.9f), bias = waves<Out>(p.m + p.n, 1.1f),
             aux = waves<Out>(p.d_size(), 0.2f);
  const OnDevice there_a(a), there_b(b), there_bias(bias), there_aux(aux), workspace(std::size_t{4096});
  p.bias = there_bias.data();
  p.aux = there_aux.data();
  const Matmul matmul(p, cuda_type<In>, cuda_type<Out>);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  REQUIRE(matmul.algorithms(algorithms) == CUBLAS_STATUS_SUCCESS);
  CHECK(algorithms.size() == 3);

  const auto bits = [&](int wanted) { return (static_cast<int>(p.epilogue) & wanted) == wanted; };
  const auto ld = [&](std::uint64_t rows) { return static_cast<std::size_t>(p.ld(rows)); };
  const auto left = [&](std::size_t i, std::size_t q) {
    return static_cast<double>(static_cast<float>(p.a ? a[i * ld(p.k) + q] : a[q * ld(p.m) + i]));
  };
  const auto right = [&](std::size_t q, std::size_t j) {
    return static_cast<double>(static_cast<float>(p.b ? b[q * ld(p.n) + j] : b[j * ld(p.k) + q]));
  };
  std::vector<double> expected(p.d_size()), kept(p.d_size());
  for (std::size_t at = 0; at < expected.size(); ++at) {
    expected[at] = static_cast<float>(before[at]);
    kept[at] = static_cast<float>(aux[at]);
  }
  std::vector<double> vectors;
  for (const Out x : bias) vectors.push_back(static_cast<float>(x));
  for (std::size_t j = 0; j < p.n; ++j)
    for (std::size_t i = 0; i < p.m; ++i) {
      double sum = 0;
      for (std::size_t q = 0; q < p.k; ++q) sum += left(i, q) * right(q, j);
      double value = static_cast<double>(p.alpha) * sum;
      const std::size_t at = j * ld(p.m) + i;
      value += static_cast<double>(p.beta) * expected[at];
      if (bits(CUBLASLT_EPILOGUE_BIAS)) value += static_cast<double>(static_cast<float>(bias[i]));
      if (bits(CUBLASLT_EPILOGUE_GELU_AUX)) kept[at] = value;
      if (bits(CUBLASLT_EPILOGUE_GELU)) value = gelu(value);
      if (bits(CUBLASLT_EPILOGUE_RELU)) value = std::max(value, 0.0);
      if (bits(CUBLASLT_EPILOGUE_DGELU)) {
        const double x = static_cast<float>(aux[at]), h = 1e-5;
        value *= (gelu(x + h) - gelu(x - h)) / (2 * h);
      }
      expected[at] = value;
    }
  if (p.epilogue == CUBLASLT_EPILOGUE_BGRADA)
    for (std::size_t i = 0; i < p.m; ++i) {
      vectors[i] = 0;
      for (std::size_t q = 0; q < p.k; ++q) vectors[i] += left(i, q);
    }
  if (p.epilogue == CUBLASLT_EPILOGUE_BGRADB)
    for (std::size_t j = 0; j < p.n; ++j) {
      vectors[j] = 0;
      for (std::size_t q = 0; q < p.k; ++q) vectors[j] += right(q, j);
    }
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
    const OnDevice d(before);
    REQUIRE(matmul.run(there_a.data(), there_b.data(), d.data(), algorithm, workspace.data(), 4096) ==
            CUBLAS_STATUS_SUCCESS);
    CHECK(wrong(d.read<Out>(p.d_size()), expected) == 0);
    CHECK(wrong(there_bias.read<Out>(bias.size()), vectors) == 0);
    CHECK(wrong(there_aux.read<Out>(aux.size()), kept) == 0);
  }
}

}  // namespace

TEST_CASE("products of matrices are those of plain loops, whichever factors are transposed") {
  for (const bool a : {false, true})
    for (const bool b : {false, true}) {
      check_product<float, float>({.a = a, .b = b});
      check_product<bf16, bf16>({.a = a, .b = b});
      check_product<f16, f16>({.a = a, .b = b, .alpha = 0.5f});
      check_product<bf16, float>({.a = a, .b = b, .beta = 1});
      check_product<f16, float>({.a = a, .b = b, .alpha = 0.25f, .beta = 2});
    }
}

TEST_CASE("epilogues follow a product") {
  for (const auto epilogue : {CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_RELU_BIAS,
                              CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                              CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
    CAPTURE(static_cast<int>(epilogue));
    check_product<float, float>({.epilogue = epilogue});
    check_product<bf16, bf16>({.a = true, .b = true, .epilogue = epilogue});
    check_product<bf16, float>({.b = true, .epilogue = epilogue});
  }
}

TEST_CASE("products that cuBLASLt does not have are refused, and matrices that leave their memory") {
  std::vector<cublasLtMatmulAlgo_t> found;
  CHECK(Matmul({}, CUDA_R_32F, CUDA_R_16F).algorithms(found) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(Matmul({.compute = CUBLAS_COMPUTE_16F}, CUDA_R_16F, CUDA_R_16F).algorithms(found) ==
        CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(found.empty());
  const Product p;
  const Matmul matmul(p, CUDA_R_32F, CUDA_R_32F);
  REQUIRE(matmul.algorithms(found) == CUBLAS_STATUS_SUCCESS);
  const OnDevice a(waves<float>(p.a_size(), 1)), b(waves<float>(p.b_size(), 1)), d(p.d_size() * 4),
      workspace(std::size_t{4096});
  const auto run = [&](void* to, std::size_t bytes) {
    return matmul.run(a.data(), b.data(), to, found[0], workspace.data(), bytes);
  };
  CHECK(run(d.data(), 4096) == CUBLAS_STATUS_SUCCESS);
  CHECK(run(d.data(), 4095) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(run(static_cast<float*>(d.data()) + 16, 4096) == CUBLAS_STATUS_INVALID_VALUE);
  std::vector<float> host(p.d_size());
  CHECK(run(host.data(), 4096) == CUBLAS_STATUS_INVALID_VALUE);
  const emulation::With none(emulation::Settings{.devices = 0});
  cublasLtHandle_t handle{};
  CHECK(cublasLtCreate(&handle) == CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_CASE("tensor cores round f32 factors") {
  const Product p{.m = 1, .n = 1, .k = 1, .compute = CUBLAS_COMPUTE_32F_FAST_TF32};
  std::vector<float> one(p.a_size(), 1.0f), more(p.b_size(), 1.0f + 0x1p-12f);
  const OnDevice a(one), b(more), d(p.d_size() * 4), workspace(std::size_t{4096});
  const Matmul matmul(p, CUDA_R_32F, CUDA_R_32F);
  std::vector<cublasLtMatmulAlgo_t> found;
  REQUIRE(matmul.algorithms(found) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(matmul.run(a.data(), b.data(), d.data(), found[0], workspace.data(), 4096) ==
          CUBLAS_STATUS_SUCCESS);
  CHECK(d.read<float>(1)[0] == 1);
}
