// Muon: a momentum whose matrix is made nearly orthogonal, so that a step moves all of its directions alike
// (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024), as torch.optim.Muon
// computes it but in f32 throughout. What is no matrix, and the embeddings and heads that it is not for, are
// updated by AdamW.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/memory/host.hpp>
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/matrix.hpp>
#include <convoy/optim/rule.hpp>
#include <convoy/parallel/multiply.hpp>
#include <convoy/parallel/team.hpp>

namespace convoy::optim {

struct Muon {
  struct Options {
    using Rule = Muon;
    float lr = 1e-3f;
    float momentum = 0.95f;
    bool nesterov = true;
    float weight_decay = 0.1f;  ///< times the learning rate: the share of a parameter that a step takes away
    bool match_adamw = true;  ///< a matrix's rate is times 0.2 sqrt(max(rows, columns)), which makes steps as
                              ///< long as AdamW's, so that one rate serves all (Liu et al., "Muon is Scalable
                              ///< for LLM Training", 2025; PyTorch's "match_rms_adamw"); else it is times
                              ///< sqrt(max(1, rows / columns)) (PyTorch's "original")
    int iterations = 5;       ///< of Newton and Schulz
    float rest = 1;           ///< the rate of what AdamW updates, beside that of matrices
    float beta1 = 0.9f;       ///< this and the next two are AdamW's
    float beta2 = 0.999f;
    float epsilon = 1e-8f;
    static constexpr void fields(auto& self, auto&& field) {
      field("lr", self.lr);
      field("momentum", self.momentum);
      field("nesterov", self.nesterov);
      field("weight_decay", self.weight_decay);
      field("match_adamw", self.match_adamw);
      field("iterations", self.iterations);
      field("rest", self.rest);
      field("beta1", self.beta1);
      field("beta2", self.beta2);
      field("epsilon", self.epsilon);
    }
  };
  struct Constants {
    AdamW::Constants adamw;
    float lr, momentum, decay;
    bool nesterov, match_adamw;
    int iterations;
  };
  static constexpr std::string_view name = "muon";
  static constexpr int slots = AdamW::slots;
  static constexpr int matrix_slots = 1;  ///< the momentum is a moving average, as AdamW's first moment
  static constexpr std::array<std::string_view, 2> slot_names = AdamW::slot_names;

  static void check(const Options& o) {
    if (!(o.momentum >= 0 && o.momentum < 1))
      fail<ConfigError>("optimizer ", name, ": the momentum must be from 0 to less than 1, not ", o.momentum);
    if (o.iterations < 1)
      fail<ConfigError>("optimizer ", name, ": it makes at least 1 iteration, not ", o.iterations);
  }

  CONVOY_HD static Constants at(const Options& o, std::int64_t step, float lr) {
    return {AdamW::at({lr * o.rest, o.beta1, o.beta2, o.epsilon, o.weight_decay}, step, lr * o.rest),
            lr,
            o.momentum,
            lr * o.weight_decay,
            o.nesterov,
            o.match_adamw,
            o.iterations};
  }

  /// Of what is no matrix: AdamW's.
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[2],
                                                                     const Constants& k) {
    AdamW::update(p, g, state, k.adamw);
  }

  /// Two matrices X, whose rows are the fewer, two squares, and what a product works in.
  static std::int64_t matrix_work(std::int64_t rows, std::int64_t columns) {
    const std::int64_t low = std::min(rows, columns), high = std::max(rows, columns);
    return 2 * low * high + 2 * low * low +
           std::max(
               {multiply_work(low, low, high), multiply_work(low, low, low), multiply_work(low, high, low)});
  }

