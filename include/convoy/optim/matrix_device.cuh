// Matrix updates on a GPU: products by cuBLASLt, and three kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/memory/cublas.cuh>
#include <convoy/memory/device.cuh>
#include <convoy/memory/product_trial.cuh>
#include <convoy/optim/matrix.hpp>

namespace convoy::optim {

namespace detail {

// Row y of the grid works on matrix y of a pass. x is scratch memory, whose matrices lie `apart` floats from
// one another.

/// Writes f of each element to x, and the sum of the squares of each block's results to `sums`.
template <class F, int width>
__global__ void __launch_bounds__(memory::detail::SumSquares::threads, 6)
    make_matrix(MatrixPass all, F f, float* x, std::int64_t apart, double* sums) {
  constexpr int threads = memory::detail::SumSquares::threads;
  __shared__ double scratch[threads / device::warp_size];
  float scale = all.scale;
  if (!applies(all.verdict, scale)) return;
  const MatrixPass m = all.of(static_cast<int>(blockIdx.y));
  x += blockIdx.y * apart;
  const typename F::Constants k = *static_cast<const typename F::Constants*>(m.constants);
  double squares = 0;
  device::for_each_four<width>(m.shape.size(), [&]<int lanes>(std::int64_t i) {
    const auto g = device::load_once<lanes>(m.gradients + i);
    device::Lanes<float, lanes> state[F::slots], made;
    for (int s = 0; s < F::slots; ++s) state[s] = device::load_once<lanes>(m.state + s * m.stride + i);
    for (int lane = 0; lane < lanes; ++lane) {
      float own[F::slots];
      for (int s = 0; s < F::slots; ++s) own[s] = state[s].lane[lane];
      made.lane[lane] = f(g.lane[lane] * scale, own, k);
      for (int s = 0; s < F::slots; ++s) state[s].lane[lane] = own[s];
      const double value = made.lane[lane];
      squares += value * value;
    }
    for (int s = 0; s < F::slots; ++s) device::store_once<lanes>(m.state + s * m.stride + i, state[s]);
    device::store_floats<lanes>(x + i, made);
  });
  squares = device::block_sum<threads>(squares, scratch);
  if (threadIdx.x == 0) sums[blockIdx.y * gridDim.x + blockIdx.x] = squares;
}

/// Divides x by the root of the sum of `count` numbers, which every block computes itself, or by `least` if
/// that is larger.
template <class = void>
__global__ void __launch_bounds__(memory::detail::SumSquares::threads)
    divide_matrix(float* x, std::int64_t n, std::int64_t apart, const double* sums, int count, double least) {
  constexpr int threads = memory::detail::SumSquares::threads;
  __shared__ double scratch[threads / device::warp_size];
  x += blockIdx.y * apart;
  sums += blockIdx.y * static_cast<unsigned>(count);
  double squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += threads) squares += sums[i];
  const double root = std::sqrt(device::block_sum<threads>(squares, scratch));
  const auto length = static_cast<float>(root < least ? least : root);
  device::for_each_four<4>(n, [&]<int lanes>(std::int64_t i) {
    auto values = device::load_floats<lanes>(x + i);
    for (float& value : values.lane) value /= length;
    device::store_floats<lanes>(x + i, values);
  });
}

/// Replaces each parameter by f of the parameter and its element of x (0 if x is null).
template <class F, int width>
__global__ void update_matrix(MatrixPass all, F f, const float* x, std::int64_t apart) {
  float scale = 1;
  if (!applies(all.verdict, scale)) return;
  const MatrixPass m = all.of(static_cast<int>(blockIdx.y));
  if (x != nullptr) x += blockIdx.y * apart;
  const typename F::Constants k = *static_cast<const typename F::Constants*>(m.constants);
  device::for_each_four<width>(m.shape.size(), [&]<int lanes>(std::int64_t i) {
    auto p = device::load_floats<lanes>(m.parameters + i);
    const auto o = x != nullptr ? device::load_floats<lanes>(x + i) : device::Lanes<float, lanes>{};
    for (int lane = 0; lane < lanes; ++lane) p.lane[lane] = f(p.lane[lane], o.lane[lane], k);
    device::store_floats<lanes>(m.parameters + i, p);
    device::store_rounded<lanes>(m.copy, i, p);
  });
}

}  // namespace detail

