// ProductTrial: scratch memory on which the algorithms of a matrix product run before one is chosen.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <convoy/core/dtype.hpp>
#include <convoy/memory/cublas.cuh>
#include <convoy/memory/device.cuh>
#include <convoy/memory/launch.cuh>
#include <convoy/memory/random.cuh>
#include <convoy/memory/vector.cuh>

namespace convoy::device {

namespace detail {

template <class T>
__global__ void write_ones(T* to, std::int64_t n, std::int64_t step) {
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += threads)
    to[i * step] = narrow<T>(1.0f);
}

/// Sets `found` if one of n elements is not near `wanted`.
template <class T>
__global__ void find_others(const T* at, std::int64_t n, float wanted, int* found) {
  const std::int64_t threads = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += threads)
    if (!(std::abs(widen(at[i]) - wanted) <= 0.125f * wanted)) *found = 1;
}

template <class Visit>
void with_element(DType type, Visit&& visit) {
  if (type == DType::bf16)
    visit(bf16{});
  else if (type == DType::f16)
    visit(f16{});
  else
    visit(0.0f);
}

}  // namespace detail

/// Memory of a product that is tried; `vector` and `matrix` are its epilogue's.
struct ProductMemory {
  const void *left, *right;
  void *vector, *out, *matrix;
};

/// Some split-K kernels of cuBLASLt 12 and 13 leave out the end of the inner dimension, so an algorithm is
/// not trusted before its result was checked.
class ProductTrial {
 public:
  ProductTrial(memory::Device& space, const Product& p)
      : space_(space),
        product_(p),
        left_(scratch(p.element, p.left_elements())),
        right_(scratch(p.element, p.right_elements())),
        vector_(scratch(p.out, p.rows + p.columns)),
        out_(scratch(p.out, p.out_elements())),
        matrix_(scratch(p.out, p.has_matrix() ? p.out_elements() : 0)),
        found_(space, 1) {
    // Only the last inner slice of `left` is not 0, so that a sum without its end is 0 and not 1.
    const std::int64_t row = p.left_row(), last = p.inner - 1;
    detail::with_element(p.element, [&]<class T>(T) {
      write_ones(reinterpret_cast<T*>(left_.data()) + (p.left_transposed ? last * row : last), p.rows,
                 p.left_transposed ? 1 : row);
      write_ones(reinterpret_cast<T*>(right_.data()), p.right_elements(), 1);
    });
  }

  ProductMemory memory() const {
    return {left_.data(), right_.data(), vector_.data(), out_.data(), matrix_.data()};
  }

  /// Whether cuBLASLt runs the algorithm that `plan` has taken, and the result is right. Not after
  /// `fill_for_timing`.
  bool passes(ProductPlan& plan) {
    const Product& p = product_;
    for (const Scratch* written : {&vector_, &out_, &matrix_})
      if (written->size() > 0)
        check(cudaMemsetAsync(written->data(), 0, written->size(), space_.stream()), "clear memory");
    check(cudaMemsetAsync(found_.data(), 0, sizeof(int), space_.stream()), "clear memory");
    const ProductMemory m = memory();
    if (!plan.try_run(m.left, m.right, m.vector, m.out, m.matrix)) return false;
    // The derivative of the GELU at 0 is 1/2.
    if (p.epilogue == ProductEpilogue::bias_gelu)
      look(matrix_, p.out_elements(), 1.0f);
    else
      look(out_, p.out_elements(), p.epilogue == ProductEpilogue::gelu_slope ? 0.5f : 1.0f);
    if (p.epilogue == ProductEpilogue::left_sums) look(vector_, p.rows, 1.0f);
    int found = 0;
    space_.read(&found, found_.data(), sizeof found);
    return found == 0;
  }

  /// Writes contents on which products take as long as in training.
  void fill_for_timing() {
    const Product& p = product_;
    const auto fill = [&](const Scratch& memory, DType type) {
      if (memory.size() == 0) return;
      fill_random(space_.stream(), type, memory.data(),
                  static_cast<std::int64_t>(memory.size() / size_of(type)));
    };
    fill(left_, p.element);
    fill(right_, p.element);
    for (const Scratch* of_result : {&vector_, &out_, &matrix_}) fill(*of_result, p.out);
  }

 private:
  using Scratch = memory::Array<std::byte, memory::Device>;

  Scratch scratch(DType type, std::int64_t elements) {
    return {space_, static_cast<std::size_t>(elements) * size_of(type)};
  }
  template <class T>
  void write_ones(T* to, std::int64_t n, std::int64_t step) {
    launch({space_.stream(), blocks_for(n)}, detail::write_ones<T>, to, n, step);
  }
  void look(const Scratch& in, std::int64_t n, float wanted) {
    detail::with_element(product_.out, [&]<class T>(T) {
      launch({space_.stream(), blocks_for(n)}, detail::find_others<T>, reinterpret_cast<const T*>(in.data()),
             n, wanted, found_.data());
    });
  }

  memory::Device& space_;
  Product product_;
  Scratch left_, right_, vector_, out_, matrix_;
  memory::Array<int, memory::Device> found_;
};

}  // namespace convoy::device