  /// m = momentum m + (1 - momentum) g;  d = m, or with Nesterov momentum m + (1 - momentum) g;
  /// p -= lr decay p + rate O, where O is d made nearly orthogonal.
  static void update_matrix(int threads, const MatrixPass& m, const Constants& k) {
    const std::int64_t low = std::min(m.rows, m.columns), high = std::max(m.rows, m.columns);
    // Below this many elements waking a team costs more than a pass over them.
    const int team_size = low * high < (1 << 15) ? 1 : threads;
    if (m.gradients == nullptr) {
      parallel(team_size, [&](int thread, int team) {
        const Range mine = share(low * high, thread, team, 16);
        for (std::int64_t i = mine.begin; i < mine.end; ++i) m.parameters[i] -= k.decay * m.parameters[i];
      });
      return;
    }
    Work work{m.work, m.work + low * high, m.work + 2 * low * high, m.work + 2 * low * high + low * low,
              m.work + 2 * low * high + 2 * low * low};
    // The momentum lies as the parameters do; so does the direction, until X takes it as it needs it.
    parallel(team_size, [&](int thread, int team) {
      const Range mine = share(low * high, thread, team, 16);
      for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        const float g = m.scale * m.gradients[i];
        const float average = m.state[i] + (1 - k.momentum) * (g - m.state[i]);
        m.state[i] = average;
        work.next[i] = k.nesterov ? g + k.momentum * (average - g) : average;
      }
    });
    const double squares = memory::detail::sum_squares(work.next, low * high, threads);
    const auto length = static_cast<float>(std::max(std::sqrt(squares), 1e-7));
    for_each_of_x(team_size, m, [&](std::int64_t x, std::int64_t at) { work.x[x] = work.next[at] / length; });
    for (int i = 0; i < k.iterations; ++i) iterate(threads, low, high, work);
    const float rate = k.lr * adjustment(m, k.match_adamw);
    for_each_of_x(team_size, m, [&](std::int64_t x, std::int64_t at) {
      const float p = m.parameters[at];
      m.parameters[at] = p - k.decay * p - rate * work.x[x];
    });
  }

 private:
  struct Work {
    float *x, *next, *squared, *factor, *product;
  };

  /// X = a X + (b X X' + c (X X')^2) X, by which singular values come near to 1.
  static void iterate(int threads, std::int64_t low, std::int64_t high, Work& w) {
    constexpr float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    const Strided x{w.x, high, 1}, squared{w.squared, low, 1}, factor{w.factor, low, 1};
    multiply(threads, low, low, high, 1.0f, x, x.transposed(), 0.0f, w.squared, w.product,
             Symmetry::symmetric);
    std::copy_n(w.squared, low * low, w.factor);
    multiply(threads, low, low, low, c, squared, squared, b, w.factor, w.product, Symmetry::symmetric);
    std::copy_n(w.x, low * high, w.next);
    multiply(threads, low, high, low, 1.0f, factor, x, a, w.next, w.product);
    std::swap(w.x, w.next);
  }

  static float adjustment(const MatrixPass& m, bool match_adamw) {
    const auto rows = static_cast<double>(m.rows), columns = static_cast<double>(m.all_columns);
    return static_cast<float>(match_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                          : std::sqrt(std::max(1.0, rows / columns)));
  }

  // Calls `visit(x, at)` with the place in X and in the arena of each element. X is the matrix or, where that
  // has more rows than columns, its transpose.
  template <class Visit>
  static void for_each_of_x(int threads, const MatrixPass& m, const Visit& visit) {
    const bool turned = m.rows > m.columns;
    const std::int64_t strips = m.rows / m.panel * m.columns;  // a panel is stored column after column
    parallel(threads, [&](int thread, int team) {
      const Range mine = share(strips, thread, team);
      std::int64_t row = mine.begin / m.columns * m.panel, column = mine.begin % m.columns;
      for (std::int64_t strip = mine.begin; strip < mine.end; ++strip) {
        for (std::int64_t i = 0; i < m.panel; ++i)
          visit(turned ? column * m.rows + row + i : (row + i) * m.columns + column, strip * m.panel + i);
        if (++column == m.columns) {
          column = 0;
          row += m.panel;
        }
      }
    });
  }
};

}  // namespace convoy::optim