/// Enqueues all work on the space's stream. x has the layout of the matrix, even of a tall one, whose
/// products read x transposed. The products use the first algorithm of cuBLASLt that runs and gives the
/// right result instead of the fastest measured one, so that ranks that make the same update get the same
/// bits. Matrices of one shape are updated together by the algorithm of one matrix, as many as fit in
/// `most_floats` of scratch memory.
template <>
class MatrixWork<memory::Device> {
 public:
  /// Throws ConfigError for a matrix that is not stored row by row, device::DeviceError if cuBLASLt cannot
  /// multiply.
  MatrixWork(memory::Device& space, const MatrixNeeds& needs, std::span<const MatrixShape> shapes)
      : space_(&space), cublas_(space.stream()), needs_(needs) {
    std::int64_t floats = 0;
    int together = 1;
    for (const MatrixShape& shape : shapes) {
      if (shape.panel != 1)
        fail<ConfigError>("optimizer: a matrix of ", shape.rows, " x ", shape.columns,
                          " is stored in panels of ", shape.panel,
                          " rows, but on a GPU it must be stored row by row");
      if (most(shape) > 0) continue;
      const auto count = std::count_if(shapes.begin(), shapes.end(), [&](const MatrixShape& other) {
        return other.rows == shape.rows && other.columns == shape.columns;
      });
      const std::int64_t each = needs.floats(shape);
      const std::int64_t room = most_floats / std::max<std::int64_t>(each, 1);
      most_.push_back({shape, static_cast<int>(std::clamp<std::int64_t>(room, 1, count))});
      floats = std::max(floats, most(shape) * each);
      together = std::max(together, most(shape));
      for (const MatrixProduct& product : needs.products)
        if (find(shape, product) == nullptr) ways_.push_back(make(shape, product));
    }
    sums_ =
        memory::Array<double, memory::Device>(space, static_cast<std::size_t>(together * Cut::most_blocks));
    memory_ = memory::Array<float, memory::Device>(space, static_cast<std::size_t>(floats));
  }

  int most(const MatrixShape& shape) const {
    for (const auto& [known, count] : most_)
      if (known.rows == shape.rows && known.columns == shape.columns) return count;
    return 0;
  }
  float* wide(const MatrixPass& m, int i) { return memory_.data() + m.count * needs_.wide_at(m.shape, i); }
  float* square(const MatrixPass& m, int i) {
    return memory_.data() + m.count * needs_.square_at(m.shape, i);
  }

  template <class F>
  void normalize(const MatrixPass& m, const F& f, double least, float* x, float*) {
    const std::int64_t n = m.shape.size();
    const auto blocks = static_cast<int>(Cut::blocks(n));
    const device::Launch where{space_->stream(), grid(static_cast<unsigned>(blocks), m), Cut::threads};
    const std::int64_t apart = apart_of(m.shape, Side::low, Side::high);
    device::launch(where, in_vectors(m) ? detail::make_matrix<F, 4> : detail::make_matrix<F, 1>, m, f, x,
                   apart, sums_.data());
    device::launch(where, detail::divide_matrix<>, x, n, apart, sums_.data(), blocks, least);
  }

  void multiply(const MatrixPass& m, const MatrixProduct& product, const float* left, const float* right,
                const float* from, float* out) {
    const Way* const way = find(m.shape, product);
    if (way == nullptr) fail("optimizer: a matrix product was not among those that its rule announced");
    if (way->turned) std::swap(left, right);
    const device::ProductPlan::Apart apart = apart_of(*way);
    if (m.count == 1 || way->repeats) {
      way->plan->repeat(m.count, apart);
      return way->plan->run_scaled(product.factor, left, right, product.kept, from, out);
    }
    way->plan->repeat(1, apart);
    for (int i = 0; i < m.count; ++i)
      way->plan->run_scaled(product.factor, left + i * apart.left, right + i * apart.right, product.kept,
                            from == nullptr ? nullptr : from + i * apart.out, out + i * apart.out);
  }

  template <class F>
  void update(const MatrixPass& m, const F& f, const float* x = nullptr) {
    device::launch({space_->stream(), grid(device::blocks_for((m.shape.size() + 3) / 4), m)},
                   in_vectors(m) ? detail::update_matrix<F, 4> : detail::update_matrix<F, 1>, m, f, x,
                   apart_of(m.shape, Side::low, Side::high));
  }

