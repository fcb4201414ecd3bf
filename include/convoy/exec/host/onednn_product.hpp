// Products by oneDNN: OneDnnProduct, a convolution or inner product in the directions that a stage needs,
// MatrixProduct, and multiply_matrices for f32. The first two refuse oneDNN's reference implementations.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include <convoy/exec/host/program.hpp>

namespace convoy::exec::host {

inline constexpr const char* direction_names[] = {"forward", "backward (data)", "backward (weights)"};

class OneDnnProduct {
 public:
  /// The tensors of a product; for a gradient, a tensor stands for its gradient.
  enum Tensor : unsigned char { src, weights, bias, dst };

  ProductShape shape;

  /// The element type of a tensor: the backend's type for factors; f32 for biases, and for results that are
  /// no images kept in bf16.
  static dnnl_data_type_t type(const Backend& backend, Direction direction, Tensor tensor) {
    constexpr Tensor results[] = {dst, src, weights};
    return tensor == bias || tensor == results[static_cast<int>(direction)] ? dnnl_f32 : backend.factor;
  }

  /// Asks oneDNN for an implementation of the shape; false if it has none but reference code.
  [[gnu::cold]] bool describe(Program& p, Direction direction) {
    const Backend& backend = p.backend();
    Description made = host::describe(backend.engine.get(), backend.attributes.get(), direction, shape,
                                      way(Direction::forward).description.get());
    if (!made || is_reference(implementation_of(made))) return false;
    Way& described = way(direction);
    described.scratch = p.scratchpad(made);
    described.description = std::move(made);
    return true;
  }

  bool has(Direction direction) const { return static_cast<bool>(way(direction).description); }
  /// The layout that the implementation wants.
  [[gnu::cold]] Layout layout(Direction direction, Tensor tensor) const {
    return layout_of(way(direction).description, argument(direction, tensor));
  }
  [[gnu::cold]] std::string_view implementation(Direction direction) const {
    return implementation_of(way(direction).description);
  }

  [[gnu::cold]] void bind(Program& p, Direction direction, const Bound& s, const Bound& w, const Bound& b,
                          const Bound& d) {
    Way& bound = way(direction);
    const Program::Argument arguments[] = {{argument(direction, src), s},
                                           {argument(direction, weights), w},
                                           {argument(direction, bias), b},
                                           {argument(direction, dst), d},
                                           {DNNL_ARG_SCRATCHPAD, bound.scratch}};
    bound.call = p.call(bound.description, arguments);
  }
  void run(Direction direction) const { (*way(direction).call)(); }

 private:
  struct Way {
    Description description;
    Bound scratch;
    const Call* call = nullptr;
  };

  static int argument(Direction direction, Tensor tensor) {
    static constexpr int numbers[3][4] = {
        {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST},
        {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DIFF_DST},
        {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_BIAS, DNNL_ARG_DIFF_DST}};
    return numbers[static_cast<int>(direction)][tensor];
  }
  Way& way(Direction direction) { return ways_[static_cast<int>(direction)]; }
  const Way& way(Direction direction) const { return ways_[static_cast<int>(direction)]; }

  Way ways_[3];
};

/// C = A B, C = A B + bias or C += A B, of row-major matrices: A [m, k] or, transposed, [k, m]; B [k, n] or,
/// transposed, [n, k]; C [m, n]; the bias [n] is added to every row. A and B have the backend's type, C and
/// the bias are f32. The rows of A are `stride` elements apart. The matrices of several products may share
/// memory.
class MatrixProduct {
 public:
  /// Throws ExecError if oneDNN has no implementation but reference code.
  [[gnu::cold]] MatrixProduct(Program& p, bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n,
                              std::int64_t k, std::int64_t stride, bool accumulate, bool biased = false)
      : a_({m, k}, transpose_a ? Dims{1, stride} : Dims{stride, 1}, p.backend().factor),
        b_({k, n}, transpose_b && !is_vector(k, n) ? dnnl_ba : dnnl_ab, p.backend().factor),
        bias_(biased ? Layout({1, n}, dnnl_ab) : Layout()),
        c_({m, n}, dnnl_ab),
        description_(describe_matrices(p.backend().engine.get(), a_.get(), b_.get(), bias_.get(), c_.get(),
                                       accumulate)) {
    if (!description_ || is_reference(implementation_of(description_)))
      fail<ExecError>("exec: oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR,
                      " has no fast product of matrices, ", m, "x", k, " by ", k, "x", n,
                      ", on this processor");
    scratch_ = p.scratchpad(description_);
  }
  [[gnu::cold]] void bind(Program& p, Location a, Location b, Location c, Location bias = {}) {
    const Program::Argument arguments[] = {{DNNL_ARG_SRC, {a_, a}},
                                           {DNNL_ARG_WEIGHTS, {b_, b}},
                                           {DNNL_ARG_BIAS, {bias_, bias}},
                                           {DNNL_ARG_DST, {c_, c}},
                                           {DNNL_ARG_SCRATCHPAD, scratch_}};
    call_ = p.call(description_, arguments);
  }
  void operator()() const { (*call_)(); }
  [[gnu::cold]] std::string_view implementation() const { return implementation_of(description_); }

 private:
  /// Whether the matrix lies in memory as its transpose does. oneDNN then calls both orders equal, but may
  /// only have reference code for one of them.
  static constexpr bool is_vector(std::int64_t rows, std::int64_t columns) {
    return rows == 1 || columns == 1;
  }

  Layout a_, b_, bias_, c_;
  Description description_;
  Bound scratch_;
  const Call* call_ = nullptr;
};

/// A row-major matrix whose rows are `stride` elements apart, or its transpose.
struct Factor {
  const float* data;
  std::int64_t stride;
  bool transposed = false;
};

/// C = A B + beta C in f32 for A [m, k], B [k, n] and a dense C [m, n]. oneDNN uses as many threads as OpenMP
/// gives the caller.
inline void multiply_matrices(std::int64_t m, std::int64_t n, std::int64_t k, const Factor& a,
                              const Factor& b, float beta, float* c) {
  check(dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.stride,
                   b.data, b.stride, beta, c, n),
        "multiply two matrices");
}

}  // namespace convoy::exec::host
