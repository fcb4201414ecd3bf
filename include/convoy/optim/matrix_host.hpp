// Matrix updates in host memory, by a team of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <convoy/core/range.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/optim/matrix.hpp>
#include <convoy/parallel/multiply.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::optim {

/// The caller has already applied the verdict to the pass. A tall matrix is transposed when it is copied to x
/// and back.
template <>
class MatrixWork<memory::Host> {
 public:
  [[gnu::cold]] MatrixWork(memory::Host& space, const MatrixNeeds& needs, std::span<const MatrixShape> shapes)
      : space_(&space), needs_(needs) {
    std::int64_t floats = 0;
    for (const MatrixShape& shape : shapes) {
      std::int64_t packed = 0;
      for (const MatrixProduct& p : needs.products)
        packed = std::max(packed, multiply_work(of(p.rows, shape), of(p.columns, shape), of(p.inner, shape)));
      floats = std::max(floats, needs.floats(shape) + packed);
    }
    memory_ = memory::Array<float, memory::Host>(space, static_cast<std::size_t>(floats));
  }

  static constexpr int most(const MatrixShape&) { return 1; }
  float* wide(const MatrixPass& m, int i) { return memory_.data() + needs_.wide_at(m.shape, i); }
  float* square(const MatrixPass& m, int i) { return memory_.data() + needs_.square_at(m.shape, i); }

  template <class F>
  void normalize(const MatrixPass& m, const F& f, double least, float* x, float* other) {
    const std::int64_t n = m.shape.size();
    parallel(team_size(m), [&](int thread, int team) {
      const Range mine = share(n, thread, team, 16);
      // The compiler knows that no store changes these thread-local copies.
      const MatrixPass own = m;
      const auto k = constants<F>(m);
      float* const made = other;
      for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        float state[F::slots];
        for (int s = 0; s < F::slots; ++s) state[s] = own.state[s * own.stride + i];
        made[i] = f(own.scale * own.gradients[i], state, k);
        for (int s = 0; s < F::slots; ++s) own.state[s * own.stride + i] = state[s];
      }
    });
    const double squares = memory::detail::sum_squares(other, n, space_->threads());
    const auto length = static_cast<float>(std::max(std::sqrt(squares), least));
    for_each_of_x(m, [&](std::int64_t of_x, std::int64_t at) { x[of_x] = other[at] / length; });
  }

  void multiply(const MatrixPass& m, const MatrixProduct& p, const float* left, const float* right,
                const float* from, float* out) {
    const std::int64_t rows = of(p.rows, m.shape), inner = of(p.inner, m.shape),
                       columns = of(p.columns, m.shape);
    if (p.kept != 0) std::copy_n(from, rows * columns, out);
    convoy::multiply(space_->threads(), rows, columns, inner, p.factor, {left, inner, 1},
                     p.right_transposed ? Strided{right, 1, inner} : Strided{right, columns, 1}, p.kept, out,
                     memory_.data() + needs_.floats(m.shape),
                     p.symmetric ? Symmetry::symmetric : Symmetry::none);
  }

  template <class F>
  void update(const MatrixPass& m, const F& f, const float* x = nullptr) {
    const auto k = constants<F>(m);
    if (x != nullptr)
      return for_each_of_x(
          m, [&](std::int64_t of_x, std::int64_t at) { m.parameters[at] = f(m.parameters[at], x[of_x], k); });
    parallel(team_size(m), [&](int thread, int team) {
      const Range mine = share(m.shape.size(), thread, team, 16);
      for (std::int64_t i = mine.begin; i < mine.end; ++i) m.parameters[i] = f(m.parameters[i], 0.0f, k);
    });
  }

 private:
  static std::int64_t of(Side side, const MatrixShape& shape) {
    return side == Side::low ? shape.low() : shape.high();
  }
  template <class F>
  static typename F::Constants constants(const MatrixPass& m) {
    typename F::Constants k;
    std::memcpy(static_cast<void*>(&k), m.constants, sizeof k);
    return k;
  }
  int team_size(const MatrixPass& m) const { return m.shape.size() < worth_a_team ? 1 : space_->threads(); }

  // Calls `visit(of_x, at)` with the index of each element in x and in the arena.
  template <class Visit>
  void for_each_of_x(const MatrixPass& m, const Visit& visit) {
    const bool turned = m.shape.tall();
    // A panel is stored column after column.
    const std::int64_t strips = m.shape.rows / m.shape.panel * m.shape.columns;
    parallel(team_size(m), [&](int thread, int team) {
      const auto [rows, columns, panel] = m.shape;
      const Range mine = share(strips, thread, team);
      std::int64_t row = mine.begin / columns * panel, column = mine.begin % columns;
      for (std::int64_t strip = mine.begin; strip < mine.end; ++strip) {
        for (std::int64_t i = 0; i < panel; ++i)
          visit(turned ? column * rows + row + i : (row + i) * columns + column, strip * panel + i);
        if (++column == columns) {
          column = 0;
          row += panel;
        }
      }
    });
  }

  memory::Host* space_;
  MatrixNeeds needs_;
  memory::Array<float, memory::Host> memory_;
};

}  // namespace convoy::optim