 private:
  using Cut = memory::detail::SumSquares;
  static constexpr int most_tried = 8;
  static constexpr std::int64_t most_floats = std::int64_t{64} << 20;

  /// How a product is computed for matrices of a shape.
  struct Way {
    MatrixShape shape;
    MatrixProduct product;
    bool turned;  ///< as the product of the transposes, right times left
    std::unique_ptr<device::ProductPlan> plan;
    bool repeats = false;  ///< whether one run multiplies several matrices
  };

  static dim3 grid(unsigned blocks, const MatrixPass& m) { return {blocks, static_cast<unsigned>(m.count)}; }
  // Floats from one of several scratch matrices to the next.
  std::int64_t apart_of(const MatrixShape& shape, Side rows, Side columns) const {
    return rows == columns ? needs_.square_at(shape, 1) - needs_.square_at(shape, 0)
                           : needs_.wide_at(shape, 1);
  }
  device::ProductPlan::Apart apart_of(const Way& way) const {
    const MatrixProduct& p = way.product;
    device::ProductPlan::Apart apart{apart_of(way.shape, p.rows, p.inner),
                                     apart_of(way.shape, p.inner, p.columns),
                                     apart_of(way.shape, p.rows, p.columns)};
    if (way.turned) std::swap(apart.left, apart.right);
    return apart;
  }

  const Way* find(const MatrixShape& shape, const MatrixProduct& product) const {
    for (const Way& way : ways_)
      if (way.shape.rows == shape.rows && way.shape.columns == shape.columns && way.product == product)
        return &way;
    return nullptr;
  }

  /// For a tall matrix, every [low, high] matrix is stored transposed.
  Way make(const MatrixShape& shape, const MatrixProduct& product) {
    const auto of = [&](Side side) { return side == Side::low ? shape.low() : shape.high(); };
    const auto stands_turned = [&](Side rows, Side columns) {
      return shape.tall() && rows == Side::low && columns == Side::high;
    };
    device::Product p;
    p.reduced_products = space_->reduced_products();
    p.rows = of(product.rows);
    p.inner = of(product.inner);
    p.columns = of(product.columns);
    p.left_transposed = stands_turned(product.rows, product.inner);
    p.right_transposed = product.right_transposed != (product.right_transposed
                                                          ? stands_turned(product.columns, product.inner)
                                                          : stands_turned(product.inner, product.columns));
    const bool turned = stands_turned(product.rows, product.columns);
    if (turned) {
      std::swap(p.rows, p.columns);
      p.left_transposed = !std::exchange(p.right_transposed, !p.left_transposed);
    }
    Way way{shape, product, turned, std::make_unique<device::ProductPlan>(cublas_, p)};
    device::ProductTrial trial(*space_, p);
    for (const device::Algorithm& algorithm : way.plan->algorithms(most_tried)) {
      way.plan->take(algorithm);
      if (!trial.passes(*way.plan)) continue;
      way.plan->repeat(most(shape), apart_of(way));
      way.repeats = way.plan->accepts(algorithm);
      return way;
    }
    device::fail_without_algorithm(p);
  }

  static bool in_vectors(const MatrixPass& m) {
    // Matrices begin at multiples of 64 bytes of the arena and of the state.
    const auto address = [&](const void* p, std::uintptr_t element) {
      return p == nullptr
                 ? 0
                 : reinterpret_cast<std::uintptr_t>(p) - static_cast<std::uintptr_t>(m.first) * element;
    };
    return (address(m.parameters, sizeof(float)) | address(m.gradients, sizeof(float)) | address(m.state, 0) |
            static_cast<std::uintptr_t>(m.stride) * sizeof(float) | 2 * address(m.copy.at, 2)) %
               16 ==
           0;
  }

  memory::Device* space_;
  device::Cublas cublas_;
  MatrixNeeds needs_;
  std::vector<std::pair<MatrixShape, int>> most_;  // matrices of each shape that are updated together
  std::vector<Way> ways_;
  memory::Array<double, memory::Device> sums_;
  memory::Array<float, memory::Device> memory_;
};

}  // namespace convoy::optim
