// Muon: each matrix moves by its momentum made nearly orthogonal, so that a step moves all directions equally
// (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024). Computed as in
// torch.optim.Muon, but in f32; on GPUs, products are rounded to tf32 if those of the Exec are. AdamW updates
// tensors that are not matrices, and embeddings and heads, for which Muon is not intended.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include <convoy/core/error.hpp>
#include <convoy/core/hd.hpp>
#include <convoy/optim/adamw.hpp>
#include <convoy/optim/matrix.hpp>
#include <convoy/optim/rule.hpp>

namespace convoy::optim {

/// Momentum made nearly orthogonal for matrices, and AdamW for all other parameters, embeddings and the layer
/// before a loss. PyTorch's default is `match_adamw = false`.
struct Muon {
  struct Options {
    using Rule = Muon;
    float lr = 1e-3f;
    float momentum = 0.95f;
    bool nesterov = true;
    float weight_decay = 0.1f;  ///< a step subtracts lr * weight_decay times the parameter
    bool match_adamw = true;    ///< multiplies a matrix's rate by 0.2 sqrt(max(rows, columns)), so that its
                              ///< steps are as long as AdamW's and one rate suits all parameters (Liu et al.,
                              ///< "Muon is Scalable for LLM Training", 2025; PyTorch's "match_rms_adamw"); if
                              ///< false, by sqrt(max(1, rows / columns)) (PyTorch's "original")
    int iterations = 5;  ///< Newton-Schulz iterations
    float rest = 1;      ///< AdamW's learning rate, relative to that of matrices
    float beta1 = 0.9f;  ///< this and the next two are AdamW's
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
    bool nesterov;
  };
  static constexpr std::string_view name = "muon";
  static constexpr int slots = AdamW::slots;
  static constexpr int matrix_slots = 1;  ///< the momentum, a moving average like AdamW's first moment
  static constexpr std::array<std::string_view, 2> slot_names = AdamW::slot_names;

  static void check(const Options& o) {
    if (!(o.momentum >= 0 && o.momentum < 1))
      fail<ConfigError>("optimizer ", name, ": the momentum must be from 0 to less than 1, not ", o.momentum);
    if (o.iterations < 1)
      fail<ConfigError>("optimizer ", name, ": iterations must be at least 1, not ", o.iterations);
    if (!(o.rest >= 0)) fail<ConfigError>("optimizer ", name, ": rest must be 0 or more, not ", o.rest);
    detail::check_moments(name, o);
  }

  CONVOY_HD static Constants at(const Options& o, std::int64_t step, float lr) {
    return {AdamW::at({lr * o.rest, o.beta1, o.beta2, o.epsilon, o.weight_decay}, step, lr * o.rest), lr,
            o.momentum, lr * o.weight_decay, o.nesterov};
  }

  /// For parameters that are not updated as matrices: AdamW's update.
  template <class V>
  CONVOY_HD static inline __attribute__((always_inline)) void update(V& p, const V& g, V (&state)[2],
                                                                     const Constants& k) {
    AdamW::update(p, g, state, k.adamw);
  }

  // Functions of a matrix element. Public, because nvcc instantiates no kernels with private types.

  /// m = momentum m + (1 - momentum) g;  d = m, or with Nesterov momentum m + (1 - momentum) g.
  struct Direction {
    using Constants = Muon::Constants;
    static constexpr int slots = matrix_slots;
    CONVOY_HD float operator()(float g, float (&state)[slots], const Constants& k) const {
      const float average = state[0] + (1 - k.momentum) * (g - state[0]);
      state[0] = average;
      return k.nesterov ? g + k.momentum * (average - g) : average;
    }
  };
  /// p -= lr decay p + rate O, where O is d made nearly orthogonal.
  struct Move {
    using Constants = Muon::Constants;
    float adjustment;  ///< of the rate
    CONVOY_HD float operator()(float p, float o, const Constants& k) const {
      return multiply_add(-(k.lr * adjustment), o, multiply_add(-k.decay, p, p));
    }
  };
  /// p -= lr decay p, for columns that never have a gradient.
  struct Decay {
    using Constants = Muon::Constants;
    CONVOY_HD float operator()(float p, float, const Constants& k) const {
      return multiply_add(-k.decay, p, p);
    }
  };

  /// One iteration: A = X X'; B = b A + c A^2; a X + B X, whose singular values are nearer to 1.
  static constexpr std::array<MatrixProduct, 3> products = {{
      {.inner = Side::high, .right_transposed = true, .symmetric = true},
      {.symmetric = true, .factor = 2.0315f, .kept = -4.7750f},
      {.columns = Side::high, .kept = 3.4445f},
  }};
  /// Two copies of X, which has at most as many rows as columns, and two square matrices.
  static constexpr MatrixNeeds matrix_needs{.wide = 2, .square = 2, .products = products};

  template <class Work>
  static void update_matrix(Work& work, const MatrixPass& m, const Options& o) {
    if (m.gradients == nullptr) return work.update(m, Decay{});
    const auto& [square, polynomial, step] = products;
    float *x = work.wide(m, 0), *next = work.wide(m, 1);
    float *const squared = work.square(m, 0), *const factor = work.square(m, 1);
    work.normalize(m, Direction{}, 1e-7, x, next);
    for (int i = 0; i < o.iterations; ++i) {
      work.multiply(m, square, x, x, nullptr, squared);
      work.multiply(m, polynomial, squared, squared, squared, factor);
      work.multiply(m, step, factor, x, x, next);
      std::swap(x, next);
    }
    work.update(m, Move{adjustment(m, o.match_adamw)}, x);
  }

 private:
  static float adjustment(const MatrixPass& m, bool match_adamw) {
    const auto rows = static_cast<double>(m.shape.rows), columns = static_cast<double>(m.all_columns);
    return static_cast<float>(match_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                          : std::sqrt(std::max(1.0, rows / columns)));
  }
};

}  // namespace convoy::optim
